-- Order of insertion as a column, the rest of a notification in the journal, and indexes for the sessions in use.

-- Columns named ord are the order of insertion over all tables; acp_ord has one row, the last number.
CREATE TABLE acp_ord (
  last INTEGER NOT NULL
) STRICT;

-- payload_json is the update of a session/update notification, extra_json the members of its params other than
-- sessionId and update.
ALTER TABLE acp_events ADD COLUMN extra_json TEXT;

ALTER TABLE acp_sessions ADD COLUMN ord INTEGER NOT NULL DEFAULT 0;
UPDATE acp_sessions SET ord = rowid;
ALTER TABLE acp_runs ADD COLUMN ord INTEGER NOT NULL DEFAULT 0;
UPDATE acp_runs SET ord = rowid;
ALTER TABLE acp_bindings ADD COLUMN ord INTEGER NOT NULL DEFAULT 0;
UPDATE acp_bindings SET ord = rowid;
ALTER TABLE acp_leases ADD COLUMN ord INTEGER NOT NULL DEFAULT 0;
UPDATE acp_leases SET ord = rowid;
ALTER TABLE acp_permission ADD COLUMN ord INTEGER NOT NULL DEFAULT 0;
UPDATE acp_permission SET ord = rowid;
ALTER TABLE acp_inbox ADD COLUMN ord INTEGER NOT NULL DEFAULT 0;
UPDATE acp_inbox SET ord = rowid;

INSERT INTO acp_ord SELECT max(ord) FROM (SELECT 0 AS ord UNION ALL SELECT max(ord) FROM acp_sessions
  UNION ALL SELECT max(ord) FROM acp_runs
  UNION ALL SELECT max(ord) FROM acp_bindings
  UNION ALL SELECT max(ord) FROM acp_leases
  UNION ALL SELECT max(ord) FROM acp_permission
  UNION ALL SELECT max(ord) FROM acp_inbox);

CREATE INDEX acp_sessions_working ON acp_sessions (session_key) WHERE state IN ('creating','running','cancelling');
DROP INDEX acp_runs_of_session;
CREATE INDEX acp_runs_of_session ON acp_runs (session_key, ord);
DROP INDEX acp_runs_unfinished;
CREATE INDEX acp_runs_unfinished ON acp_runs (session_key, ord) WHERE state IN ('queued','running');
CREATE INDEX acp_bindings_first ON acp_bindings (session_key, ord);

CREATE TRIGGER acp_sessions_ord AFTER INSERT ON acp_sessions
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_sessions SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER acp_runs_ord AFTER INSERT ON acp_runs
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_runs SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER acp_bindings_ord AFTER INSERT ON acp_bindings
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_bindings SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER acp_leases_ord AFTER INSERT ON acp_leases
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_leases SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER acp_permission_ord AFTER INSERT ON acp_permission
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_permission SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;

CREATE TRIGGER acp_inbox_ord AFTER INSERT ON acp_inbox
BEGIN
  UPDATE acp_ord SET last = last + 1;
  UPDATE acp_inbox SET ord = (SELECT last FROM acp_ord) WHERE rowid = NEW.rowid;
END;
