-- Rates that processes share (GCRA): until when a bucket is used up, in microseconds of the epoch. After a
-- crash of the database every bucket is full again, which is what unlogged means.
CREATE UNLOGGED TABLE rate_buckets (
    name text PRIMARY KEY,
    used_until_us bigint NOT NULL
);
CREATE INDEX rate_buckets_age ON rate_buckets (used_until_us);
