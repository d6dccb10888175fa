ALTER TABLE transcripts DROP COLUMN uncharged;
