-- What was there before does not come back; what is there fits the older type, too.
SELECT 1;
