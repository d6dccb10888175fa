//! Columns of type `json` stand here as `Text`: they are read as they are and passed on unparsed;
//! the statements that write them cast.

diesel::table! {
    assistants (id) {
        id -> Text,
        account_id -> Text,
        identifier -> Text,
        settings -> Jsonb,
        version -> Int8,
        deleted -> Bool,
        project_id -> Nullable<Text>,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    chats (account_id, uid) {
        account_id -> Text,
        uid -> Text,
        assistant -> Text,
        name -> Text,
        archived -> Bool,
        status -> Text,
        stop_reason -> Nullable<Text>,
        error -> Nullable<Text>,
        user_uid -> Text,
        tenant_id -> Nullable<Text>,
        subtenant_id -> Nullable<Text>,
        api_source -> Nullable<Text>,
        metadata -> Jsonb,
        tags -> Array<Text>,
        provider -> Nullable<Text>,
        llm -> Nullable<Text>,
        context_window -> Int8,
        input_tokens -> Int8,
        output_tokens -> Int8,
        usage -> Nullable<Text>,
        revision -> Int8,
        message_count -> Int4,
        turn_start -> Int4,
        created_ms -> Int8,
        edited_ms -> Int8,
        named -> Bool,
        queued -> Int4,
        guardrails -> Nullable<Text>,
        compactions -> Nullable<Text>,
        secondary -> Nullable<Jsonb>,
        open_calls -> Nullable<Text>,
        noted -> Nullable<Jsonb>,
    }
}

diesel::allow_tables_to_appear_in_same_query!(assistants, chats);
