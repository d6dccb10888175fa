diesel::table! {
    connections (account_id, id) {
        account_id -> Text,
        id -> Text,
        app -> Text,
        scheme -> Text,
        label -> Text,
        status -> Text,
        status_reason -> Nullable<Text>,
        tenant_id -> Nullable<Text>,
        subtenant_id -> Nullable<Text>,
        secrets -> Text,
        expires_ms -> Nullable<Int8>,
        refresh_ms -> Nullable<Int8>,
        refused -> Int2,
        connected_ms -> Nullable<Int8>,
        created_ms -> Int8,
        updated_ms -> Int8,
    }
}

diesel::table! {
    app_credentials (account_id, app, scheme) {
        account_id -> Text,
        app -> Text,
        scheme -> Text,
        sealed -> Text,
    }
}

diesel::table! {
    connection_attempts (state_hash) {
        state_hash -> Text,
        account_id -> Text,
        connection_id -> Text,
        sealed -> Text,
        return_to -> Nullable<Text>,
        made_by -> Text,
        expires_ms -> Int8,
    }
}

diesel::table! {
    tenant_mcp_servers (account_id, id) {
        account_id -> Text,
        id -> Text,
        tenant_id -> Text,
        subtenant_id -> Text,
        identifier -> Text,
        name -> Text,
        url -> Text,
        auth_mode -> Text,
        headers -> Nullable<Text>,
        status -> Text,
        status_reason -> Nullable<Text>,
        tools -> Jsonb,
        refreshed_ms -> Nullable<Int8>,
        created_ms -> Int8,
        updated_ms -> Int8,
    }
}
