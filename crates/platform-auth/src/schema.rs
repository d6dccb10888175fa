diesel::table! {
    accounts (id) {
        id -> Text,
        name -> Text,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    api_keys (id) {
        id -> Text,
        account_id -> Text,
        name -> Text,
        digest -> Text,
        old_digest -> Nullable<Text>,
        old_digest_until_ms -> Nullable<Int8>,
        prefix -> Text,
        last4 -> Text,
        disabled -> Bool,
        expires_at_ms -> Nullable<Int8>,
        last_used_ms -> Nullable<Int8>,
        created_by -> Text,
        created_ms -> Int8,
        edited_ms -> Int8,
        identity_mode -> Text,
        allowed_domains -> Array<Text>,
        allowed_endpoints -> Jsonb,
        preset -> Nullable<Text>,
        project_ids -> Nullable<Array<Text>>,
    }
}

diesel::table! {
    tenant_sessions (id) {
        id -> Text,
        account_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Nullable<Text>,
        api_key_id -> Text,
        assistant_ids -> Nullable<Array<Text>>,
        created_ms -> Int8,
        expires_ms -> Int8,
        revoked_ms -> Nullable<Int8>,
    }
}

diesel::table! {
    signing_keys (id) {
        id -> Text,
        purpose -> Text,
        sealed -> Text,
        created_ms -> Int8,
    }
}

diesel::allow_tables_to_appear_in_same_query!(tenant_sessions, api_keys);
