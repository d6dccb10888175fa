-- Whose keys there are, the newest first: an account keeps so many.
ALTER TABLE idempotency ADD COLUMN account text NOT NULL DEFAULT '';
CREATE INDEX idempotency_account ON idempotency (account, created_at DESC);
