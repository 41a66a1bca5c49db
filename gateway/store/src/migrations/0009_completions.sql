-- Completions of spawned sessions: the end of a session's first run, for the session that spawned it. awaited: the run has
-- not ended. due: the requester gets it. bound: a conversation of the session shows it. delivered: it is a prompt of the
-- requester. taken: the requester read it while it waited. dropped: the requester is closed.
CREATE TABLE acp_completions (
  run_id TEXT PRIMARY KEY REFERENCES acp_runs (run_id),
  requester_session_key TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('awaited','due','bound','delivered','taken','dropped')),
  reason TEXT NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX acp_completions_due ON acp_completions (updated_at) WHERE state = 'due';

