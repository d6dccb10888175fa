DROP FUNCTION settle_usage(jsonb);
DROP FUNCTION reserve_usage(jsonb, boolean);
DROP FUNCTION lock_usage(text, text);
DROP FUNCTION usage_start(text, integer, bigint);
DROP FUNCTION usage_window(text, integer, timestamptz);
DROP FUNCTION usage_clock();
DROP TABLE tenant_audit, tenant_costs, usage_history, usage_crossings, usage_reservations, usage_counters, subtenants,
    tenants, tiers;
