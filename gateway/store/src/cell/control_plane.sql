-- Schema of the control plane for PostgreSQL, as SQLite's migrations 1 to 11 together leave an empty database: the same
-- tables, columns in the same order, indexes, checks and refusals. It runs as one batch in a transaction, with the cell's
-- schema alone in search_path; pg_catalog is searched before.
--
-- Texts compare byte by byte, as in SQLite: COLLATE "C". Booleans are 0 and 1. Numbers of event_id, part_id and id rise;
-- an insert that was rolled back leaves a gap. A copy of rows with their numbers sets the three sequences afterwards.
-- What a trigger refuses has SQLSTATE 23000 and SQLite's message.

-- Functions that SQLite has and PostgreSQL lacks. NULL in any argument is NULL, except for the value of json_set.

CREATE FUNCTION max(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN a >= b THEN a WHEN a < b THEN b END;

CREATE FUNCTION min(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN a <= b THEN a WHEN a > b THEN b END;

-- Sum of two numbers that are not negative, or the largest number: SQLite goes on with a real number there.
CREATE FUNCTION acp_add(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN b > 9223372036854775807 - a THEN 9223372036854775807 ELSE a + b END;

CREATE FUNCTION instr(text TEXT, part TEXT) RETURNS BIGINT LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN strpos(text COLLATE "C", part COLLATE "C")::BIGINT;

-- Member at a path like '$.a.b', as text: a string without quotes, true and false as 1 and 0. PostgreSQL has no U+0000
-- and refuses its escape in any member, so it is read as U+FFFD.
CREATE FUNCTION json_extract(document TEXT, path TEXT) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  found JSON;
BEGIN
  IF strpos(document, '\u0000') > 0 THEN
    document := regexp_replace(document, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g');
  END IF;
  found := document::JSON #> string_to_array(nullif(substr(path, 3), ''), '.');
  RETURN CASE json_typeof(found)
    WHEN 'null' THEN NULL
    WHEN 'boolean' THEN (found::TEXT = 'true')::INTEGER::TEXT
    ELSE found #>> '{}'
  END;
END $$;

-- Member that is an integer; another one is refused.
CREATE FUNCTION json_extract_number(document TEXT, path TEXT) RETURNS BIGINT LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS
$$ BEGIN RETURN json_extract(document, path)::BIGINT; END $$;

-- Document with a member of the top level set, at its place or as the last one, without white space around members. The
-- text of other members stays. A document with the escape of U+0000 is refused.
CREATE FUNCTION json_set(document TEXT, path TEXT, value ANYELEMENT) RETURNS TEXT LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  name TEXT := substr(path, 3);
  text TEXT := coalesce(to_json(value)::TEXT, 'null');
  is_there BOOLEAN;
  members TEXT;
BEGIN
  IF document IS NULL OR path IS NULL THEN
    RETURN NULL;
  END IF;
  IF path !~ '^\$\.\w+$' THEN
    RAISE EXCEPTION 'json_set: not a member of the top level: %', path;
  END IF;
  SELECT string_agg(to_json(m.key)::TEXT || ':' || CASE m.key WHEN name THEN text ELSE m.value::TEXT END, ',' ORDER BY m.no),
    coalesce(bool_or(m.key = name), FALSE) INTO members, is_there
    FROM json_each(document::JSON) WITH ORDINALITY AS m (key, value, no);
  IF NOT is_there THEN
    members := concat_ws(',', members, to_json(name)::TEXT || ':' || text);
  END IF;
  RETURN '{' || members || '}';
END $$;

-- Refuses a change of a row with the message that the trigger gives.
CREATE FUNCTION acp_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation';
END $$;

-- Columns named ord are the order of insertion over all tables; acp_ord has one row, the last number. A number other than
-- 0 is kept: it is of a copied row.
CREATE TABLE acp_ord (
  last BIGINT NOT NULL
);

INSERT INTO acp_ord VALUES (0);

CREATE FUNCTION acp_next_ord() RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
  number BIGINT;
BEGIN
  UPDATE acp_ord SET last = last + 1 RETURNING last INTO STRICT number;
  RETURN number;
END $$;

CREATE FUNCTION acp_set_ord() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.ord := acp_next_ord();
  RETURN NEW;
END $$;

CREATE TABLE acp_meta (
  key TEXT COLLATE "C" PRIMARY KEY,
  value TEXT COLLATE "C" NOT NULL
);

-- owner, spawner and parent carry no foreign key: they say who it was, also when that session is gone.
-- lease_id carries none either; a transaction that changes it checks it at its end.
CREATE TABLE acp_sessions (
  session_key TEXT COLLATE "C" PRIMARY KEY,
  backend TEXT COLLATE "C" NOT NULL,
  agent TEXT COLLATE "C" NOT NULL,
  mode TEXT COLLATE "C" NOT NULL CHECK (mode IN ('persistent','oneshot')),
  cwd TEXT COLLATE "C" NOT NULL,
  label TEXT COLLATE "C",
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('creating','idle','running','cancelling','error','closed')),
  ending TEXT COLLATE "C" CHECK (ending IN ('closed','archived','deleted','reset','expired')),
  last_error TEXT COLLATE "C",
  owner_session_key TEXT COLLATE "C" NOT NULL,
  asked_by TEXT COLLATE "C" NOT NULL DEFAULT '',
  spawned_by TEXT COLLATE "C",
  parent_session_key TEXT COLLATE "C",
  gateway_instance_id TEXT COLLATE "C" NOT NULL,
  agent_session_id TEXT COLLATE "C",
  resumable BIGINT NOT NULL CHECK (resumable IN (0, 1)),
  agent_info_json TEXT COLLATE "C",
  lease_id TEXT COLLATE "C",
  options_json TEXT COLLATE "C" NOT NULL,
  last_session_seq BIGINT NOT NULL CHECK (last_session_seq >= 0),
  epoch BIGINT NOT NULL DEFAULT 0,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  last_activity_at BIGINT NOT NULL,
  ord BIGINT NOT NULL DEFAULT 0,
  -- Number of the last row of the session that is gone.
  pruned_seq BIGINT NOT NULL DEFAULT 0 CHECK (pruned_seq >= 0)
);

-- With the state, so that open sessions are counted without their rows. A turn changes last_activity_at as well.
CREATE INDEX acp_sessions_open ON acp_sessions (last_activity_at, state) WHERE state <> 'closed';
-- People name sessions by their label: among those that are open it names one.
CREATE UNIQUE INDEX acp_sessions_one_label ON acp_sessions (label) WHERE state <> 'closed' AND label IS NOT NULL;
CREATE INDEX acp_sessions_creating ON acp_sessions (session_key) WHERE state = 'creating';
CREATE INDEX acp_sessions_children ON acp_sessions (spawned_by) WHERE spawned_by IS NOT NULL AND state <> 'closed';
-- Pages in the order of creation.
CREATE INDEX acp_sessions_ord ON acp_sessions (ord);
-- Conversations of agents that open sessions continue.
CREATE INDEX acp_sessions_continued ON acp_sessions (agent_session_id)
WHERE state <> 'closed' AND agent_session_id IS NOT NULL;

CREATE TRIGGER acp_sessions_closed_is_final BEFORE UPDATE OF state ON acp_sessions FOR EACH ROW
WHEN (OLD.state = 'closed' AND NEW.state <> 'closed')
EXECUTE FUNCTION acp_refuse('a closed session stays closed');

CREATE TRIGGER acp_sessions_pruned_rises BEFORE UPDATE OF pruned_seq ON acp_sessions FOR EACH ROW
WHEN (NEW.pruned_seq < OLD.pruned_seq OR NEW.pruned_seq >= NEW.last_session_seq)
EXECUTE FUNCTION acp_refuse('pruned rows stay pruned, and the last row stays');

CREATE TRIGGER acp_sessions_ord BEFORE INSERT ON acp_sessions FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord();

CREATE TABLE acp_runs (
  run_id TEXT COLLATE "C" PRIMARY KEY,
  session_key TEXT COLLATE "C" NOT NULL REFERENCES acp_sessions (session_key),
  mode TEXT COLLATE "C" NOT NULL CHECK (mode IN ('prompt','steer')),
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('queued','running','completed','failed','cancelled')),
  prompt TEXT COLLATE "C" NOT NULL,
  files_json TEXT COLLATE "C",
  author TEXT COLLATE "C" NOT NULL,
  interactive BIGINT NOT NULL CHECK (interactive IN (0, 1)),
  requester_message_id TEXT COLLATE "C",
  idempotency_key TEXT COLLATE "C" NOT NULL,
  last_seq BIGINT NOT NULL CHECK (last_seq >= 0),
  stop_reason TEXT COLLATE "C",
  usage_json TEXT COLLATE "C",
  error_json TEXT COLLATE "C",
  error_code TEXT COLLATE "C" GENERATED ALWAYS AS (json_extract(error_json, '$.code')) STORED,
  error_message TEXT COLLATE "C" GENERATED ALWAYS AS (json_extract(error_json, '$.message')) STORED,
  created_at BIGINT NOT NULL,
  started_at BIGINT,
  ended_at BIGINT,
  ord BIGINT NOT NULL DEFAULT 0,
  asked_by TEXT COLLATE "C" NOT NULL DEFAULT '',
  pruned BIGINT NOT NULL DEFAULT 0 CHECK (pruned IN (0, 1)),
  -- Permission settings of the run alone; NULL takes the session's.
  permission TEXT COLLATE "C" CHECK (permission IN ('approve-all','approve-reads','deny-all','ask')),
  non_interactive TEXT COLLATE "C" CHECK (non_interactive IN ('deny','fail')),
  -- Number of runs before it in a chain of messages between sessions.
  chain BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX acp_runs_of_session ON acp_runs (session_key, ord);
CREATE INDEX acp_runs_unfinished ON acp_runs (session_key, ord) WHERE state IN ('queued','running');
CREATE UNIQUE INDEX acp_runs_one_running ON acp_runs (session_key) WHERE state = 'running' AND mode = 'prompt';
-- Oldest runs that are not pruned.
CREATE INDEX acp_runs_unpruned ON acp_runs (session_key, ord) WHERE pruned = 0;

CREATE TRIGGER acp_runs_ended_is_final BEFORE UPDATE OF state ON acp_runs FOR EACH ROW
WHEN (OLD.state IN ('completed','failed','cancelled') AND NEW.state <> OLD.state)
EXECUTE FUNCTION acp_refuse('an ended run stays ended');

-- A run is also put where it exists: then it keeps its number, and none is used.
CREATE FUNCTION acp_set_ord_of_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM acp_runs WHERE run_id = NEW.run_id) THEN
    NEW.ord := acp_next_ord();
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER acp_runs_ord BEFORE INSERT ON acp_runs FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord_of_run();

-- webhook_id and webhook_token are the source's. Webhooks are found again at the channel: no token of one is ever kept.
CREATE TABLE acp_bindings (
  binding_key TEXT COLLATE "C" PRIMARY KEY,
  channel TEXT COLLATE "C" NOT NULL,
  account_id TEXT COLLATE "C" NOT NULL,
  thread_id TEXT COLLATE "C" NOT NULL,
  channel_id TEXT COLLATE "C",
  session_key TEXT COLLATE "C" NOT NULL REFERENCES acp_sessions (session_key),
  target_kind TEXT COLLATE "C" NOT NULL CHECK (target_kind IN ('session','subagent')),
  status TEXT COLLATE "C" NOT NULL CHECK (status IN ('pending','active','parked','ending','ended')),
  bound_by TEXT COLLATE "C" NOT NULL,
  bound_at BIGINT NOT NULL,
  last_activity_at BIGINT NOT NULL,
  idle_ms BIGINT,
  max_age_ms BIGINT,
  expires_at BIGINT GENERATED ALWAYS AS (
    CASE WHEN idle_ms IS NULL AND max_age_ms IS NULL THEN NULL
    ELSE least(coalesce(acp_add(last_activity_at, idle_ms), 9223372036854775807),
               coalesce(acp_add(bound_at, max_age_ms), 9223372036854775807)) END) STORED,
  metadata_json TEXT COLLATE "C" NOT NULL,
  webhook_id TEXT COLLATE "C",
  webhook_token TEXT COLLATE "C" CHECK (webhook_token IS NULL),
  backfilled_through TEXT COLLATE "C",
  end_reason TEXT COLLATE "C",
  verbosity TEXT COLLATE "C" CHECK (verbosity IN ('full','compact','none')),
  ord BIGINT NOT NULL DEFAULT 0,
  -- Earliest timeout; the largest number without one. A timeout of 0 is off.
  deadline BIGINT GENERATED ALWAYS AS (
    least(coalesce(acp_add(last_activity_at, nullif(idle_ms, 0)), 9223372036854775807),
          coalesce(acp_add(bound_at, nullif(max_age_ms, 0)), 9223372036854775807))) STORED
);

CREATE UNIQUE INDEX acp_bindings_one_active ON acp_bindings (channel, account_id, thread_id)
WHERE status IN ('active','parked');
CREATE INDEX acp_bindings_of_conversation ON acp_bindings (channel, account_id, thread_id);
CREATE INDEX acp_bindings_living ON acp_bindings (status, ord) WHERE status IN ('pending','active','ending');
CREATE INDEX acp_bindings_of_session ON acp_bindings (session_key) WHERE status <> 'ended';
CREATE INDEX acp_bindings_first ON acp_bindings (session_key, ord);
CREATE INDEX acp_bindings_deadline ON acp_bindings (deadline)
WHERE status IN ('active','parked') AND (idle_ms > 0 OR max_age_ms > 0);

CREATE FUNCTION acp_refuse_binding_of_closed_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT state FROM acp_sessions WHERE session_key = NEW.session_key) = 'closed' THEN
    RAISE EXCEPTION 'the session of a binding is closed' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER acp_bindings_live_target_new BEFORE INSERT ON acp_bindings FOR EACH ROW
WHEN (NEW.status IN ('pending','active','parked'))
EXECUTE FUNCTION acp_refuse_binding_of_closed_session();

CREATE TRIGGER acp_bindings_live_target_change BEFORE UPDATE OF status, session_key ON acp_bindings FOR EACH ROW
WHEN (NEW.status IN ('pending','active','parked'))
EXECUTE FUNCTION acp_refuse_binding_of_closed_session();

CREATE TRIGGER acp_bindings_ord BEFORE INSERT ON acp_bindings FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord();

-- No foreign keys: session and run were read in the transaction that appends, and the keys cost half of the server's time
-- for a row. invariants.sql finds a row without its session or run.
CREATE TABLE acp_events (
  event_id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  session_key TEXT COLLATE "C" NOT NULL,
  session_seq BIGINT NOT NULL CHECK (session_seq > 0),
  run_id TEXT COLLATE "C",
  seq BIGINT CHECK (seq > 0),
  kind TEXT COLLATE "C" NOT NULL,
  -- Update of a session/update notification.
  payload_json TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL,
  -- Members of its params other than sessionId and update.
  extra_json TEXT COLLATE "C",
  CHECK ((run_id IS NULL) = (seq IS NULL))
);

CREATE UNIQUE INDEX acp_events_by_session ON acp_events (session_key, session_seq);
CREATE UNIQUE INDEX acp_events_by_run ON acp_events (run_id, seq) WHERE run_id IS NOT NULL;

CREATE TRIGGER acp_events_never_updated BEFORE UPDATE ON acp_events FOR EACH ROW
EXECUTE FUNCTION acp_refuse('acp_events is append-only');

CREATE FUNCTION acp_refuse_unless_pruned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.session_seq > coalesce((SELECT pruned_seq FROM acp_sessions WHERE session_key = OLD.session_key), 0) THEN
    RAISE EXCEPTION 'acp_events is append-only' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN OLD;
END $$;

CREATE TRIGGER acp_events_deleted_if_pruned BEFORE DELETE ON acp_events FOR EACH ROW
EXECUTE FUNCTION acp_refuse_unless_pruned();

-- Per run: how far a run was delivered.
CREATE TABLE acp_delivery_checkpoint (
  run_id TEXT COLLATE "C" PRIMARY KEY REFERENCES acp_runs (run_id),
  last_event_seq BIGINT NOT NULL CHECK (last_event_seq >= 0),
  last_discord_message_id TEXT COLLATE "C",
  updated_at BIGINT NOT NULL
);

-- Per binding: how far the session's journal was projected into the conversation.
CREATE TABLE acp_binding_checkpoint (
  binding_key TEXT COLLATE "C" PRIMARY KEY REFERENCES acp_bindings (binding_key),
  last_session_seq BIGINT NOT NULL CHECK (last_session_seq >= 0),
  last_message_id TEXT COLLATE "C",
  updated_at BIGINT NOT NULL
);

-- How a conversation is told its session's journal, each from a row on: parts follow from the journal and this alone.
CREATE TABLE acp_binding_style (
  binding_key TEXT COLLATE "C" NOT NULL REFERENCES acp_bindings (binding_key),
  from_session_seq BIGINT NOT NULL CHECK (from_session_seq >= 0),
  style_json TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (binding_key, from_session_seq)
);

-- The live card of a run in a conversation: where it is, and nothing that is not in the journal.
CREATE TABLE acp_delivery_card (
  binding_key TEXT COLLATE "C" NOT NULL REFERENCES acp_bindings (binding_key),
  run_id TEXT COLLATE "C" NOT NULL REFERENCES acp_runs (run_id),
  message_id TEXT COLLATE "C",
  number BIGINT NOT NULL CHECK (number >= 0),
  through_session_seq BIGINT NOT NULL CHECK (through_session_seq >= 0),
  posted_at BIGINT,
  tries BIGINT NOT NULL DEFAULT 0 CHECK (tries >= 0),
  folded BIGINT NOT NULL CHECK (folded IN (0, 1)),
  updated_at BIGINT NOT NULL,
  PRIMARY KEY (binding_key, run_id)
);

CREATE INDEX acp_delivery_card_open ON acp_delivery_card (binding_key) WHERE folded = 0;

-- persona_at: when a part was last given to the channel under an agent's name, where no nonce names it.
CREATE TABLE acp_delivery_part (
  part_id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  binding_key TEXT COLLATE "C" NOT NULL REFERENCES acp_bindings (binding_key),
  session_key TEXT COLLATE "C" NOT NULL REFERENCES acp_sessions (session_key),
  run_id TEXT COLLATE "C" REFERENCES acp_runs (run_id),
  session_seq BIGINT NOT NULL CHECK (session_seq > 0),
  part_no BIGINT NOT NULL CHECK (part_no >= 0),
  kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('final','notice','permission','error')),
  text TEXT COLLATE "C" NOT NULL,
  asks_json TEXT COLLATE "C",
  files_json TEXT COLLATE "C",
  tag TEXT COLLATE "C",
  print TEXT COLLATE "C" NOT NULL,
  nonce TEXT COLLATE "C" NOT NULL UNIQUE,
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('planned','sending','sent','uncertain','rejected')),
  message_id TEXT COLLATE "C",
  attempts BIGINT NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  persona_at BIGINT CHECK (persona_at IS NULL OR state <> 'planned'),
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  UNIQUE (binding_key, session_seq, part_no)
);

