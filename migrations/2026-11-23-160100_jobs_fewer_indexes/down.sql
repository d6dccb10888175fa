CREATE INDEX runs_due ON runs (due);
