-- How often models loaded a skill, which is a document or a folder.
CREATE TABLE skill_reads (
    account_id text NOT NULL,
    skill_id text NOT NULL,
    read_count bigint NOT NULL,
    last_read_ms bigint NOT NULL,
    PRIMARY KEY (account_id, skill_id)
);

-- Who has a copy of a skill where: one row for each caller and scope.
CREATE TABLE skill_installs (
    account_id text NOT NULL,
    skill_id text NOT NULL,
    caller text NOT NULL,
    scope text NOT NULL CHECK (scope IN ('project', 'global')),
    agents jsonb NOT NULL,
    cli_version text,
    installed_ms bigint NOT NULL,
    PRIMARY KEY (account_id, skill_id, caller, scope)
);