CREATE INDEX acp_delivery_part_sent ON acp_delivery_part (binding_key, updated_at, message_id)
  WHERE state = 'sent';
CREATE INDEX acp_delivery_part_pending ON acp_delivery_part (binding_key, session_seq, part_no)
WHERE state IN ('planned','sending','uncertain');
-- Whether a conversation has a text already (H12): the same text in other conversations is not read.
CREATE INDEX acp_delivery_part_said ON acp_delivery_part (print, binding_key);

-- Messages that have buttons: what those are about, so that they go once that is over.
CREATE TABLE acp_button_message (
  channel TEXT COLLATE "C" NOT NULL,
  account_id TEXT COLLATE "C" NOT NULL,
  conversation_id TEXT COLLATE "C" NOT NULL,
  message_id TEXT COLLATE "C" NOT NULL,
  session_key TEXT COLLATE "C" NOT NULL REFERENCES acp_sessions (session_key),
  about_json TEXT COLLATE "C" NOT NULL,
  kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('final','notice','permission','error')),
  text TEXT COLLATE "C" NOT NULL,
  tries BIGINT NOT NULL DEFAULT 0 CHECK (tries >= 0),
  tried_at BIGINT NOT NULL DEFAULT 0 CHECK (tried_at >= 0),
  PRIMARY KEY (channel, account_id, conversation_id, message_id)
);

