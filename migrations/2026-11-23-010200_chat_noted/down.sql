ALTER TABLE chats RENAME COLUMN noted TO memories;
