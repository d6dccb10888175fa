-- The text of its file could never be read. What somebody emptied is not read again.
ALTER TABLE documents ADD COLUMN unread boolean NOT NULL DEFAULT false;
UPDATE documents SET unread = true
WHERE size = 0 AND source_file_id IS NOT NULL AND current_version = 1 AND status <> 'ready';
