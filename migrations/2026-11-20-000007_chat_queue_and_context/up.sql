ALTER TABLE chats DROP CONSTRAINT chats_status_check;
ALTER TABLE chats ADD CONSTRAINT chats_status_check CHECK (status IN ('buffering', 'processing', 'completed',
    'error', 'waiting_for_tool_response', 'handed_off', 'limit_exceeded'));
ALTER TABLE chats
    -- The title was written by a model or a client: it is not made again.
    ADD COLUMN named boolean NOT NULL DEFAULT false,
    -- Rows of queued_messages.
    ADD COLUMN queued integer NOT NULL DEFAULT 0,
    -- Failed rules and judges of the last turns.
    ADD COLUMN guardrails json,
    -- Summaries that stand for older messages.
    ADD COLUMN compactions json,
    -- Tokens and costs of calls beside the turns, by operation.
    ADD COLUMN secondary jsonb;

-- Messages that wait: for the end of a turn, or for the end of a delay.
CREATE TABLE queued_messages (
    account_id text NOT NULL,
    chat_uid text NOT NULL,
    position bigint GENERATED ALWAYS AS IDENTITY,
    uid text NOT NULL,
    -- The chat message as it will be stored.
    body json NOT NULL,
    -- What a turn must know beyond its chat; that of the last message counts.
    request jsonb NOT NULL,
    created_ms bigint NOT NULL,
    PRIMARY KEY (account_id, chat_uid, position),
    FOREIGN KEY (account_id, chat_uid) REFERENCES chats ON DELETE CASCADE
);

-- Files of messages as they were when the message was accepted.
CREATE TABLE message_files (
    account_id text NOT NULL,
    chat_uid text NOT NULL,
    message_uid text NOT NULL,
    position integer NOT NULL,
    media_type text NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (account_id, chat_uid, message_uid, position),
    FOREIGN KEY (account_id, chat_uid) REFERENCES chats ON DELETE CASCADE
);
-- Pictures and documents are compressed already.
ALTER TABLE message_files ALTER COLUMN bytes SET STORAGE EXTERNAL;

-- Adds {"<operation>": {"cost", "inputTokens", "outputTokens", "calls"}} to what is stored, number by number.
CREATE FUNCTION add_secondary(stored jsonb, more jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_object_agg(operation, sums) FROM (
        SELECT operation, jsonb_object_agg(name, total) AS sums FROM (
            SELECT operation, name, sum(amount::bigint) AS total
            FROM (SELECT * FROM jsonb_each(coalesce(stored, '{}')) UNION ALL SELECT * FROM jsonb_each(more))
                AS operations(operation, amounts), jsonb_each_text(amounts) AS amounts_of(name, amount)
            GROUP BY operation, name
        ) AS totals GROUP BY operation
    ) AS operations
$$;

-- Until now both were stored as they came and had no effect; what cannot have one is taken out.
UPDATE assistants SET settings = settings - 'structuredOutput'
    WHERE jsonb_typeof(settings #> '{structuredOutput,schema}') IS DISTINCT FROM 'object';
UPDATE assistants SET settings = settings || '{"guardrailsConfiguration": {"enabled": false}}';
