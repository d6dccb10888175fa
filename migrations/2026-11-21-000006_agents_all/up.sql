CREATE TABLE agents (
    account_id text NOT NULL,
    id text NOT NULL,
    -- What a client sets, as it is sent; the columns beside it are for looking up.
    settings jsonb NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    disabled boolean NOT NULL,
    archived boolean NOT NULL,
    project_id text,
    version bigint NOT NULL DEFAULT 1,
    -- A deleted agent keeps its threads.
    deleted boolean NOT NULL DEFAULT false,
    last_run_ms bigint,
    created_by text NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX agents_newest ON agents (account_id, created_ms DESC, id DESC) WHERE NOT deleted;

-- The settings of every version: a turn keeps those it began with.
CREATE TABLE agent_versions (
    account_id text NOT NULL,
    agent_id text NOT NULL,
    version bigint NOT NULL,
    settings jsonb NOT NULL,
    PRIMARY KEY (account_id, agent_id, version),
    FOREIGN KEY (account_id, agent_id) REFERENCES agents ON DELETE CASCADE
);

CREATE TABLE threads (
    account_id text NOT NULL,
    id text NOT NULL,
    agent_id text NOT NULL,
    project_id text,
    state text NOT NULL CHECK (state IN ('under_construction', 'queued', 'processing', 'paused',
        'paused_for_resume', 'paused_for_approval', 'waiting_for_response', 'handed_off', 'completed', 'failed',
        'terminated', 'approval_rejected', 'guardrail_trigger', 'limit_exceeded')),
    finish_reason text,
    stop_reason text,
    name text,
    user_uid text NOT NULL,
    tenant_id text,
    subtenant_id text,
    api_source text,
    metadata jsonb NOT NULL,
    tags text[] NOT NULL,
    provider text,
    llm text,
    usage json,
    -- Tokens and costs of calls beside the turns, by operation.
    secondary jsonb,
    total_tokens bigint NOT NULL DEFAULT 0,
    -- Tool calls of the newest answer that have no stored result yet, and how far each is.
    open_calls json,
    guardrails json,
    compactions json,
    -- Rises with every commit that changes what a watcher sees.
    revision bigint NOT NULL,
    message_count integer NOT NULL,
    -- Position of the first message of the newest turn.
    turn_start integer NOT NULL,
    -- Every change of state, oldest first.
    changes jsonb NOT NULL,
    -- What no query looks for.
    facts jsonb NOT NULL,
    started_ms bigint,
    finished_ms bigint,
    duration_ms bigint NOT NULL DEFAULT 0,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
) WITH (fillfactor = 70);
CREATE INDEX threads_newest ON threads (account_id, created_ms DESC, id DESC);
CREATE INDEX threads_of_agent ON threads (account_id, agent_id, created_ms DESC, id DESC);
CREATE INDEX threads_state ON threads (account_id, state, created_ms DESC, id DESC);
CREATE INDEX threads_tenant ON threads (account_id, tenant_id, created_ms DESC, id DESC) WHERE tenant_id IS NOT NULL;
CREATE INDEX threads_tags ON threads USING gin (tags) WHERE tags <> '{}';
-- A call hands its work over once, whoever makes it again.
CREATE UNIQUE INDEX threads_hand_off ON threads (account_id,
    (coalesce(facts #>> '{parent,parentThreadId}', 'chat:' || (facts #>> '{parent,parentChatUID}'))),
    (facts #>> '{parent,subThreadToolCallId}'))
    WHERE facts #>> '{parent,subThreadToolCallId}' IS NOT NULL;

-- Addresses at which results of tool calls come in later: SHA-256 of the token, the token is stored nowhere.
CREATE TABLE tool_callbacks (
    digest text PRIMARY KEY,
    account_id text NOT NULL,
    thread_id text NOT NULL,
    tool_call_id text NOT NULL,
    expires_ms bigint NOT NULL,
    FOREIGN KEY (account_id, thread_id) REFERENCES threads ON DELETE CASCADE
);
CREATE INDEX tool_callbacks_age ON tool_callbacks (expires_ms);
CREATE INDEX tool_callbacks_thread ON tool_callbacks (account_id, thread_id);

-- What agents took, by day (UTC); costs in nano-dollars.
CREATE TABLE agent_costs (
    account_id text NOT NULL,
    agent_id text NOT NULL,
    day date NOT NULL,
    cost bigint NOT NULL DEFAULT 0,
    secondary_cost bigint NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    input_cached_tokens bigint NOT NULL DEFAULT 0,
    input_cache_write_tokens bigint NOT NULL DEFAULT 0,
    reasoning_output_tokens bigint NOT NULL DEFAULT 0,
    threads bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (account_id, agent_id, day)
) WITH (fillfactor = 70);

CREATE TABLE evaluations (
    account_id text NOT NULL,
    id text NOT NULL,
    thread_id text NOT NULL,
    agent_id text NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'running', 'completed', 'failed')),
    -- The evaluation as it is sent.
    body jsonb NOT NULL,
    created_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id),
    FOREIGN KEY (account_id, thread_id) REFERENCES threads ON DELETE CASCADE
);
CREATE INDEX evaluations_of_thread ON evaluations (account_id, thread_id, created_ms DESC, id DESC);

-- A tool server that is deleted with force leaves the agents that refer to it.
CREATE FUNCTION forget_tool_server_of_agent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agents SET version = version + 1,
        edited_ms = floor(extract(epoch FROM clock_timestamp()) * 1000), settings = jsonb_set(settings,
            '{assistantSpecialization,availableToolsGroupsUids}',
            (settings #> '{assistantSpecialization,availableToolsGroupsUids}') - OLD.server_id)
    WHERE account_id = OLD.account_id AND id = OLD.user_id
        AND settings #> '{assistantSpecialization,availableToolsGroupsUids}' ? OLD.server_id;
    INSERT INTO agent_versions SELECT account_id, id, version, settings FROM agents
        WHERE account_id = OLD.account_id AND id = OLD.user_id ON CONFLICT DO NOTHING;
    RETURN OLD;
END $$;
CREATE TRIGGER tool_server_uses_forget_of_agent AFTER DELETE ON tool_server_uses
    FOR EACH ROW WHEN (OLD.user_kind = 'agents') EXECUTE FUNCTION forget_tool_server_of_agent();
