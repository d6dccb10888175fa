//! Columns of type `json` stand here as `Text`: they are read as they are and passed on unparsed;
//! the statements that write them cast.

diesel::table! {
    agents (account_id, id) {
        account_id -> Text,
        id -> Text,
        settings -> Jsonb,
        name -> Text,
        description -> Text,
        disabled -> Bool,
        archived -> Bool,
        project_id -> Nullable<Text>,
        version -> Int8,
        deleted -> Bool,
        last_run_ms -> Nullable<Int8>,
        created_by -> Text,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    agent_versions (account_id, agent_id, version) {
        account_id -> Text,
        agent_id -> Text,
        version -> Int8,
        settings -> Jsonb,
    }
}

diesel::table! {
    threads (account_id, id) {
        account_id -> Text,
        id -> Text,
        agent_id -> Text,
        state -> Text,
        finish_reason -> Nullable<Text>,
        stop_reason -> Nullable<Text>,
        name -> Nullable<Text>,
        user_uid -> Text,
        tenant_id -> Nullable<Text>,
        subtenant_id -> Nullable<Text>,
        api_source -> Nullable<Text>,
        metadata -> Jsonb,
        tags -> Array<Text>,
        provider -> Nullable<Text>,
        llm -> Nullable<Text>,
        usage -> Nullable<Text>,
        secondary -> Nullable<Jsonb>,
        total_tokens -> Int8,
        open_calls -> Nullable<Text>,
        guardrails -> Nullable<Text>,
        compactions -> Nullable<Text>,
        revision -> Int8,
        message_count -> Int4,
        turn_start -> Int4,
        changes -> Jsonb,
        facts -> Jsonb,
        started_ms -> Nullable<Int8>,
        finished_ms -> Nullable<Int8>,
        duration_ms -> Int8,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    tool_callbacks (digest) {
        digest -> Text,
        account_id -> Text,
        thread_id -> Text,
        tool_call_id -> Text,
        expires_ms -> Int8,
    }
}

diesel::table! {
    agent_costs (account_id, agent_id, day) {
        account_id -> Text,
        agent_id -> Text,
        day -> Date,
        cost -> Int8,
        secondary_cost -> Int8,
        input_tokens -> Int8,
        output_tokens -> Int8,
        input_cached_tokens -> Int8,
        input_cache_write_tokens -> Int8,
        reasoning_output_tokens -> Int8,
        threads -> Int8,
    }
}

diesel::table! {
    evaluations (account_id, id) {
        account_id -> Text,
        id -> Text,
        thread_id -> Text,
        agent_id -> Text,
        status -> Text,
        body -> Jsonb,
        created_ms -> Int8,
    }
}

diesel::allow_tables_to_appear_in_same_query!(agents, threads);
