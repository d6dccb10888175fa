ALTER TABLE assistants DROP COLUMN project_id;
