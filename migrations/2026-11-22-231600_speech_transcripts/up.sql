CREATE TABLE transcripts (
    account_id text NOT NULL,
    id text NOT NULL,
    text text NOT NULL,
    language text,
    detected_language text,
    audio_url text NOT NULL,
    model text NOT NULL,
    duration_ms bigint NOT NULL,
    -- [{startMs, endMs, text}]
    segments jsonb NOT NULL,
    -- They were asked for.
    has_segments boolean NOT NULL,
    message_uid text,
    chat_uid text,
    tenant_id text,
    subtenant_id text,
    created_ms bigint NOT NULL,
    PRIMARY KEY (account_id, id)
);
