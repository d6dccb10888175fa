diesel::table! {
    environments (id) {
        account_id -> Text,
        id -> Text,
        project_id -> Nullable<Text>,
        settings -> Jsonb,
        secrets -> Text,
        clis -> Nullable<Jsonb>,
        version -> Int8,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    environment_variables (account_id, target_kind, target_id, user_kind, user_id) {
        account_id -> Text,
        user_kind -> Text,
        user_id -> Text,
        target_kind -> Text,
        target_id -> Text,
        names -> Array<Text>,
        secrets -> Text,
    }
}

diesel::table! {
    sandbox_snapshots (id) {
        account_id -> Text,
        id -> Text,
        environment_id -> Text,
        tenant_id -> Nullable<Text>,
        status -> Text,
        is_current -> Bool,
        size_bytes -> Int8,
        runtime -> Text,
        memory_mib -> Int4,
        source_sandbox_id -> Nullable<Text>,
        generation -> Int4,
        error -> Nullable<Text>,
        pieces -> Bytea,
        owner -> Text,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    sandbox_sessions (id) {
        account_id -> Text,
        id -> Text,
        sandbox_id -> Text,
        environment_id -> Text,
        tenant_id -> Nullable<Text>,
        lane -> Text,
        scope -> Text,
        started_by_type -> Text,
        started_by_id -> Text,
        conversation_id -> Nullable<Text>,
        depth -> Int2,
        status -> Text,
        runtime -> Text,
        memory_mib -> Int4,
        backend -> Text,
        isolation -> Text,
        from_snapshot_id -> Nullable<Text>,
        started_ms -> Int8,
        finished_ms -> Nullable<Int8>,
        expires_ms -> Int8,
        auto_extend -> Bool,
        stopped_reason -> Nullable<Text>,
        saving -> Bool,
        command_count -> Int4,
        init_script -> Nullable<Jsonb>,
        error -> Nullable<Text>,
        owner -> Text,
        owned_until -> Timestamptz,
    }
}

diesel::table! {
    sandbox_commands (session_id, index) {
        account_id -> Text,
        session_id -> Text,
        index -> Int4,
        command -> Text,
        cwd -> Text,
        exit_code -> Int4,
        duration_ms -> Int8,
        timestamp_ms -> Int8,
        stdout -> Text,
        stderr -> Text,
        truncated -> Bool,
    }
}

diesel::table! {
    sandbox_calls (id) {
        account_id -> Text,
        id -> Text,
        owner -> Text,
        request -> Text,
        answer -> Nullable<Text>,
        taken -> Bool,
        said -> Array<Text>,
        heard -> Timestamptz,
    }
}
