-- What was noted wrongly stays right.
SELECT 1;