CREATE INDEX acp_button_message_of_session ON acp_button_message (session_key);

CREATE TABLE acp_idempotency (
  scope TEXT COLLATE "C" NOT NULL,
  idempotency_key TEXT COLLATE "C" NOT NULL,
  fingerprint TEXT COLLATE "C" NOT NULL,
  result_json TEXT COLLATE "C" NOT NULL,
  created_at BIGINT NOT NULL,
  PRIMARY KEY (scope, idempotency_key)
);

CREATE INDEX acp_idempotency_by_age ON acp_idempotency (created_at);

CREATE TABLE acp_inbox (
  channel TEXT COLLATE "C" NOT NULL,
  account_id TEXT COLLATE "C" NOT NULL,
  conversation_id TEXT COLLATE "C" NOT NULL,
  parent_conversation_id TEXT COLLATE "C",
  message_id TEXT COLLATE "C" NOT NULL,
  text TEXT COLLATE "C" NOT NULL,
  author TEXT COLLATE "C" NOT NULL,
  context_json TEXT COLLATE "C" NOT NULL,
  files_json TEXT COLLATE "C",
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('received','routed','refused')),
  outcome_json TEXT COLLATE "C",
  -- Its outcome was left to whoever brought it to tell.
  caller_tells BIGINT NOT NULL DEFAULT 0 CHECK (caller_tells IN (0,1)),
  created_at BIGINT NOT NULL,
  ord BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (channel, account_id, conversation_id, message_id)
);

