diesel::table! {
    tiers (account_id, tier_id) {
        account_id -> Text,
        tier_id -> Text,
        name -> Text,
        description -> Text,
        rules -> Jsonb,
        excluded_assistants -> Array<Text>,
        excluded_agents -> Array<Text>,
        is_default -> Bool,
        version -> Int8,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    tenants (account_id, tenant_id) {
        account_id -> Text,
        tenant_id -> Text,
        id -> Text,
        display_name -> Text,
        email -> Text,
        image_url -> Text,
        domain -> Text,
        pinned -> Array<Text>,
        source -> Text,
        tier_id -> Nullable<Text>,
        rules -> Jsonb,
        metadata -> Jsonb,
        first_seen_ms -> Int8,
        last_seen_ms -> Int8,
    }
}

diesel::table! {
    subtenants (account_id, tenant_id, subtenant_id) {
        account_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Text,
        id -> Text,
        display_name -> Text,
        email -> Text,
        image_url -> Text,
        pinned -> Array<Text>,
        source -> Text,
        tier_id -> Nullable<Text>,
        first_seen_ms -> Int8,
        last_seen_ms -> Int8,
    }
}

diesel::table! {
    former_tenants (account_id, tenant_id, subtenant_id) {
        account_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Text,
        tier_id -> Nullable<Text>,
        rules -> Jsonb,
        until_ms -> Int8,
    }
}

diesel::table! {
    usage_history (account_id, tenant_id, subtenant_id, metric, window_unit, window_every, window_key) {
        account_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Text,
        metric -> Text,
        window_unit -> Text,
        window_every -> Int4,
        window_key -> Int8,
        starts_ms -> Int8,
        ends_ms -> Int8,
        consumed -> Int8,
        exempt -> Int8,
        external -> Int8,
        rule_limit -> Int8,
        tier_id -> Nullable<Text>,
        captured_ms -> Int8,
    }
}

diesel::table! {
    costs (account_id, tenant_id, subtenant_id, project_id, day, kind, spender) {
        account_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Text,
        project_id -> Text,
        day -> Date,
        kind -> Text,
        spender -> Text,
        input_tokens -> Int8,
        output_tokens -> Int8,
        input_cached_tokens -> Int8,
        input_cache_write_tokens -> Int8,
        reasoning_output_tokens -> Int8,
        cost -> Int8,
        secondary_tokens -> Int8,
        secondary_cost -> Int8,
    }
}

diesel::table! {
    tenant_audit (id) {
        id -> Text,
        account_id -> Text,
        tenant_id -> Text,
        subtenant_id -> Nullable<Text>,
        action -> Text,
        body -> Jsonb,
        user_uid -> Text,
        created_ms -> Int8,
    }
}

diesel::allow_tables_to_appear_in_same_query!(tenants, subtenants, tiers);
