-- Calls that were counted a short while ago: when the answer to a commit is lost, whoever settles them again counts
-- nothing twice.
CREATE TABLE usage_settled (
    id text PRIMARY KEY,
    settled_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX usage_settled_age ON usage_settled (settled_at);

ALTER FUNCTION settle_usage(jsonb) RENAME TO count_usage;

-- Counts what calls took, each once.
CREATE FUNCTION settle_usage(settlements jsonb) RETURNS integer LANGUAGE sql AS $$
    WITH fresh AS (
        INSERT INTO usage_settled (id) SELECT DISTINCT took ->> 'id' FROM jsonb_array_elements(settlements) AS took
        ORDER BY 1 ON CONFLICT DO NOTHING RETURNING id
    )
    SELECT count_usage(coalesce(jsonb_agg(took), '[]'))
    FROM jsonb_array_elements(settlements) AS took JOIN fresh ON fresh.id = took ->> 'id'
$$;
