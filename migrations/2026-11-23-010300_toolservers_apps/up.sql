-- The app that a server of type integration was made from: {app, connectionId, connected, exposed}.
ALTER TABLE tool_servers ADD COLUMN app jsonb;
CREATE INDEX tool_servers_connection ON tool_servers (account_id, (app ->> 'connectionId')) WHERE app IS NOT NULL;
