CREATE TABLE tiers (
    account_id text NOT NULL,
    tier_id text NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    -- [{ruleId, scope, subtenantId, metric, windowUnit, windowEvery, limit, enabled}]
    rules jsonb NOT NULL,
    excluded_assistants text[] NOT NULL,
    excluded_agents text[] NOT NULL,
    is_default boolean NOT NULL,
    version bigint NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, tier_id)
);
CREATE UNIQUE INDEX tiers_default ON tiers (account_id) WHERE is_default;

CREATE TABLE tenants (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    id text NOT NULL,
    display_name text NOT NULL DEFAULT '',
    email text NOT NULL DEFAULT '',
    image_url text NOT NULL DEFAULT '',
    domain text NOT NULL DEFAULT '',
    -- Names of fields that automatic data no longer changes.
    pinned text[] NOT NULL DEFAULT '{}',
    source text NOT NULL CHECK (source IN ('auto', 'manual', 'api')),
    tier_id text,
    -- Rules of this tenant alone, as those of tiers.
    rules jsonb NOT NULL DEFAULT '[]',
    metadata jsonb NOT NULL DEFAULT '{}',
    first_seen_ms bigint NOT NULL,
    last_seen_ms bigint NOT NULL,
    PRIMARY KEY (account_id, tenant_id),
    FOREIGN KEY (account_id, tier_id) REFERENCES tiers
);
CREATE INDEX tenants_newest ON tenants (account_id, first_seen_ms DESC, id DESC);
CREATE INDEX tenants_tier ON tenants (account_id, tier_id) WHERE tier_id IS NOT NULL;

CREATE TABLE subtenants (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    id text NOT NULL,
    display_name text NOT NULL DEFAULT '',
    email text NOT NULL DEFAULT '',
    image_url text NOT NULL DEFAULT '',
    pinned text[] NOT NULL DEFAULT '{}',
    source text NOT NULL CHECK (source IN ('auto', 'manual', 'api')),
    tier_id text,
    first_seen_ms bigint NOT NULL,
    last_seen_ms bigint NOT NULL,
    PRIMARY KEY (account_id, tenant_id, subtenant_id),
    FOREIGN KEY (account_id, tenant_id) REFERENCES tenants ON DELETE CASCADE,
    FOREIGN KEY (account_id, tier_id) REFERENCES tiers
);
CREATE INDEX subtenants_newest ON subtenants (account_id, tenant_id, first_seen_ms DESC, id DESC);
CREATE INDEX subtenants_tier ON subtenants (account_id, tier_id) WHERE tier_id IS NOT NULL;

-- What a tenant ('' as subtenant) or one of its end users took in a window. Tokens, or nano-dollars.
CREATE TABLE usage_counters (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    metric text NOT NULL CHECK (metric IN ('tokens', 'cost')),
    window_unit text NOT NULL CHECK (window_unit IN ('hour', 'day', 'week', 'month')),
    window_every integer NOT NULL,
    window_key bigint NOT NULL,
    consumed bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    exempt bigint NOT NULL DEFAULT 0,
    external bigint NOT NULL DEFAULT 0,
    -- The rule that counted last.
    rule_limit bigint NOT NULL,
    tier_id text,
    ends_ms bigint NOT NULL,
    captured boolean NOT NULL DEFAULT false,
    PRIMARY KEY (account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key)
) WITH (fillfactor = 50);
CREATE INDEX usage_counters_end ON usage_counters (ends_ms) WHERE NOT captured;

-- What calls under way may take; ends by itself after 15 minutes.
CREATE TABLE usage_reservations (
    id text PRIMARY KEY,
    -- [{account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key, amount}]
    holds jsonb NOT NULL,
    made_at timestamptz NOT NULL
);
CREATE INDEX usage_reservations_age ON usage_reservations (made_at);

-- Windows that came to 80 or 100 percent, to be told once.
CREATE TABLE usage_crossings (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    metric text NOT NULL,
    window_unit text NOT NULL,
    window_every integer NOT NULL,
    window_key bigint NOT NULL,
    percent integer NOT NULL,
    consumed bigint NOT NULL,
    rule_limit bigint NOT NULL,
    tier_id text,
    ends_ms bigint NOT NULL,
    told boolean NOT NULL DEFAULT false,
    PRIMARY KEY (account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key, percent)
);
CREATE INDEX usage_crossings_untold ON usage_crossings (account_id) WHERE NOT told;
CREATE INDEX usage_crossings_end ON usage_crossings (ends_ms);

-- Windows that have ended.
CREATE TABLE usage_history (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    metric text NOT NULL,
    window_unit text NOT NULL,
    window_every integer NOT NULL,
    window_key bigint NOT NULL,
    starts_ms bigint NOT NULL,
    ends_ms bigint NOT NULL,
    consumed bigint NOT NULL,
    exempt bigint NOT NULL,
    external bigint NOT NULL,
    rule_limit bigint NOT NULL,
    tier_id text,
    captured_ms bigint NOT NULL,
    PRIMARY KEY (account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key)
);
CREATE INDEX usage_history_newest ON usage_history (account_id, tenant_id, ends_ms DESC);

