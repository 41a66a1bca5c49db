-- Retention of the journal. pruned_seq is the number of the last row of a session that is gone: rows up to it may be
-- deleted, and count as deleted before they are. A run is pruned as a whole. The last row of a session stays.
ALTER TABLE acp_sessions ADD COLUMN pruned_seq INTEGER NOT NULL DEFAULT 0 CHECK (pruned_seq >= 0);
ALTER TABLE acp_runs ADD COLUMN pruned INTEGER NOT NULL DEFAULT 0 CHECK (pruned IN (0, 1));

DROP TRIGGER acp_events_never_deleted;
CREATE TRIGGER acp_events_deleted_if_pruned BEFORE DELETE ON acp_events
WHEN OLD.session_seq > coalesce((SELECT pruned_seq FROM acp_sessions WHERE session_key = OLD.session_key), 0)
BEGIN SELECT RAISE(ABORT, 'acp_events is append-only'); END;

CREATE TRIGGER acp_sessions_pruned_rises BEFORE UPDATE OF pruned_seq ON acp_sessions
WHEN NEW.pruned_seq < OLD.pruned_seq OR NEW.pruned_seq >= NEW.last_session_seq
BEGIN SELECT RAISE(ABORT, 'pruned rows stay pruned, and the last row stays'); END;

-- Oldest runs that are not pruned.
CREATE INDEX acp_runs_unpruned ON acp_runs (session_key, ord) WHERE pruned = 0;