CREATE INDEX acp_inbox_received ON acp_inbox (created_at) WHERE state = 'received';

-- A message that comes again uses no number.
CREATE FUNCTION acp_set_ord_of_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM acp_inbox WHERE (channel, account_id, conversation_id, message_id) =
    (NEW.channel, NEW.account_id, NEW.conversation_id, NEW.message_id)) THEN
    NEW.ord := acp_next_ord();
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER acp_inbox_ord BEFORE INSERT ON acp_inbox FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord_of_message();

-- What the gateway said itself, by the channel's ids: such a message that comes back in is an echo.
CREATE TABLE acp_said (
  channel TEXT COLLATE "C" NOT NULL,
  account_id TEXT COLLATE "C" NOT NULL,
  conversation_id TEXT COLLATE "C" NOT NULL,
  message_id TEXT COLLATE "C" NOT NULL,
  said_at BIGINT NOT NULL,
  PRIMARY KEY (channel, account_id, conversation_id, message_id)
);

CREATE INDEX acp_said_old ON acp_said (said_at);

CREATE TABLE acp_reply (
  nonce TEXT COLLATE "C" PRIMARY KEY,
  channel TEXT COLLATE "C" NOT NULL,
  account_id TEXT COLLATE "C" NOT NULL,
  conversation_id TEXT COLLATE "C" NOT NULL,
  tag TEXT COLLATE "C",
  print TEXT COLLATE "C" NOT NULL,
  message_id TEXT COLLATE "C",
  said_at BIGINT NOT NULL
);

