-- What a transcript took, in billionths of a dollar, until it is counted for the chat that it is said in first.
ALTER TABLE transcripts ADD COLUMN uncharged bigint;
