-- Bytes of JSON without the blanks that jsonb is written with; long only where it matters.
CREATE FUNCTION json_bytes(value jsonb) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(value::text)
        - regexp_count(regexp_replace(value::text, '"(\\.|[^"\\])*"', '', 'g'), ' ')
$$;

-- Whether a record has room for more tags and metadata: a change that adds nothing always fits.
CREATE FUNCTION has_room(tags text[], more_tags text[], most_tags int, metadata jsonb, more jsonb, most_bytes int)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (more_tags <@ tags
            OR cardinality(tags) + (SELECT count(*) FROM unnest(more_tags) t WHERE t <> ALL (tags)) <= most_tags)
        AND CASE
            WHEN metadata || more = metadata THEN true
            WHEN octet_length((metadata || more)::text) <= most_bytes THEN true
            ELSE json_bytes(metadata || more) <= most_bytes
        END
$$;
