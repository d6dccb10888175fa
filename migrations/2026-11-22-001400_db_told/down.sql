DROP FUNCTION tell_change();
