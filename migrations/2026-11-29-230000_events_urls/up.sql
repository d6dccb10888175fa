-- Whom an event is told to whose thread is gone, and with it what it said of that.
ALTER TABLE events ADD COLUMN urls text[];
