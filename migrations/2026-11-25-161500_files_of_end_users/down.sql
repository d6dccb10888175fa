DROP INDEX files_owner;
