ALTER TABLE chats SET (fillfactor = 80);
CREATE INDEX chats_output_tokens ON chats (account_id, archived, output_tokens);
CREATE INDEX chats_input_tokens ON chats (account_id, archived, input_tokens);
