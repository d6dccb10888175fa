diesel::table! {
    tool_servers (account_id, id) {
        account_id -> Text,
        id -> Text,
        identifier -> Text,
        kind -> Text,
        name -> Text,
        description -> Text,
        project_id -> Nullable<Text>,
        enabled -> Bool,
        settings -> Jsonb,
        tools -> Jsonb,
        tool_count -> Int4,
        secrets -> Nullable<Text>,
        app -> Nullable<Jsonb>,
        health -> Nullable<Text>,
        last_error -> Nullable<Text>,
        refreshed_ms -> Nullable<Int8>,
        down_since_ms -> Nullable<Int8>,
        guarded -> Array<Text>,
        version -> Int8,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    tool_tokens (account_id, server_id) {
        account_id -> Text,
        server_id -> Text,
        sealed -> Nullable<Text>,
        claimed_until -> Nullable<Timestamptz>,
    }
}
