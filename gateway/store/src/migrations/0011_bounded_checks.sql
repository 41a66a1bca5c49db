-- Indexes of the checks that are repeated whatever happens: timeouts, delivery to all conversations, lists and counts.

-- Earliest timeout of a binding; the largest number without one. A timeout of 0 is off.
ALTER TABLE acp_bindings ADD COLUMN deadline INTEGER GENERATED ALWAYS AS (
  min(coalesce(last_activity_at + nullif(idle_ms, 0), 9223372036854775807),
      coalesce(bound_at + nullif(max_age_ms, 0), 9223372036854775807))) VIRTUAL;
CREATE INDEX acp_bindings_deadline ON acp_bindings (deadline)
WHERE status IN ('active','parked') AND (idle_ms > 0 OR max_age_ms > 0);

DROP INDEX acp_bindings_living;
CREATE INDEX acp_bindings_living ON acp_bindings (status, ord) WHERE status IN ('pending','active','ending');

-- With the state, so that open sessions are counted without their rows. A turn changes last_activity_at as well.
DROP INDEX acp_sessions_open;
CREATE INDEX acp_sessions_open ON acp_sessions (last_activity_at, state) WHERE state <> 'closed';
-- Pages in the order of creation.
CREATE INDEX acp_sessions_ord ON acp_sessions (ord);

-- Conversations of agents that open sessions continue.
CREATE INDEX acp_sessions_continued ON acp_sessions (agent_session_id)
WHERE state <> 'closed' AND agent_session_id IS NOT NULL;

-- Whether a conversation has a text already (H12): the same text in other conversations is not read.
DROP INDEX acp_delivery_part_said;
CREATE INDEX acp_delivery_part_said ON acp_delivery_part (print, binding_key);
