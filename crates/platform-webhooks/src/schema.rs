diesel::table! {
    webhooks (account_id, id) {
        account_id -> Text,
        id -> Text,
        url -> Text,
        events -> Array<Text>,
        enabled -> Bool,
        description -> Text,
        project_id -> Nullable<Text>,
        tenant_id -> Nullable<Text>,
        include_content -> Bool,
        disabled_reason -> Nullable<Text>,
        secret -> Text,
        previous_secret -> Nullable<Text>,
        rotated_ms -> Nullable<Int8>,
        older_secrets -> Jsonb,
        failing_since_ms -> Nullable<Int8>,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    webhook_secrets (account_id) {
        account_id -> Text,
        secret -> Text,
        previous_secret -> Nullable<Text>,
        rotated_ms -> Nullable<Int8>,
        older_secrets -> Jsonb,
    }
}

diesel::table! {
    webhook_deliveries (id) {
        account_id -> Text,
        id -> Text,
        webhook_id -> Nullable<Text>,
        url -> Nullable<Text>,
        lane -> Text,
        event_id -> Text,
        event_type -> Text,
        body -> Text,
        depth -> Int2,
        status -> Text,
        attempts -> Jsonb,
        tries -> Int2,
        next_ms -> Nullable<Int8>,
        forced -> Bool,
        created_ms -> Int8,
    }
}
