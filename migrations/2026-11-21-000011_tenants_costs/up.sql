-- What models cost, by day, for tenants and in projects; of tenants also what was added from outside, by source.
-- '' = no tenant, no end user, no project.
ALTER TABLE tenant_costs RENAME TO costs;
ALTER TABLE costs
    ADD COLUMN project_id text NOT NULL DEFAULT '',
    ADD COLUMN input_cached_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN input_cache_write_tokens bigint NOT NULL DEFAULT 0,
    ADD COLUMN reasoning_output_tokens bigint NOT NULL DEFAULT 0,
    DROP CONSTRAINT tenant_costs_pkey,
    ADD PRIMARY KEY (account_id, tenant_id, subtenant_id, project_id, day, kind, spender);
CREATE INDEX costs_project ON costs (account_id, project_id, day) WHERE project_id <> '';

-- Writes down what calls took: {id, account, tenant, subtenant, project, kind, spender, input, output, cached, written,
-- reasoning, cost, secondary, exempt, external, rules}. For a tenant it counts in the window of its reservation; without
-- one, or when that has ended, in the one of now.
CREATE OR REPLACE FUNCTION settle_usage(settlements jsonb) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    took record;
    held jsonb;
    clock timestamptz := usage_clock();
BEGIN
    FOR took IN
        SELECT * FROM jsonb_to_recordset(settlements) AS s(
            id text, account text, tenant text, subtenant text, project text, kind text, spender text, input bigint,
            output bigint, cached bigint, written bigint, reasoning bigint, cost bigint, secondary boolean,
            exempt boolean, external boolean, rules jsonb)
        -- Rows are locked in one order, whoever writes.
        ORDER BY account, tenant, subtenant, kind, spender, project, id
    LOOP
        IF took.tenant <> '' THEN
            PERFORM lock_usage(took.account, took.tenant);
            DELETE FROM usage_reservations WHERE id = took.id RETURNING holds INTO held;
            IF NOT FOUND THEN
                INSERT INTO usage_counters (account_id, tenant_id, subtenant_id, metric, window_unit, window_every,
                    window_key, rule_limit, tier_id, ends_ms)
                SELECT took.account, took.tenant, r.subtenant, r.metric, r.unit, r.every,
                    usage_window(r.unit, r.every, clock), r.most, r.tier,
                    usage_start(r.unit, r.every, usage_window(r.unit, r.every, clock) + 1)
                FROM jsonb_to_recordset(took.rules) AS r(
                    subtenant text, metric text, unit text, every integer, most bigint, tier text)
                ON CONFLICT (account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key)
                DO UPDATE SET rule_limit = excluded.rule_limit, tier_id = excluded.tier_id;
                SELECT jsonb_agg(jsonb_build_object('account_id', took.account, 'tenant_id', took.tenant,
                    'subtenant_id', r.subtenant, 'metric', r.metric, 'window_unit', r.unit, 'window_every', r.every,
                    'window_key', usage_window(r.unit, r.every, clock), 'amount', 0)) INTO held
                FROM jsonb_to_recordset(took.rules) AS r(subtenant text, metric text, unit text, every integer);
            END IF;
            WITH counted AS (
                UPDATE usage_counters c SET
                    reserved = greatest(0, c.reserved - h.amount),
                    -- What is beyond all limits stays within the type.
                    consumed = least(9e18, c.consumed::numeric + CASE WHEN took.exempt THEN 0 ELSE h.took END),
                    exempt = least(9e18, c.exempt::numeric + CASE WHEN took.exempt THEN h.took ELSE 0 END),
                    external = least(9e18, c.external::numeric + CASE WHEN took.external THEN h.took ELSE 0 END)
                FROM (
                    SELECT *, CASE metric WHEN 'tokens' THEN took.input + took.output ELSE took.cost END AS took
                    FROM jsonb_to_recordset(held) AS h(account_id text, tenant_id text, subtenant_id text, metric text,
                        window_unit text, window_every integer, window_key bigint, amount bigint)
                ) AS h
                WHERE c.account_id = h.account_id AND c.tenant_id = h.tenant_id AND c.subtenant_id = h.subtenant_id
                    AND c.metric = h.metric AND c.window_unit = h.window_unit AND c.window_every = h.window_every
                    AND c.window_key = h.window_key
                RETURNING c.*, h.took
            ), late AS (
                INSERT INTO usage_history (account_id, tenant_id, subtenant_id, metric, window_unit, window_every,
                    window_key, starts_ms, ends_ms, consumed, exempt, external, rule_limit, tier_id, captured_ms)
                SELECT account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key,
                    usage_start(window_unit, window_every, window_key), ends_ms, consumed, exempt, external, rule_limit,
                    tier_id, (extract(epoch FROM clock) * 1000)::bigint
                FROM counted WHERE captured AND (consumed > 0 OR exempt > 0)
                ON CONFLICT (account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key)
                DO UPDATE SET consumed = excluded.consumed, exempt = excluded.exempt, external = excluded.external
            )
            INSERT INTO usage_crossings (account_id, tenant_id, subtenant_id, metric, window_unit, window_every,
                window_key, percent, consumed, rule_limit, tier_id, ends_ms)
            SELECT c.account_id, c.tenant_id, c.subtenant_id, c.metric, c.window_unit, c.window_every, c.window_key,
                p.percent, c.consumed, c.rule_limit, c.tier_id, c.ends_ms
            FROM counted c CROSS JOIN (VALUES (80), (100)) AS p(percent)
            WHERE NOT took.exempt AND c.took > 0
                AND c.consumed::numeric * 100 >= c.rule_limit::numeric * p.percent
                AND (c.consumed - c.took)::numeric * 100 < c.rule_limit::numeric * p.percent
            ON CONFLICT DO NOTHING;
        END IF;
        IF took.input + took.output > 0 OR took.cost > 0 THEN
            INSERT INTO costs AS t (account_id, tenant_id, subtenant_id, project_id, day, kind, spender, input_tokens,
                output_tokens, input_cached_tokens, input_cache_write_tokens, reasoning_output_tokens, cost,
                secondary_tokens, secondary_cost)
            VALUES (took.account, took.tenant, took.subtenant, coalesce(took.project, ''),
                (clock AT TIME ZONE 'UTC')::date, took.kind, took.spender,
                CASE WHEN took.secondary THEN 0 ELSE took.input END, CASE WHEN took.secondary THEN 0 ELSE took.output END,
                CASE WHEN took.secondary THEN 0 ELSE coalesce(took.cached, 0) END,
                CASE WHEN took.secondary THEN 0 ELSE coalesce(took.written, 0) END,
                CASE WHEN took.secondary THEN 0 ELSE coalesce(took.reasoning, 0) END,
                CASE WHEN took.secondary THEN 0 ELSE took.cost END,
                CASE WHEN took.secondary THEN took.input + took.output ELSE 0 END,
                CASE WHEN took.secondary THEN took.cost ELSE 0 END)
            ON CONFLICT (account_id, tenant_id, subtenant_id, project_id, day, kind, spender) DO UPDATE SET
                input_tokens = least(9e18, t.input_tokens::numeric + excluded.input_tokens),
                output_tokens = t.output_tokens + excluded.output_tokens,
                input_cached_tokens = t.input_cached_tokens + excluded.input_cached_tokens,
                input_cache_write_tokens = t.input_cache_write_tokens + excluded.input_cache_write_tokens,
                reasoning_output_tokens = t.reasoning_output_tokens + excluded.reasoning_output_tokens,
                cost = least(9e18, t.cost::numeric + excluded.cost),
                secondary_tokens = t.secondary_tokens + excluded.secondary_tokens,
                secondary_cost = t.secondary_cost + excluded.secondary_cost;
        END IF;
    END LOOP;
    RETURN jsonb_array_length(settlements);
END $$;
