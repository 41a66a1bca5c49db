-- The control plane's schema as it is after every migration. A test compares the two.

-- Times are milliseconds since the Unix epoch. Columns named *_json hold JSON text, kept as it was received or
-- written. Foreign keys are immediate, never deferred: a deferred one would fail at COMMIT, for everybody in
-- the group.

-- Columns named ord are the order of insertion over all tables; acp_ord has one row, the last number.
CREATE TABLE acp_ord (
  last INTEGER NOT NULL
) STRICT;
INSERT INTO acp_ord VALUES (0);

CREATE TABLE acp_meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

-- owner, spawner and parent carry no foreign key: they say who it was, also when that session is gone.
-- lease_id carries none either; a transaction that changes it checks it at its end.
CREATE TABLE acp_sessions (
  session_key TEXT PRIMARY KEY,
  backend TEXT NOT NULL,
  agent TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('persistent','oneshot')),
  cwd TEXT NOT NULL,
  label TEXT,
  state TEXT NOT NULL CHECK (state IN ('creating','idle','running','cancelling','error','closed')),
  ending TEXT CHECK (ending IN ('closed','archived','deleted','reset','expired')),
  last_error TEXT,
  owner_session_key TEXT NOT NULL,
  asked_by TEXT NOT NULL DEFAULT '',
  spawned_by TEXT,
  parent_session_key TEXT,
  gateway_instance_id TEXT NOT NULL,
  agent_session_id TEXT,
  resumable INTEGER NOT NULL CHECK (resumable IN (0, 1)),
  agent_info_json TEXT,
  lease_id TEXT,
  options_json TEXT NOT NULL,
  last_session_seq INTEGER NOT NULL CHECK (last_session_seq >= 0),
  epoch INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  last_activity_at INTEGER NOT NULL,
  ord INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX acp_sessions_working ON acp_sessions (session_key) WHERE state IN ('creating','running','cancelling');

CREATE TRIGGER acp_sessions_ord AFTER INSERT ON acp_sessions
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_sessions SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE INDEX acp_sessions_open ON acp_sessions (last_activity_at) WHERE state <> 'closed';
-- People name sessions by their label: among those that are open it names one.
CREATE UNIQUE INDEX acp_sessions_one_label ON acp_sessions (label) WHERE state <> 'closed' AND label IS NOT NULL;

CREATE TRIGGER acp_sessions_closed_is_final BEFORE UPDATE OF state ON acp_sessions
WHEN OLD.state = 'closed' AND NEW.state <> 'closed'
BEGIN SELECT RAISE(ABORT, 'a closed session stays closed'); END;

