-- Progress of gateways of protocol 2, by which a database that went back in time is told.
ALTER TABLE homes ADD COLUMN start_id TEXT;
ALTER TABLE homes ADD COLUMN event_id INTEGER NOT NULL DEFAULT 0;
ALTER TABLE homes ADD COLUMN loss_accepted_ms INTEGER;
