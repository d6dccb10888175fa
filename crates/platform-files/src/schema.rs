diesel::table! {
    files (account_id, id) {
        account_id -> Text,
        id -> Text,
        name -> Text,
        file_type -> Text,
        mime_type -> Text,
        sha256 -> Text,
        size -> Int8,
        token -> Text,
        kept_for -> Nullable<Text>,
        tenant_id -> Nullable<Text>,
        subtenant_id -> Nullable<Text>,
        expires_ms -> Nullable<Int8>,
        created_ms -> Int8,
    }
}
