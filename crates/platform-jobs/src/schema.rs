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
        lane -> Nullable<Text>,
        opens -> Bool,
        trace -> Nullable<Text>,
    }
}

diesel::table! {
    lanes (id) {
        account_id -> Text,
        id -> Text,
        most_running -> Int4,
        most_starts -> Nullable<Int4>,
        interval_ms -> Int8,
        closed -> Bool,
        window_no -> Int8,
        starts -> Int4,
        served -> Int8,
    }
}