CREATE INDEX acp_reply_of_conversation ON acp_reply (channel, account_id, conversation_id, said_at);
CREATE INDEX acp_reply_old ON acp_reply (said_at);

CREATE TABLE acp_leases (
  lease_id TEXT COLLATE "C" PRIMARY KEY,
  session_key TEXT COLLATE "C" NOT NULL REFERENCES acp_sessions (session_key),
  kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('agent','terminal')),
  spawn_json TEXT COLLATE "C" NOT NULL,
  usage TEXT COLLATE "C" NOT NULL CHECK (usage IN ('intended','open','ready','closing','ended')),
  stdout_offset BIGINT NOT NULL CHECK (stdout_offset >= 0),
  next_stdin_seq BIGINT NOT NULL CHECK (next_stdin_seq > 0),
  link_state TEXT COLLATE "C" NOT NULL,
  broken BIGINT NOT NULL DEFAULT 0 CHECK (broken IN (0, 1)),
  ord BIGINT NOT NULL DEFAULT 0,
  -- SHA-256 of the token of the agent; the token itself is not kept.
  agent_token TEXT COLLATE "C"
);

CREATE INDEX acp_leases_in_use ON acp_leases (session_key) WHERE usage <> 'ended';
-- Two agents of one session in one directory must not be (H5).
CREATE UNIQUE INDEX acp_leases_one_agent ON acp_leases (session_key) WHERE usage <> 'ended' AND kind = 'agent';
CREATE UNIQUE INDEX acp_leases_token ON acp_leases (agent_token) WHERE agent_token IS NOT NULL;

