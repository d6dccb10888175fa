-- Which agents and assistants hand work to an agent: it is taken out of them when it is deleted.
INSERT INTO uses (account_id, user_kind, user_id, target_kind, target_id)
    SELECT of.account_id, of.kind, of.id, 'agent', target
    FROM (
        SELECT account_id, 'agent' AS kind, id, settings #> '{assistantSpecialization,subagentsIds}' AS agents
            FROM agents WHERE NOT deleted
        UNION ALL SELECT account_id, 'assistant', id, settings -> 'subagentsIds' FROM assistants WHERE NOT deleted
    ) AS of, jsonb_array_elements_text(CASE WHEN jsonb_typeof(of.agents) = 'array' THEN of.agents ELSE '[]' END) AS target
    WHERE EXISTS (SELECT FROM agents a WHERE a.account_id = of.account_id AND a.id = target AND NOT a.deleted)
    ON CONFLICT DO NOTHING;
