DROP TABLE assistants;
