DROP FUNCTION settle_usage(jsonb);
ALTER FUNCTION count_usage(jsonb) RENAME TO settle_usage;
DROP TABLE usage_settled;
