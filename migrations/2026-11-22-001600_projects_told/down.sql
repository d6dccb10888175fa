DROP TRIGGER project_members_told ON project_members;
DROP TRIGGER projects_told ON projects;
