ALTER TABLE message_files DROP COLUMN text;
