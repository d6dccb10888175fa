DROP FUNCTION add_memories;
ALTER TABLE chats DROP COLUMN memories;
