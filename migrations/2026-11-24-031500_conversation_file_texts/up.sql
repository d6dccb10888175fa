-- What a file says whose bytes are no text, for models that do not read it themselves.
ALTER TABLE message_files ADD COLUMN text text;
