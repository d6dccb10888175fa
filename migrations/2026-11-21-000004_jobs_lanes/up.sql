-- Runs that share limits: how many are worked at once, how many begin in a window of time.
CREATE TABLE lanes (
    account_id text NOT NULL,
    id text PRIMARY KEY,
    most_running integer NOT NULL,
    -- Null = as many as there are.
    most_starts integer,
    interval_ms bigint NOT NULL,
    -- Nothing is taken from it.
    closed boolean NOT NULL,
    -- The window in which a run began last, counted from the epoch, and how many began in it.
    window_no bigint NOT NULL DEFAULT 0,
    starts integer NOT NULL DEFAULT 0,
    -- Lanes are served in turn: the one that was served longest ago comes first.
    served bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE SEQUENCE lane_turns;

ALTER TABLE runs
    ADD COLUMN lane text,
    -- Its first lease counts as a start of its lane.
    ADD COLUMN opens boolean NOT NULL DEFAULT false;
-- What is due beside the lanes, and what was lost by a worker.
CREATE INDEX runs_beside ON runs (due) WHERE lane IS NULL OR owner IS NOT NULL;
CREATE INDEX runs_waiting ON runs (lane, due) WHERE lane IS NOT NULL AND owner IS NULL;
CREATE INDEX runs_running ON runs (lane) WHERE lane IS NOT NULL AND owner IS NOT NULL;
