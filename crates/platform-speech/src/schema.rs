diesel::table! {
    transcripts (account_id, id) {
        account_id -> Text,
        id -> Text,
        text -> Text,
        language -> Nullable<Text>,
        detected_language -> Nullable<Text>,
        audio_url -> Text,
        model -> Text,
        duration_ms -> Int8,
        segments -> Jsonb,
        has_segments -> Bool,
        message_uid -> Nullable<Text>,
        chat_uid -> Nullable<Text>,
        tenant_id -> Nullable<Text>,
        subtenant_id -> Nullable<Text>,
        created_ms -> Int8,
        uncharged -> Nullable<Int8>,
    }
}
