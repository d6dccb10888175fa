ALTER TABLE documents DROP COLUMN unread;
