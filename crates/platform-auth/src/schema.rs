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
        user_id -> Nullable<Text>,
        grant_id -> Nullable<Text>,
        client_id -> Nullable<Text>,
    }
}

diesel::table! {
    api_key_old_values (digest) {
        digest -> Text,
        key_id -> Text,
        until_ms -> Int8,
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
        key_digest -> Nullable<Text>,
        user_id -> Nullable<Text>,
        grant_id -> Nullable<Text>,
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

diesel::allow_tables_to_appear_in_same_query!(tenant_sessions, api_keys, api_key_old_values);

diesel::table! {
    users (id) {
        id -> Text,
        account_id -> Text,
        email -> Nullable<Text>,
        password -> Nullable<Text>,
        issuer -> Nullable<Text>,
        subject -> Nullable<Text>,
        name -> Text,
        role -> Text,
        disabled -> Bool,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    log_ins (digest) {
        digest -> Text,
        account_id -> Text,
        user_id -> Text,
        is_link -> Bool,
        expires_ms -> Int8,
    }
}

diesel::table! {
    oauth_clients (id) {
        id -> Text,
        account_id -> Nullable<Text>,
        client_id -> Text,
        name -> Text,
        redirect_uris -> Array<Text>,
        secret_digest -> Nullable<Text>,
        scopes -> Array<Text>,
        created_ms -> Int8,
        edited_ms -> Int8,
        used_ms -> Nullable<Int8>,
    }
}

diesel::table! {
    oauth_grants (id) {
        id -> Text,
        account_id -> Text,
        client_id -> Text,
        user_id -> Text,
        scope -> Text,
        audience -> Text,
        code_digest -> Text,
        code_expires_ms -> Int8,
        code_used_ms -> Nullable<Int8>,
        redirect_uri -> Text,
        challenge -> Text,
        created_ms -> Int8,
        revoked_ms -> Nullable<Int8>,
    }
}

diesel::table! {
    oauth_refresh_tokens (digest) {
        digest -> Text,
        grant_id -> Text,
        expires_ms -> Int8,
        used_ms -> Nullable<Int8>,
        sealed_answer -> Nullable<Text>,
    }
}

diesel::allow_tables_to_appear_in_same_query!(oauth_grants, oauth_refresh_tokens, users, oauth_clients);
