-- How far the journal was sent to each webhook of [[notify]]. A row stays when its target leaves the configuration.

CREATE TABLE acp_webhook (
  name TEXT PRIMARY KEY,
  last_event_id INTEGER NOT NULL CHECK (last_event_id >= 0),
  updated_at INTEGER NOT NULL
) STRICT;
