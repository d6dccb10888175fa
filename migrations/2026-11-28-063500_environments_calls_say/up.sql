-- What a command says while another process listens, sealed, until that has heard it; and when that listened last.
ALTER TABLE sandbox_calls ADD COLUMN said text[] NOT NULL DEFAULT '{}', ADD COLUMN heard timestamptz NOT NULL DEFAULT now();
