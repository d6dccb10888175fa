CREATE TRIGGER projects_told AFTER INSERT OR UPDATE OR DELETE ON projects
    FOR EACH ROW EXECUTE FUNCTION tell_change('project');
CREATE TRIGGER project_members_told AFTER INSERT OR UPDATE OR DELETE ON project_members
    FOR EACH ROW EXECUTE FUNCTION tell_change('project');
