CREATE INDEX IF NOT EXISTS runs_due ON runs (due);
