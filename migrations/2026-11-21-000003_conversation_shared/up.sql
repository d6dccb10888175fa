-- Messages are of chats and threads from now on: a conversation is the id of a chat, or `thread:` and the id
-- of a thread, which no chat can be called. Whoever owns a conversation deletes what was said in it.
ALTER TABLE messages RENAME COLUMN chat_uid TO conversation;
ALTER TABLE queued_messages RENAME COLUMN chat_uid TO conversation;
ALTER TABLE queued_messages DROP CONSTRAINT queued_messages_account_id_chat_uid_fkey;
ALTER TABLE message_files RENAME COLUMN chat_uid TO conversation;
ALTER TABLE message_files DROP CONSTRAINT message_files_account_id_chat_uid_fkey;
ALTER TABLE chat_feedback RENAME TO message_feedback;
ALTER TABLE message_feedback RENAME COLUMN chat_uid TO conversation;
ALTER TABLE message_feedback DROP CONSTRAINT chat_feedback_account_id_chat_uid_fkey;
