diesel::table! {
    triggers (account_id, id) {
        account_id -> Text,
        id -> Text,
        name -> Text,
        app -> Text,
        slug -> Text,
        tool_server_id -> Text,
        connection_id -> Text,
        target_type -> Text,
        target_id -> Text,
        state -> Text,
        new_threads_state -> Text,
        rate_limit -> Int4,
        message_template -> Text,
        chat_uid_template -> Text,
        config -> Jsonb,
        filter -> Nullable<Jsonb>,
        tenant_id -> Nullable<Text>,
        subtenant_id -> Nullable<Text>,
        project_id -> Nullable<Text>,
        event_count -> Int8,
        last_event_ms -> Nullable<Int8>,
        auto_paused_ms -> Nullable<Int8>,
        auto_pause_reason -> Nullable<Text>,
        token_hash -> Nullable<Text>,
        secrets -> Text,
        subscription_id -> Nullable<Text>,
        cursor -> Nullable<Jsonb>,
        last_error -> Nullable<Jsonb>,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    trigger_counters (trigger_id) {
        trigger_id -> Text,
        minute -> Int8,
        starts -> Int4,
        limited_minute -> Int8,
        limited_minutes -> Int4,
        errors -> Int4,
    }
}

diesel::table! {
    trigger_events (id) {
        account_id -> Text,
        trigger_id -> Text,
        id -> Text,
        event_id -> Text,
        received_ms -> Int8,
        outcome -> Nullable<Text>,
        thread_id -> Nullable<Text>,
        chat_uid -> Nullable<Text>,
        duration_ms -> Nullable<Int8>,
        error -> Nullable<Jsonb>,
        attempt -> Int4,
        payload -> Jsonb,
        depth -> Int2,
        is_test -> Bool,
        admitted -> Bool,
        tries -> Int2,
    }
}

diesel::table! {
    trigger_seen (trigger_id, event_id) {
        trigger_id -> Text,
        event_id -> Text,
        delivery_id -> Text,
        seen_ms -> Int8,
    }
}
