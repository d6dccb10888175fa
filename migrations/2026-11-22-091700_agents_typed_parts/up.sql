-- A list no longer stands for an object: parts that were given as one go back to their defaults.
UPDATE agents SET settings = jsonb_set(settings, '{assistantSpecialization}', (
    SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(settings -> 'assistantSpecialization')
    WHERE NOT (key IN ('contextManagement', 'structuredOutput') AND jsonb_typeof(value) = 'array'
        OR key = 'identifier' AND jsonb_typeof(value) <> 'string')))
WHERE jsonb_typeof(settings -> 'assistantSpecialization') = 'object';
UPDATE agent_versions SET settings = jsonb_set(settings, '{assistantSpecialization}', (
    SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(settings -> 'assistantSpecialization')
    WHERE NOT (key IN ('contextManagement', 'structuredOutput') AND jsonb_typeof(value) = 'array'
        OR key = 'identifier' AND jsonb_typeof(value) <> 'string')))
WHERE jsonb_typeof(settings -> 'assistantSpecialization') = 'object';
UPDATE agents SET settings = jsonb_set(settings, '{evaluationConfig,customCriteria}',
    jsonb_path_query_array(settings, '$.evaluationConfig.customCriteria[*] ? (@.type() == "object")'))
WHERE jsonb_typeof(settings #> '{evaluationConfig,customCriteria}') = 'array';
UPDATE agent_versions SET settings = jsonb_set(settings, '{evaluationConfig,customCriteria}',
    jsonb_path_query_array(settings, '$.evaluationConfig.customCriteria[*] ? (@.type() == "object")'))
WHERE jsonb_typeof(settings #> '{evaluationConfig,customCriteria}') = 'array';
