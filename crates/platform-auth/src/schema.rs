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
    }
}
