-- A thread is in the project of its agent.
ALTER TABLE threads DROP COLUMN project_id;
CREATE INDEX agents_project ON agents (account_id, project_id) WHERE project_id IS NOT NULL;
