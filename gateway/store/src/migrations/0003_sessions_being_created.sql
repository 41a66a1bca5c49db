-- A session at work has an unfinished run, which has an index: only sessions that are being created need one of their
-- own, so that no turn changes it.
DROP INDEX acp_sessions_working;
CREATE INDEX acp_sessions_creating ON acp_sessions (session_key) WHERE state = 'creating';
