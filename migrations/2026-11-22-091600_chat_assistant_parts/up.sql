-- What was kept as it was given has a type now: what does not fit it becomes the default.
UPDATE assistants SET settings = settings || jsonb_build_object(
    'tenantIntegrationsConfig', jsonb_build_object(
        'enabled', coalesce(settings #> '{tenantIntegrationsConfig,enabled}' = 'true', false),
        'identityMode', CASE lower(settings #>> '{tenantIntegrationsConfig,identityMode}')
            WHEN 'signed' THEN 'signed' ELSE 'open' END,
        'apps', (
            SELECT coalesce(jsonb_agg(jsonb_build_object(
                'app', app -> 'app',
                'tools', jsonb_path_query_array(app, '$.tools[*] ? (@.type() == "string")'),
                'triggers', jsonb_path_query_array(app, '$.triggers[*] ? (@.type() == "string")'))), '[]')
            FROM jsonb_path_query(settings, '$.tenantIntegrationsConfig.apps[*] ? (@.app.type() == "string")') app)),
    'tenantMcpConfig', jsonb_build_object(
        'enabled', coalesce(settings #> '{tenantMcpConfig,enabled}' = 'true', false),
        'maxServers', coalesce((jsonb_path_query_first(settings,
            '$.tenantMcpConfig.maxServers ? (@.type() == "number" && @ >= 0 && @ <= 1000)'))::int, 10),
        'maxToolsPerServer', coalesce((jsonb_path_query_first(settings,
            '$.tenantMcpConfig.maxToolsPerServer ? (@.type() == "number" && @ >= 0 && @ <= 1000)'))::int, 64)));
