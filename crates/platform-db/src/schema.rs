diesel::table! {
    idempotency (scope) {
        scope -> Text,
        body_hash -> Text,
        status -> Int2,
        body -> Nullable<Text>,
        run_of -> Nullable<Text>,
        account -> Text,
        created_at -> Timestamptz,
    }
}
