DROP TABLE chat_feedback; DROP TABLE messages; DROP TABLE chats;
