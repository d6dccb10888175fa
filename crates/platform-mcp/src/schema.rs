diesel::table! {
    mcp_profiles (account_id, id) {
        account_id -> Text,
        id -> Text,
        slug -> Text,
        settings -> Jsonb,
        seen -> Jsonb,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    mcp_grants (account_id, id) {
        account_id -> Text,
        id -> Text,
        profile_id -> Text,
        subject_type -> Text,
        subject -> Text,
        tool_policy -> Text,
        tools -> Array<Text>,
        created_ms -> Int8,
    }
}

diesel::table! {
    mcp_switches (account_id, profile_id, subject) {
        account_id -> Text,
        profile_id -> Text,
        subject -> Text,
        disabled -> Array<Text>,
    }
}

diesel::table! {
    mcp_audit (account_id, timestamp_ms, id) {
        account_id -> Text,
        id -> Text,
        timestamp_ms -> Int8,
        subject -> Text,
        profile_id -> Text,
        tool_server_id -> Nullable<Text>,
        tool_name -> Text,
        outcome -> Text,
        duration_ms -> Int8,
        request_bytes -> Int8,
        response_bytes -> Int8,
        error_code -> Nullable<Text>,
        arguments -> Nullable<Text>,
        result -> Nullable<Text>,
    }
}