CREATE TRIGGER acp_leases_ended_is_final BEFORE UPDATE OF usage ON acp_leases FOR EACH ROW
WHEN (OLD.usage = 'ended' AND NEW.usage <> 'ended')
EXECUTE FUNCTION acp_refuse('an ended lease stays ended');

CREATE TRIGGER acp_leases_ord BEFORE INSERT ON acp_leases FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord();

-- offset is a reserved word of PostgreSQL.
CREATE TABLE acp_line_tail (
  lease_id TEXT COLLATE "C" NOT NULL REFERENCES acp_leases (lease_id),
  "offset" BIGINT NOT NULL CHECK ("offset" >= 0),
  bytes BYTEA NOT NULL,
  PRIMARY KEY (lease_id, "offset")
);

-- bytes is null once the message is in the pipe; its hash stays (H7).
CREATE TABLE acp_stdin_outbox (
  lease_id TEXT COLLATE "C" NOT NULL REFERENCES acp_leases (lease_id),
  seq BIGINT NOT NULL CHECK (seq > 0),
  bytes BYTEA,
  sha256 BYTEA NOT NULL CHECK (length(sha256) = 32),
  meaning_json TEXT COLLATE "C" NOT NULL,
  written BIGINT NOT NULL CHECK (written IN (0, 1)),
  created_at BIGINT NOT NULL,
  PRIMARY KEY (lease_id, seq),
  CHECK (written = 1 OR bytes IS NOT NULL)
);

