DROP INDEX idempotency_account;
ALTER TABLE idempotency DROP COLUMN account;
