-- Of whoever enqueued it: W3C Trace Context, absent where nothing is traced.
ALTER TABLE runs ADD COLUMN trace text;
