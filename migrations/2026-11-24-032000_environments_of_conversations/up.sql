CREATE INDEX sandbox_sessions_of_conversation ON sandbox_sessions (account_id, conversation_id) WHERE conversation_id IS NOT NULL;
