-- Tokens of the API. digest is the SHA-256 of a token's random bytes; the token itself is nowhere.
CREATE TABLE acp_tokens (
  token_id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  digest TEXT NOT NULL UNIQUE,
  scope TEXT NOT NULL CHECK (scope IN ('read','prompt','approve','admin')),
  agents_json TEXT NOT NULL,
  idempotency_key TEXT NOT NULL UNIQUE,
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  revoked_at INTEGER
) STRICT;

CREATE UNIQUE INDEX acp_tokens_name ON acp_tokens (name) WHERE revoked_at IS NULL;
