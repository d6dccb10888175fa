-- The end of a turn changes what these indexes hold, and a change of one has an entry written in every index of the row:
-- a filter that is rare cost every turn a fifth. It reads the chats of the account now.
DROP INDEX chats_input_tokens;
DROP INDEX chats_output_tokens;
-- Room for the end of a turn on the page of its beginning.
ALTER TABLE chats SET (fillfactor = 60);