-- What tenants cost, by day: of models by assistant or agent, and what was added from outside by source.
CREATE TABLE tenant_costs (
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text NOT NULL,
    day date NOT NULL,
    kind text NOT NULL CHECK (kind IN ('assistant', 'agent', 'external')),
    spender text NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost bigint NOT NULL,
    secondary_tokens bigint NOT NULL,
    secondary_cost bigint NOT NULL,
    PRIMARY KEY (account_id, tenant_id, subtenant_id, day, kind, spender)
) WITH (fillfactor = 50);

CREATE TABLE tenant_audit (
    id text PRIMARY KEY,
    account_id text NOT NULL,
    tenant_id text NOT NULL,
    subtenant_id text,
    action text NOT NULL CHECK (action IN ('tier', 'reset', 'add_usage', 'limits')),
    body jsonb NOT NULL,
    user_uid text NOT NULL,
    created_ms bigint NOT NULL
);
CREATE INDEX tenant_audit_newest ON tenant_audit (account_id, tenant_id, created_ms DESC, id DESC);

-- The clock of all windows. Tests set another one.
CREATE FUNCTION usage_clock() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT now()';

-- Key of the window in which a moment lies: whole windows since 1970 in UTC, weeks from Monday.
CREATE FUNCTION usage_window(unit text, every integer, at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE unit
        WHEN 'hour' THEN floor(extract(epoch FROM at) / 3600)::bigint / every
        WHEN 'day' THEN floor(extract(epoch FROM at) / 86400)::bigint / every
        WHEN 'week' THEN (floor(extract(epoch FROM at) / 86400)::bigint + 3) / 7 / every
        ELSE ((extract(year FROM at AT TIME ZONE 'UTC') - 1970) * 12
            + extract(month FROM at AT TIME ZONE 'UTC') - 1)::bigint / every
    END
$$;

-- First millisecond of a window.
CREATE FUNCTION usage_start(unit text, every integer, key bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE unit
        WHEN 'hour' THEN key * every * 3600000
        WHEN 'day' THEN key * every * 86400000
        WHEN 'week' THEN (key * every * 7 - 3) * 86400000
        ELSE (extract(epoch FROM timestamp '1970-01-01' + make_interval(months => (key * every)::integer)) * 1000)::bigint
    END
$$;

-- One at a time counts for a tenant, until the end of its transaction.
CREATE FUNCTION lock_usage(account text, tenant text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(account || '/' || tenant, 0))
$$;

-- Reserves for each charge {n, id, account, tenant, tokens, cost, rules: [{subtenant, metric, unit, every, most, tier}]}
-- what it is expected to take, at most what is left. Gives those that have no room: {n, rule, current, resets}; with
-- `strict` it fails then, so that nothing is done for anybody.
CREATE FUNCTION reserve_usage(charges jsonb, strict boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    charge record;
    blocking record;
    refused jsonb := '[]';
    clock timestamptz := usage_clock();
BEGIN
    FOR charge IN
        SELECT * FROM jsonb_to_recordset(charges) AS c(
            n integer, id text, account text, tenant text, tokens bigint, cost bigint, rules jsonb)
        ORDER BY account, tenant, n
    LOOP
        PERFORM lock_usage(charge.account, charge.tenant);
        FOR pass IN 1..2 LOOP
            SELECT count(*), bool_or(c.consumed + c.reserved >= r.most) AS is_full INTO blocking
            FROM jsonb_to_recordset(charge.rules) AS r(
                subtenant text, metric text, unit text, every integer, most bigint)
            JOIN usage_counters c ON c.account_id = charge.account AND c.tenant_id = charge.tenant
                AND c.subtenant_id = r.subtenant AND c.metric = r.metric AND c.window_unit = r.unit
                AND c.window_every = r.every AND c.window_key = usage_window(r.unit, r.every, clock);
            EXIT WHEN blocking.count = jsonb_array_length(charge.rules);
            INSERT INTO usage_counters (account_id, tenant_id, subtenant_id, metric, window_unit, window_every,
                window_key, rule_limit, tier_id, ends_ms)
            SELECT charge.account, charge.tenant, r.subtenant, r.metric, r.unit, r.every,
                usage_window(r.unit, r.every, clock), r.most, r.tier,
                usage_start(r.unit, r.every, usage_window(r.unit, r.every, clock) + 1)
            FROM jsonb_to_recordset(charge.rules) AS r(
                subtenant text, metric text, unit text, every integer, most bigint, tier text)
            ON CONFLICT DO NOTHING;
        END LOOP;
        IF blocking.is_full THEN
            SELECT r.rule - 1 AS rule, c.consumed, c.ends_ms INTO blocking
            FROM jsonb_array_elements(charge.rules) WITH ORDINALITY AS r(body, rule)
            JOIN usage_counters c ON c.account_id = charge.account AND c.tenant_id = charge.tenant
                AND c.subtenant_id = r.body ->> 'subtenant' AND c.metric = r.body ->> 'metric'
                AND c.window_unit = r.body ->> 'unit' AND c.window_every = (r.body ->> 'every')::integer
                AND c.window_key = usage_window(c.window_unit, c.window_every, clock)
            WHERE c.consumed + c.reserved >= (r.body ->> 'most')::bigint
            ORDER BY c.ends_ms DESC, r.rule LIMIT 1;
            refused := refused || jsonb_build_object('n', charge.n, 'rule', blocking.rule,
                'current', blocking.consumed, 'resets', blocking.ends_ms,
                'waits', ceil((blocking.ends_ms - extract(epoch FROM clock) * 1000) / 1000)::bigint);
            CONTINUE;
        END IF;
        WITH held AS (
            UPDATE usage_counters c SET rule_limit = r.most, tier_id = r.tier, reserved = c.reserved + r.amount
            FROM (
                SELECT r.*, usage_window(r.unit, r.every, clock) AS key, greatest(1, least(
                    CASE r.metric WHEN 'tokens' THEN charge.tokens ELSE charge.cost END,
                    r.most - k.consumed - k.reserved)) AS amount
                FROM jsonb_to_recordset(charge.rules) AS r(
                    subtenant text, metric text, unit text, every integer, most bigint, tier text)
                JOIN usage_counters k ON k.account_id = charge.account AND k.tenant_id = charge.tenant
                    AND k.subtenant_id = r.subtenant AND k.metric = r.metric AND k.window_unit = r.unit
                    AND k.window_every = r.every AND k.window_key = usage_window(r.unit, r.every, clock)
            ) AS r
            WHERE c.account_id = charge.account AND c.tenant_id = charge.tenant AND c.subtenant_id = r.subtenant
                AND c.metric = r.metric AND c.window_unit = r.unit AND c.window_every = r.every
                AND c.window_key = r.key
            RETURNING c.account_id, c.tenant_id, c.subtenant_id, c.metric, c.window_unit, c.window_every,
                c.window_key, r.amount
        )
        INSERT INTO usage_reservations (id, holds, made_at)
        SELECT charge.id, jsonb_agg(to_jsonb(held)), clock FROM held;
    END LOOP;
    IF strict AND refused <> '[]' THEN
        RAISE EXCEPTION 'USAGE_REFUSED' USING DETAIL = refused::text;
    END IF;
    RETURN refused;
END $$;

-- Writes down what calls took: {id, account, tenant, subtenant, kind, spender, input, output, cost, secondary, exempt,
-- external, rules}. It counts in the window of its reservation; without one, or when that has ended, in the one of now.
CREATE FUNCTION settle_usage(settlements jsonb) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    took record;
    held jsonb;
    clock timestamptz := usage_clock();
BEGIN
    FOR took IN
        SELECT * FROM jsonb_to_recordset(settlements) AS s(
            id text, account text, tenant text, subtenant text, kind text, spender text, input bigint, output bigint,
            cost bigint, secondary boolean, exempt boolean, external boolean, rules jsonb)
        ORDER BY account, tenant, id
    LOOP
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
        IF took.input + took.output > 0 OR took.cost > 0 THEN
            INSERT INTO tenant_costs AS t (account_id, tenant_id, subtenant_id, day, kind, spender, input_tokens,
                output_tokens, cost, secondary_tokens, secondary_cost)
            VALUES (took.account, took.tenant, took.subtenant, (clock AT TIME ZONE 'UTC')::date, took.kind,
                took.spender,
                CASE WHEN took.secondary THEN 0 ELSE took.input END, CASE WHEN took.secondary THEN 0 ELSE took.output END,
                CASE WHEN took.secondary THEN 0 ELSE took.cost END,
                CASE WHEN took.secondary THEN took.input + took.output ELSE 0 END,
                CASE WHEN took.secondary THEN took.cost ELSE 0 END)
            ON CONFLICT (account_id, tenant_id, subtenant_id, day, kind, spender) DO UPDATE SET
                input_tokens = least(9e18, t.input_tokens::numeric + excluded.input_tokens),
                output_tokens = t.output_tokens + excluded.output_tokens,
                cost = least(9e18, t.cost::numeric + excluded.cost),
                secondary_tokens = t.secondary_tokens + excluded.secondary_tokens,
                secondary_cost = t.secondary_cost + excluded.secondary_cost;
        END IF;
    END LOOP;
    RETURN jsonb_array_length(settlements);
END $$;
