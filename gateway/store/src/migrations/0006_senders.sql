-- Identity of the sender of each run, for questions that only the sender may answer; empty if unknown.
ALTER TABLE acp_runs ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';
