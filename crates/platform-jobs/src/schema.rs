diesel::table! {
    runs (id) {
        id -> Text,
        account_id -> Text,
        kind -> Text,
        subject -> Text,
        payload -> Jsonb,
        owner -> Nullable<Text>,
        fence -> Int8,
        attempt -> Int4,
        stop -> Bool,
        again -> Bool,
        due -> Timestamptz,
    }
}
