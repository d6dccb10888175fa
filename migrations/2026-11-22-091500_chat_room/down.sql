DROP FUNCTION has_room;
DROP FUNCTION json_bytes;
