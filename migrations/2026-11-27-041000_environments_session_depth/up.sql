-- After how many triggers the run stands that started a machine: what is told of its end counts on from there.
ALTER TABLE sandbox_sessions ADD COLUMN depth smallint NOT NULL DEFAULT 0;
