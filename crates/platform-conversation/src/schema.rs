//! Columns of type `json` stand here as `Text`: they are read as they are and passed on unparsed;
//! the statements that write them cast.

diesel::table! {
    messages (account_id, conversation, position) {
        account_id -> Text,
        conversation -> Text,
        position -> Int4,
        uid -> Text,
        role -> Text,
        body -> Text,
        accounting -> Nullable<Text>,
        created_ms -> Int8,
    }
}

diesel::table! {
    queued_messages (account_id, conversation, position) {
        account_id -> Text,
        conversation -> Text,
        position -> Int8,
        uid -> Text,
        body -> Text,
        request -> Jsonb,
        created_ms -> Int8,
    }
}

diesel::table! {
    message_files (account_id, conversation, message_uid, position) {
        account_id -> Text,
        conversation -> Text,
        message_uid -> Text,
        position -> Int4,
        media_type -> Text,
        bytes -> Bytea,
        text -> Nullable<Text>,
    }
}

diesel::table! {
    message_feedback (id) {
        id -> Text,
        account_id -> Text,
        conversation -> Text,
        message_uid -> Text,
        user_uid -> Text,
        feedback -> Bool,
        comment -> Nullable<Text>,
        data -> Nullable<Jsonb>,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}
