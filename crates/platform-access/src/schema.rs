diesel::table! {
    uses (account_id, target_kind, target_id, user_kind, user_id) {
        account_id -> Text,
        user_kind -> Text,
        user_id -> Text,
        target_kind -> Text,
        target_id -> Text,
    }
}
