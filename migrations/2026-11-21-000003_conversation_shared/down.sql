DELETE FROM messages WHERE conversation LIKE 'thread:%';
DELETE FROM queued_messages WHERE conversation LIKE 'thread:%';
DELETE FROM message_files WHERE conversation LIKE 'thread:%';
DELETE FROM message_feedback WHERE conversation LIKE 'thread:%';
ALTER TABLE message_feedback RENAME COLUMN conversation TO chat_uid;
ALTER TABLE message_feedback RENAME TO chat_feedback;
ALTER TABLE chat_feedback ADD CONSTRAINT chat_feedback_account_id_chat_uid_fkey
    FOREIGN KEY (account_id, chat_uid) REFERENCES chats ON DELETE CASCADE;
ALTER TABLE message_files RENAME COLUMN conversation TO chat_uid;
ALTER TABLE message_files ADD CONSTRAINT message_files_account_id_chat_uid_fkey
    FOREIGN KEY (account_id, chat_uid) REFERENCES chats ON DELETE CASCADE;
ALTER TABLE queued_messages RENAME COLUMN conversation TO chat_uid;
ALTER TABLE queued_messages ADD CONSTRAINT queued_messages_account_id_chat_uid_fkey
    FOREIGN KEY (account_id, chat_uid) REFERENCES chats ON DELETE CASCADE;
ALTER TABLE messages RENAME COLUMN conversation TO chat_uid;
