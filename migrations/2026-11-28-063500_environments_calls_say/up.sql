-- What a command says while another process waits for its end, sealed, until that has heard it.
ALTER TABLE sandbox_calls ADD COLUMN said text[] NOT NULL DEFAULT '{}';
