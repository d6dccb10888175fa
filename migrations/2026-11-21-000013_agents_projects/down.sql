DROP INDEX agents_project;
ALTER TABLE threads ADD COLUMN project_id text;
