diesel::table! {
    projects (id) {
        id -> Text,
        account_id -> Text,
        identifier -> Text,
        name -> Text,
        description -> Text,
        image_url -> Text,
        visibility -> Text,
        archived -> Bool,
        created_by -> Text,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    project_members (account_id, project_id, user_id) {
        account_id -> Text,
        project_id -> Text,
        user_id -> Text,
        role -> Text,
        added_ms -> Int8,
    }
}
