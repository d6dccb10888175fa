-- Emptied and written by whoever asks whether the database takes writes: its page is new each time.
CREATE TABLE write_probe (at timestamptz NOT NULL);
