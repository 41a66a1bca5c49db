-- The root of each session's tree as its owner. The walk begins at the sessions that nothing spawned, so that rows in a
-- cycle and below a missing session are not reached: their owner is unknown, the empty text.
CREATE TEMP TABLE acp_above (session_key TEXT PRIMARY KEY, above TEXT) STRICT;
INSERT INTO acp_above SELECT session_key, CASE owner_session_key WHEN '' THEN '' ELSE
  coalesce(spawned_by, parent_session_key, nullif(owner_session_key, session_key)) END FROM acp_sessions;
CREATE INDEX acp_above_below ON acp_above (above);
CREATE TEMP TABLE acp_root (session_key TEXT PRIMARY KEY, root TEXT NOT NULL) STRICT;
INSERT INTO acp_root WITH RECURSIVE below (session_key, root) AS (
  SELECT session_key, session_key FROM acp_above WHERE above IS NULL
  UNION ALL
  SELECT a.session_key, below.root FROM below JOIN acp_above AS a ON a.above = below.session_key
) SELECT session_key, root FROM below;
UPDATE acp_sessions SET owner_session_key =
  coalesce((SELECT root FROM acp_root AS r WHERE r.session_key = acp_sessions.session_key), '');
DROP TABLE acp_root;
DROP TABLE acp_above;
