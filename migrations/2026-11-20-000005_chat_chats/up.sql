CREATE TABLE chats (
    account_id text NOT NULL,
    uid text NOT NULL,
    assistant text NOT NULL,
    name text NOT NULL,
    archived boolean NOT NULL DEFAULT false,
    status text NOT NULL CHECK (status IN ('processing', 'completed', 'error', 'limit_exceeded')),
    stop_reason text,
    error json,
    user_uid text NOT NULL,
    tenant_id text,
    subtenant_id text,
    api_source text,
    metadata jsonb NOT NULL DEFAULT '{}',
    tags text[] NOT NULL DEFAULT '{}',
    provider text,
    llm text,
    context_window bigint NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    usage json,
    -- Rises with every commit that changes what a watcher sees.
    revision bigint NOT NULL,
    message_count integer NOT NULL,
    -- Position of the first message of the newest turn.
    turn_start integer NOT NULL,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    PRIMARY KEY (account_id, uid)
) WITH (fillfactor = 80);

-- One index for each filter of the list, in its order.
CREATE INDEX chats_newest ON chats (account_id, archived, created_ms DESC, uid DESC);
CREATE INDEX chats_assistant ON chats (account_id, archived, assistant, created_ms DESC, uid DESC);
CREATE INDEX chats_name ON chats (account_id, archived, name, created_ms DESC, uid DESC);
CREATE INDEX chats_llm ON chats (account_id, archived, llm, created_ms DESC, uid DESC);
CREATE INDEX chats_input_tokens ON chats (account_id, archived, input_tokens);
CREATE INDEX chats_output_tokens ON chats (account_id, archived, output_tokens);
CREATE INDEX chats_tenant ON chats (account_id, archived, tenant_id, created_ms DESC, uid DESC)
    WHERE tenant_id IS NOT NULL;
CREATE INDEX chats_subtenant ON chats (account_id, archived, (metadata ->> 'subtenantId'), created_ms DESC, uid DESC)
    WHERE metadata ->> 'subtenantId' IS NOT NULL;
CREATE INDEX chats_tags ON chats USING gin (tags) WHERE tags <> '{}';
CREATE INDEX chats_metadata ON chats USING gin (metadata jsonb_path_ops) WHERE metadata <> '{}';
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_trgm') THEN
        CREATE EXTENSION IF NOT EXISTS pg_trgm;
        CREATE INDEX chats_search ON chats USING gin (name gin_trgm_ops);
    END IF;
END $$;

CREATE TABLE messages (
    account_id text NOT NULL,
    chat_uid text NOT NULL,
    position integer NOT NULL,
    uid text NOT NULL,
    role text NOT NULL,
    -- The message as it is sent, without what it cost: json, not jsonb, since it is passed through.
    body json NOT NULL,
    -- `messageTokenUsage` and `messageCost` of a model answer.
    accounting json,
    created_ms bigint NOT NULL,
    -- No foreign key: checking it would cost a fifth of every turn. Messages are written by the
    -- holder of the chat's run alone, and a chat is deleted together with its run and messages.
    PRIMARY KEY (account_id, chat_uid, position)
);

CREATE TABLE chat_feedback (
    id text PRIMARY KEY,
    account_id text NOT NULL,
    chat_uid text NOT NULL,
    message_uid text NOT NULL,
    user_uid text NOT NULL,
    feedback boolean NOT NULL,
    comment text,
    data jsonb,
    created_ms bigint NOT NULL,
    edited_ms bigint NOT NULL,
    UNIQUE (account_id, chat_uid, message_uid),
    FOREIGN KEY (account_id, chat_uid) REFERENCES chats ON DELETE CASCADE
);
