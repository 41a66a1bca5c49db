-- Names of sessions in the contract of acpx. A name is unique among the open sessions of an agent and a directory; the
-- session without a name has the empty one.
CREATE TABLE acp_acpx_names (
  session_key TEXT PRIMARY KEY REFERENCES acp_sessions (session_key) ON DELETE CASCADE,
  agent TEXT NOT NULL,
  cwd TEXT NOT NULL,
  name TEXT NOT NULL,
  is_open INTEGER NOT NULL DEFAULT 1 CHECK (is_open IN (0, 1))
) STRICT;

CREATE UNIQUE INDEX acp_acpx_names_open ON acp_acpx_names (agent, cwd, name) WHERE is_open = 1;

CREATE TRIGGER acp_acpx_names_end AFTER UPDATE OF state ON acp_sessions WHEN NEW.state = 'closed'
BEGIN
  UPDATE acp_acpx_names SET is_open = 0 WHERE session_key = NEW.session_key;
END;

-- Permission settings of a run alone; NULL takes the session's.
ALTER TABLE acp_runs ADD COLUMN permission TEXT
  CHECK (permission IN ('approve-all','approve-reads','deny-all','ask'));
ALTER TABLE acp_runs ADD COLUMN non_interactive TEXT CHECK (non_interactive IN ('deny','fail'));