CREATE TABLE acp_agent_request (
  lease_id TEXT COLLATE "C" NOT NULL REFERENCES acp_leases (lease_id),
  stdout_offset BIGINT NOT NULL CHECK (stdout_offset >= 0),
  session_key TEXT COLLATE "C" NOT NULL REFERENCES acp_sessions (session_key),
  ask_json TEXT COLLATE "C" NOT NULL,
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('received','started','answered')),
  intent TEXT COLLATE "C",
  created_at BIGINT NOT NULL,
  PRIMARY KEY (lease_id, stdout_offset)
);

CREATE TABLE acp_permission (
  lease_id TEXT COLLATE "C" NOT NULL REFERENCES acp_leases (lease_id),
  stdout_offset BIGINT NOT NULL CHECK (stdout_offset >= 0),
  session_key TEXT COLLATE "C" NOT NULL REFERENCES acp_sessions (session_key),
  ask_json TEXT COLLATE "C" NOT NULL,
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('pending','answered','expired')),
  option_id TEXT COLLATE "C",
  -- The name of a person, or else what settled it without one.
  settled_by TEXT COLLATE "C",
  settled_without TEXT COLLATE "C" CHECK (settled_without IN ('policy','deadline','cancel','turn ended','lease ended',
    'session closed','agent','nobody can be asked','adopted')),
  created_at BIGINT NOT NULL,
  deadline_at BIGINT,
  ord BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (lease_id, stdout_offset)
);

CREATE INDEX acp_permission_pending ON acp_permission (session_key) WHERE state = 'pending';

-- A permission is also put where it exists: then it keeps its number, and none is used.
CREATE FUNCTION acp_set_ord_of_permission() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM acp_permission
    WHERE lease_id = NEW.lease_id AND stdout_offset = NEW.stdout_offset) THEN
    NEW.ord := acp_next_ord();
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER acp_permission_ord BEFORE INSERT ON acp_permission FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord_of_permission();