CREATE TABLE acp_runs (
  run_id TEXT PRIMARY KEY,
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  mode TEXT NOT NULL CHECK (mode IN ('prompt','steer')),
  state TEXT NOT NULL CHECK (state IN ('queued','running','completed','failed','cancelled')),
  prompt TEXT NOT NULL,
  files_json TEXT,
  author TEXT NOT NULL,
  interactive INTEGER NOT NULL CHECK (interactive IN (0, 1)),
  requester_message_id TEXT,
  idempotency_key TEXT NOT NULL,
  last_seq INTEGER NOT NULL CHECK (last_seq >= 0),
  stop_reason TEXT,
  usage_json TEXT,
  error_json TEXT,
  error_code TEXT GENERATED ALWAYS AS (json_extract(error_json, '$.code')) VIRTUAL,
  error_message TEXT GENERATED ALWAYS AS (json_extract(error_json, '$.message')) VIRTUAL,
  created_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  ord INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TRIGGER acp_runs_ord AFTER INSERT ON acp_runs
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_runs SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE INDEX acp_runs_of_session ON acp_runs (session_key, ord);
CREATE INDEX acp_runs_unfinished ON acp_runs (session_key, ord) WHERE state IN ('queued','running');
CREATE UNIQUE INDEX acp_runs_one_running ON acp_runs (session_key) WHERE state = 'running' AND mode = 'prompt';

CREATE TRIGGER acp_runs_ended_is_final BEFORE UPDATE OF state ON acp_runs
WHEN OLD.state IN ('completed','failed','cancelled') AND NEW.state <> OLD.state
BEGIN SELECT RAISE(ABORT, 'an ended run stays ended'); END;

-- webhook_id and webhook_token are the source's. Webhooks are found again at the channel: no token of one is ever kept.
CREATE TABLE acp_bindings (
  binding_key TEXT PRIMARY KEY,
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  thread_id TEXT NOT NULL,
  channel_id TEXT,
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  target_kind TEXT NOT NULL CHECK (target_kind IN ('session','subagent')),
  status TEXT NOT NULL CHECK (status IN ('pending','active','parked','ending','ended')),
  bound_by TEXT NOT NULL,
  bound_at INTEGER NOT NULL,
  last_activity_at INTEGER NOT NULL,
  idle_ms INTEGER,
  max_age_ms INTEGER,
  expires_at INTEGER GENERATED ALWAYS AS (
    CASE WHEN idle_ms IS NULL AND max_age_ms IS NULL THEN NULL
    ELSE min(coalesce(last_activity_at + idle_ms, 9223372036854775807),
             coalesce(bound_at + max_age_ms, 9223372036854775807)) END) VIRTUAL,
  metadata_json TEXT NOT NULL,
  webhook_id TEXT,
  webhook_token TEXT CHECK (webhook_token IS NULL),
  backfilled_through TEXT,
  end_reason TEXT,
  verbosity TEXT CHECK (verbosity IN ('full','compact','none')),
  ord INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX acp_bindings_first ON acp_bindings (session_key, ord);

CREATE TRIGGER acp_bindings_ord AFTER INSERT ON acp_bindings
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_bindings SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE UNIQUE INDEX acp_bindings_one_active ON acp_bindings (channel, account_id, thread_id)
WHERE status IN ('active','parked');
CREATE INDEX acp_bindings_of_conversation ON acp_bindings (channel, account_id, thread_id);

CREATE INDEX acp_bindings_living ON acp_bindings (status) WHERE status IN ('active','ending');

CREATE INDEX acp_bindings_of_session ON acp_bindings (session_key) WHERE status <> 'ended';

CREATE TRIGGER acp_bindings_live_target_new BEFORE INSERT ON acp_bindings
WHEN NEW.status IN ('pending','active','parked')
  AND (SELECT state FROM acp_sessions WHERE session_key = NEW.session_key) = 'closed'
BEGIN SELECT RAISE(ABORT, 'the session of a binding is closed'); END;

CREATE TRIGGER acp_bindings_live_target_change BEFORE UPDATE OF status, session_key ON acp_bindings
WHEN NEW.status IN ('pending','active','parked')
  AND (SELECT state FROM acp_sessions WHERE session_key = NEW.session_key) = 'closed'
BEGIN SELECT RAISE(ABORT, 'the session of a binding is closed'); END;

-- payload_json is the update of a session/update notification, extra_json the members of its params beside
-- sessionId and update.
CREATE TABLE acp_events (
  event_id INTEGER PRIMARY KEY,
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  session_seq INTEGER NOT NULL CHECK (session_seq > 0),
  run_id TEXT REFERENCES acp_runs (run_id),
  seq INTEGER CHECK (seq > 0),
  kind TEXT NOT NULL,
  payload_json TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  extra_json TEXT,
  CHECK ((run_id IS NULL) = (seq IS NULL))
) STRICT;

CREATE UNIQUE INDEX acp_events_by_session ON acp_events (session_key, session_seq);
CREATE UNIQUE INDEX acp_events_by_run ON acp_events (run_id, seq) WHERE run_id IS NOT NULL;

CREATE TRIGGER acp_events_never_updated BEFORE UPDATE ON acp_events
BEGIN SELECT RAISE(ABORT, 'acp_events is append-only'); END;
CREATE TRIGGER acp_events_never_deleted BEFORE DELETE ON acp_events
BEGIN SELECT RAISE(ABORT, 'acp_events is append-only'); END;

-- Per run: how far a run was delivered.
CREATE TABLE acp_delivery_checkpoint (
  run_id TEXT PRIMARY KEY REFERENCES acp_runs (run_id),
  last_event_seq INTEGER NOT NULL CHECK (last_event_seq >= 0),
  last_discord_message_id TEXT,
  updated_at INTEGER NOT NULL
) STRICT;

-- Per binding: how far the session's journal was projected into the conversation.
CREATE TABLE acp_binding_checkpoint (
  binding_key TEXT PRIMARY KEY REFERENCES acp_bindings (binding_key),
  last_session_seq INTEGER NOT NULL CHECK (last_session_seq >= 0),
  last_message_id TEXT,
  updated_at INTEGER NOT NULL
) STRICT;

-- How a conversation is told its session's journal, each from a row on: parts follow from the journal and this alone.
CREATE TABLE acp_binding_style (
  binding_key TEXT NOT NULL REFERENCES acp_bindings (binding_key),
  from_session_seq INTEGER NOT NULL CHECK (from_session_seq >= 0),
  style_json TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (binding_key, from_session_seq)
) STRICT;

-- The live card of a run in a conversation: where it is, and nothing that is not in the journal.
CREATE TABLE acp_delivery_card (
  binding_key TEXT NOT NULL REFERENCES acp_bindings (binding_key),
  run_id TEXT NOT NULL REFERENCES acp_runs (run_id),
  message_id TEXT,
  number INTEGER NOT NULL CHECK (number >= 0),
  through_session_seq INTEGER NOT NULL CHECK (through_session_seq >= 0),
  posted_at INTEGER,
  tries INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
  folded INTEGER NOT NULL CHECK (folded IN (0, 1)),
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (binding_key, run_id)
) STRICT;

CREATE INDEX acp_delivery_card_open ON acp_delivery_card (binding_key) WHERE folded = 0;

-- persona_at: when a part was last given to the channel under an agent's name, where no nonce names it.
CREATE TABLE acp_delivery_part (
  part_id INTEGER PRIMARY KEY,
  binding_key TEXT NOT NULL REFERENCES acp_bindings (binding_key),
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  run_id TEXT REFERENCES acp_runs (run_id),
  session_seq INTEGER NOT NULL CHECK (session_seq > 0),
  part_no INTEGER NOT NULL CHECK (part_no >= 0),
  kind TEXT NOT NULL CHECK (kind IN ('final','notice','permission','error')),
  text TEXT NOT NULL,
  asks_json TEXT,
  files_json TEXT,
  tag TEXT,
  print TEXT NOT NULL,
  nonce TEXT NOT NULL UNIQUE,
  state TEXT NOT NULL CHECK (state IN ('planned','sending','sent','uncertain','rejected')),
  message_id TEXT,
  attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  persona_at INTEGER CHECK (persona_at IS NULL OR state <> 'planned'),
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  UNIQUE (binding_key, session_seq, part_no)
) STRICT;

CREATE INDEX acp_delivery_part_sent ON acp_delivery_part (binding_key, updated_at, message_id)
  WHERE state = 'sent';

CREATE INDEX acp_delivery_part_pending ON acp_delivery_part (binding_key, session_seq, part_no)
WHERE state IN ('planned','sending','uncertain');

-- Whether something was said before (H12).
CREATE INDEX acp_delivery_part_said ON acp_delivery_part (print);

-- Messages that have buttons: what those are about, so that they go once that is over.
CREATE TABLE acp_button_message (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  message_id TEXT NOT NULL,
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  about_json TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('final','notice','permission','error')),
  text TEXT NOT NULL,
  tries INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
  tried_at INTEGER NOT NULL DEFAULT 0 CHECK (tried_at >= 0),
  PRIMARY KEY (channel, account_id, conversation_id, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX acp_button_message_of_session ON acp_button_message (session_key);

CREATE TABLE acp_idempotency (
  scope TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  result_json TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (scope, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX acp_idempotency_by_age ON acp_idempotency (created_at);

CREATE TABLE acp_inbox (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  parent_conversation_id TEXT,
  message_id TEXT NOT NULL,
  text TEXT NOT NULL,
  author TEXT NOT NULL,
  context_json TEXT NOT NULL,
  files_json TEXT,
  state TEXT NOT NULL CHECK (state IN ('received','routed','refused')),
  outcome_json TEXT,
  -- Its outcome was left to whoever brought it to tell.
  caller_tells INTEGER NOT NULL DEFAULT 0 CHECK (caller_tells IN (0,1)),
  created_at INTEGER NOT NULL,
  ord INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (channel, account_id, conversation_id, message_id)
) STRICT;

CREATE TRIGGER acp_inbox_ord AFTER INSERT ON acp_inbox
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_inbox SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE INDEX acp_inbox_received ON acp_inbox (created_at) WHERE state = 'received';

-- What the gateway said itself, by the channel's ids: such a message that comes back in is an echo.
CREATE TABLE acp_said (
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  message_id TEXT NOT NULL,
  said_at INTEGER NOT NULL,
  PRIMARY KEY (channel, account_id, conversation_id, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX acp_said_old ON acp_said (said_at);

CREATE TABLE acp_reply (
  nonce TEXT PRIMARY KEY,
  channel TEXT NOT NULL,
  account_id TEXT NOT NULL,
  conversation_id TEXT NOT NULL,
  tag TEXT,
  print TEXT NOT NULL,
  message_id TEXT,
  said_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX acp_reply_of_conversation ON acp_reply (channel, account_id, conversation_id, said_at);

CREATE INDEX acp_reply_old ON acp_reply (said_at);

CREATE TABLE acp_leases (
  lease_id TEXT PRIMARY KEY,
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  kind TEXT NOT NULL CHECK (kind IN ('agent','terminal')),
  spawn_json TEXT NOT NULL,
  usage TEXT NOT NULL CHECK (usage IN ('intended','open','ready','closing','ended')),
  stdout_offset INTEGER NOT NULL CHECK (stdout_offset >= 0),
  next_stdin_seq INTEGER NOT NULL CHECK (next_stdin_seq > 0),
  link_state TEXT NOT NULL,
  broken INTEGER NOT NULL DEFAULT 0 CHECK (broken IN (0, 1)),
  ord INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TRIGGER acp_leases_ord AFTER INSERT ON acp_leases
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_leases SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE INDEX acp_leases_in_use ON acp_leases (session_key) WHERE usage <> 'ended';
-- Two agents of one session in one directory must not be (H5).
CREATE UNIQUE INDEX acp_leases_one_agent ON acp_leases (session_key) WHERE usage <> 'ended' AND kind = 'agent';

CREATE TRIGGER acp_leases_ended_is_final BEFORE UPDATE OF usage ON acp_leases
WHEN OLD.usage = 'ended' AND NEW.usage <> 'ended'
BEGIN SELECT RAISE(ABORT, 'an ended lease stays ended'); END;

CREATE TABLE acp_line_tail (
  lease_id TEXT NOT NULL REFERENCES acp_leases (lease_id),
  offset INTEGER NOT NULL CHECK (offset >= 0),
  bytes BLOB NOT NULL,
  PRIMARY KEY (lease_id, offset)
) STRICT;

-- bytes is null once the message is in the pipe; its hash stays (H7).
CREATE TABLE acp_stdin_outbox (
  lease_id TEXT NOT NULL REFERENCES acp_leases (lease_id),
  seq INTEGER NOT NULL CHECK (seq > 0),
  bytes BLOB,
  sha256 BLOB NOT NULL CHECK (length(sha256) = 32),
  meaning_json TEXT NOT NULL,
  written INTEGER NOT NULL CHECK (written IN (0, 1)),
  created_at INTEGER NOT NULL,
  PRIMARY KEY (lease_id, seq),
  CHECK (written = 1 OR bytes IS NOT NULL)
) STRICT;

CREATE TABLE acp_agent_request (
  lease_id TEXT NOT NULL REFERENCES acp_leases (lease_id),
  stdout_offset INTEGER NOT NULL CHECK (stdout_offset >= 0),
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  ask_json TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('received','started','answered')),
  intent TEXT,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (lease_id, stdout_offset)
) STRICT;

CREATE TABLE acp_permission (
  lease_id TEXT NOT NULL REFERENCES acp_leases (lease_id),
  stdout_offset INTEGER NOT NULL CHECK (stdout_offset >= 0),
  session_key TEXT NOT NULL REFERENCES acp_sessions (session_key),
  ask_json TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('pending','answered','expired')),
  option_id TEXT,
  -- The name of a person, or else what settled it without one.
  settled_by TEXT,
  settled_without TEXT CHECK (settled_without IN ('policy','deadline','cancel','turn ended','lease ended',
    'session closed','agent','nobody can be asked','adopted')),
  created_at INTEGER NOT NULL,
  deadline_at INTEGER,
  ord INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (lease_id, stdout_offset)
) STRICT;

CREATE TRIGGER acp_permission_ord AFTER INSERT ON acp_permission
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_permission SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE INDEX acp_permission_pending ON acp_permission (session_key) WHERE state = 'pending';

-- revision grows with every change of a message: it is the cursor of whoever looks.
CREATE TABLE console_message (
  id INTEGER PRIMARY KEY,
  conversation_id TEXT NOT NULL,
  author TEXT NOT NULL,
  text TEXT NOT NULL,
  nonce TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL CHECK (kind IN ('person','final','notice','permission','error','card')),
  created_at INTEGER NOT NULL,
  session_key TEXT REFERENCES acp_sessions (session_key),
  run_id TEXT REFERENCES acp_runs (run_id),
  revision INTEGER NOT NULL UNIQUE
) STRICT;

CREATE INDEX console_message_of_conversation ON console_message (conversation_id, revision);
