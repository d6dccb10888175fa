ALTER TABLE assistants ADD COLUMN project_id text GENERATED ALWAYS AS (settings ->> 'projectId') STORED;
CREATE INDEX assistants_project ON assistants (account_id, project_id) WHERE project_id IS NOT NULL;
