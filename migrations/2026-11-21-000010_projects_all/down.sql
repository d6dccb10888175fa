DROP TABLE project_members, projects;