-- revision grows with every change of a message: it is the cursor of whoever looks.
CREATE TABLE console_message (
  id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
  conversation_id TEXT COLLATE "C" NOT NULL,
  author TEXT COLLATE "C" NOT NULL,
  text TEXT COLLATE "C" NOT NULL,
  nonce TEXT COLLATE "C" NOT NULL UNIQUE,
  kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('person','final','notice','permission','error','card')),
  created_at BIGINT NOT NULL,
  session_key TEXT COLLATE "C" REFERENCES acp_sessions (session_key),
  run_id TEXT COLLATE "C" REFERENCES acp_runs (run_id),
  revision BIGINT NOT NULL UNIQUE
);

CREATE INDEX console_message_of_conversation ON console_message (conversation_id, revision);

-- Tokens of the API. digest is the SHA-256 of a token's random bytes; the token itself is nowhere.
CREATE TABLE acp_tokens (
  token_id TEXT COLLATE "C" PRIMARY KEY,
  name TEXT COLLATE "C" NOT NULL,
  digest TEXT COLLATE "C" NOT NULL UNIQUE,
  scope TEXT COLLATE "C" NOT NULL CHECK (scope IN ('read','prompt','approve','admin')),
  agents_json TEXT COLLATE "C" NOT NULL,
  idempotency_key TEXT COLLATE "C" NOT NULL UNIQUE,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  revoked_at BIGINT
);

CREATE UNIQUE INDEX acp_tokens_name ON acp_tokens (name) WHERE revoked_at IS NULL;

-- How far the journal was sent to each webhook of [[notify]]. A row stays when its target leaves the configuration.
CREATE TABLE acp_webhook (
  name TEXT COLLATE "C" PRIMARY KEY,
  last_event_id BIGINT NOT NULL CHECK (last_event_id >= 0),
  updated_at BIGINT NOT NULL
);

-- Names of sessions in the contract of acpx. A name is unique among the open sessions of an agent and a directory; the
-- session without a name has the empty one.
CREATE TABLE acp_acpx_names (
  session_key TEXT COLLATE "C" PRIMARY KEY REFERENCES acp_sessions (session_key) ON DELETE CASCADE,
  agent TEXT COLLATE "C" NOT NULL,
  cwd TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  is_open BIGINT NOT NULL DEFAULT 1 CHECK (is_open IN (0, 1)),
  ord BIGINT NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX acp_acpx_names_open ON acp_acpx_names (agent, cwd, name) WHERE is_open = 1;

CREATE FUNCTION acp_close_acpx_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE acp_acpx_names SET is_open = 0 WHERE session_key = NEW.session_key;
  RETURN NULL;
END $$;

CREATE TRIGGER acp_acpx_names_end AFTER UPDATE OF state ON acp_sessions FOR EACH ROW WHEN (NEW.state = 'closed')
EXECUTE FUNCTION acp_close_acpx_name();

CREATE TRIGGER acp_acpx_names_ord BEFORE INSERT ON acp_acpx_names FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord();

-- Completions of spawned sessions: the end of a session's first run, for the session that spawned it. awaited: the run has
-- not ended. due: the requester gets it. bound: a conversation of the session shows it. delivered: it is a prompt of the
-- requester. taken: the requester read it while it waited. dropped: the requester is closed.
CREATE TABLE acp_completions (
  run_id TEXT COLLATE "C" PRIMARY KEY REFERENCES acp_runs (run_id),
  requester_session_key TEXT COLLATE "C" NOT NULL,
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('awaited','due','bound','delivered','taken','dropped')),
  reason TEXT COLLATE "C" NOT NULL,
  updated_at BIGINT NOT NULL,
  ord BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX acp_completions_due ON acp_completions (updated_at) WHERE state = 'due';

CREATE TRIGGER acp_completions_ord BEFORE INSERT ON acp_completions FOR EACH ROW WHEN (NEW.ord = 0)
EXECUTE FUNCTION acp_set_ord();
