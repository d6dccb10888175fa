diesel::table! {
    memory_buckets (account_id, tenant_id, subtenant_id, assistant_id) {
        account_id -> Text,
        assistant_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Text,
        last_id -> Int8,
    }
}

diesel::table! {
    memory_entries (account_id, tenant_id, subtenant_id, assistant_id, id) {
        account_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Text,
        assistant_id -> Text,
        id -> Int8,
        section -> Text,
        content -> Text,
        source -> Text,
        pinned -> Bool,
        read_only -> Bool,
        supersedes -> Nullable<Int8>,
        archived_ms -> Nullable<Int8>,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}
