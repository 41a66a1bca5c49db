-- Session tools. agent_token is the SHA-256 of the token of a lease's agent; the token itself is not kept.
ALTER TABLE acp_leases ADD COLUMN agent_token TEXT;
CREATE UNIQUE INDEX acp_leases_token ON acp_leases (agent_token) WHERE agent_token IS NOT NULL;

-- Number of runs before a run in a chain of messages between sessions.
ALTER TABLE acp_runs ADD COLUMN chain INTEGER NOT NULL DEFAULT 0;

CREATE INDEX acp_sessions_children ON acp_sessions (spawned_by) WHERE spawned_by IS NOT NULL AND state <> 'closed';
