diesel::table! {
    folders (account_id, id) {
        account_id -> Text,
        id -> Text,
        name -> Text,
        project_id -> Nullable<Text>,
        parent_id -> Nullable<Text>,
        color -> Nullable<Text>,
        tags -> Jsonb,
        is_skill -> Bool,
        created_ms -> Int8,
        edited_ms -> Int8,
    }
}

diesel::table! {
    documents (account_id, id) {
        account_id -> Text,
        id -> Text,
        name -> Text,
        file_name -> Text,
        file_type -> Text,
        status -> Text,
        size -> Int8,
        token_count -> Int8,
        summary -> Text,
        is_skill -> Bool,
        tags -> Jsonb,
        project_id -> Nullable<Text>,
        folder_id -> Nullable<Text>,
        parent_id -> Nullable<Text>,
        current_version -> Int4,
        content_hash -> Text,
        indexing -> Jsonb,
        due_ms -> Nullable<Int8>,
        language -> Text,
        created_by -> Text,
        source_file_id -> Nullable<Text>,
        binary_hash -> Nullable<Text>,
        unread -> Bool,
        version -> Int8,
        created_ms -> Int8,
        edited_ms -> Int8,
        embedded_by -> Nullable<Text>,
        index_id -> Text,
        piece_count -> Int4,
        summary_of -> Nullable<Text>,
    }
}

diesel::table! {
    document_texts (account_id, document_id, content_hash) {
        account_id -> Text,
        document_id -> Text,
        content_hash -> Text,
        markdown -> Text,
    }
}

diesel::table! {
    document_versions (account_id, document_id, version) {
        account_id -> Text,
        document_id -> Text,
        version -> Int4,
        content_hash -> Text,
        change_type -> Text,
        change_description -> Text,
        user_uid -> Text,
        size -> Int8,
        created_ms -> Int8,
    }
}

diesel::table! {
    chunks (account_id, document_id, position) {
        account_id -> Text,
        document_id -> Text,
        position -> Int4,
        id -> Text,
        document_version -> Int4,
        heading_path -> Jsonb,
        text -> Text,
        token_count -> Int4,
        text_hash -> Text,
    }
}

diesel::table! {
    chunk_vectors (account_id, document_id, model, text_hash) {
        account_id -> Text,
        document_id -> Text,
        model -> Text,
        text_hash -> Text,
        embedding -> Array<Float4>,
    }
}

diesel::allow_tables_to_appear_in_same_query!(
    documents,
    document_texts,
    document_versions,
    folders,
    chunks,
    chunk_vectors
);
