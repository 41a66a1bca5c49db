-- What must hold in a control plane's database, whatever happened to the gateway (design §6, I1 to I8, as far as a
-- database alone shows them). The one list: `store check`, the simulation and the tests of the system read it.
--
-- A rule is a line `-- NAME: what must hold`, then a query that finds what breaks it, as one text each.

-- I1: every active binding references a session that is not closed
SELECT b.binding_key FROM acp_bindings b LEFT JOIN acp_sessions s USING (session_key) WHERE b.status IN
('pending','active','parked') AND (s.state IS NULL OR s.state = 'closed');

-- I1: a conversation is bound to one session at most
SELECT channel || ' ' || account_id || ' ' || thread_id FROM acp_bindings WHERE status IN
('active','parked') GROUP BY channel, account_id, thread_id HAVING count(*) > 1;

-- I2: at most one turn of a session runs
SELECT session_key FROM acp_runs WHERE state = 'running' AND mode = 'prompt' GROUP BY session_key HAVING
count(*) > 1;

-- I2: a session at work has a running run
SELECT session_key FROM acp_sessions s WHERE state IN ('running','cancelling') AND NOT EXISTS
(SELECT 1 FROM acp_runs r WHERE r.session_key = s.session_key AND r.state = 'running');

-- I2: no run of a closed session is unfinished
SELECT r.run_id FROM acp_runs r JOIN acp_sessions s USING (session_key) WHERE r.state IN ('queued','running')
AND s.state = 'closed';

-- I3: the numbers of a session's journal have no gap behind the pruned rows
SELECT e.session_key || ': ' || count(*) || ' rows up to ' || max(e.session_seq) FROM acp_events e JOIN acp_sessions s
USING (session_key) WHERE e.session_seq > s.pruned_seq GROUP BY e.session_key, s.pruned_seq HAVING
count(*) <> max(e.session_seq) - s.pruned_seq OR min(e.session_seq) <> s.pruned_seq + 1;

-- I3: the numbers of a run's journal have no gap
SELECT e.run_id || ': ' || count(*) || ' rows up to ' || max(e.seq) FROM acp_events e JOIN acp_runs r USING (run_id)
WHERE r.pruned = 0 GROUP BY e.run_id HAVING count(*) <> max(e.seq) OR min(e.seq) <> 1;

-- I3: a run is pruned as a whole
SELECT DISTINCT r.run_id FROM acp_sessions s CROSS JOIN acp_events e ON e.session_key = s.session_key CROSS JOIN acp_runs
r ON r.run_id = e.run_id WHERE s.pruned_seq > 0 AND CASE WHEN e.session_seq > s.pruned_seq THEN 1 ELSE 0
END = r.pruned;

-- I3: only an ended run of a session with pruned rows is pruned
SELECT r.run_id FROM acp_runs r JOIN acp_sessions s USING (session_key) WHERE r.pruned = 1 AND (s.pruned_seq = 0 OR
r.state IN ('queued','running'));

-- I3: a run's rows are in the order of the session's
SELECT a.run_id FROM acp_events a JOIN acp_events b ON b.run_id = a.run_id AND b.seq = a.seq + 1 WHERE
b.session_seq <= a.session_seq;

-- I3: a session records the number of its last row
SELECT session_key FROM acp_sessions s WHERE last_session_seq <> (SELECT coalesce(max(session_seq), 0) FROM
acp_events e WHERE e.session_key = s.session_key);

-- I3: a run records the number of its last row
SELECT run_id FROM acp_runs r WHERE pruned = 0 AND last_seq <> (SELECT coalesce(max(seq), 0) FROM acp_events e WHERE
e.run_id = r.run_id);

-- I4: no run is delivered further than its journal goes
SELECT run_id FROM acp_delivery_checkpoint c JOIN acp_runs r USING (run_id) WHERE c.last_event_seq > r.last_seq;

-- I4: no conversation is delivered further than its session's journal goes
SELECT c.binding_key FROM acp_binding_checkpoint c JOIN acp_bindings b USING (binding_key) WHERE
c.last_session_seq > (SELECT coalesce(max(session_seq), 0) FROM acp_events e WHERE e.session_key =
b.session_key);

-- I4: no row is pruned that a conversation has not got
SELECT b.binding_key FROM acp_bindings b JOIN acp_sessions s USING (session_key) LEFT JOIN acp_binding_checkpoint c
USING (binding_key) WHERE b.status <> 'ended' AND s.pruned_seq > coalesce(c.last_session_seq, 0);

-- I5: an idempotency key has at most one run of a session
SELECT session_key || ' ' || idempotency_key FROM acp_runs GROUP BY session_key, idempotency_key HAVING
count(*) > 1;

-- I6: an ended run has one end in the journal, and a run that has not ended has none
SELECT r.run_id || ' ' || r.state FROM acp_runs r WHERE r.pruned = 0 AND (SELECT count(*) FROM acp_events e WHERE e.run_id =
r.run_id AND e.kind IN ('done','error')) <> CASE WHEN r.state IN ('completed','failed','cancelled') THEN 1 ELSE 0 END;

-- I7: every planned part of a conversation has a row in its session's journal, until it is settled and the row pruned
SELECT p.nonce FROM acp_delivery_part p JOIN acp_sessions s USING (session_key) WHERE (p.session_seq > s.pruned_seq OR
p.state IN ('planned','sending')) AND NOT EXISTS (SELECT 1 FROM acp_events e WHERE e.session_key = p.session_key AND
e.session_seq = p.session_seq AND e.session_seq > s.pruned_seq);

-- I7: no part before a conversation's checkpoint is pending, except notices of earlier versions about messages
SELECT p.nonce FROM acp_delivery_part p JOIN acp_binding_checkpoint c USING (binding_key) WHERE p.state IN
('planned','sending') AND p.session_seq < c.last_session_seq AND p.part_no < 200000;

-- I8: the lease that a session names is its own and has not ended
SELECT s.session_key FROM acp_sessions s LEFT JOIN acp_leases l USING (lease_id) WHERE s.lease_id IS NOT NULL
AND (l.lease_id IS NULL OR l.usage = 'ended' OR l.session_key <> s.session_key);
