-- Log-ins that last: what a browser holds after its user logged in, and links that log in once.
CREATE TABLE log_ins (
    -- SHA-256 of the value.
    digest text PRIMARY KEY,
    account_id text NOT NULL REFERENCES accounts ON DELETE CASCADE,
    user_id text NOT NULL REFERENCES users ON DELETE CASCADE,
    is_link boolean NOT NULL,
    expires_ms bigint NOT NULL
);
CREATE INDEX log_ins_of_user ON log_ins (user_id);
CREATE INDEX log_ins_end ON log_ins (expires_ms);
