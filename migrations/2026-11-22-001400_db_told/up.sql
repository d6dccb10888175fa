-- Says to every process, with the commit of a change, that what it remembers of a topic may be stale: who commits may
-- die before it can say so itself. The topic is the argument of the trigger.
CREATE FUNCTION tell_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('platform', TG_ARGV[0] || ':');
    RETURN NULL;
END $$;
