DROP FUNCTION add_secondary;
DROP TABLE message_files;
DROP TABLE queued_messages;
ALTER TABLE chats DROP COLUMN named, DROP COLUMN queued, DROP COLUMN guardrails, DROP COLUMN compactions,
    DROP COLUMN secondary;
UPDATE chats SET status = 'error' WHERE status IN ('buffering', 'waiting_for_tool_response', 'handed_off');
ALTER TABLE chats DROP CONSTRAINT chats_status_check;
ALTER TABLE chats ADD CONSTRAINT chats_status_check
    CHECK (status IN ('processing', 'completed', 'error', 'limit_exceeded'));
