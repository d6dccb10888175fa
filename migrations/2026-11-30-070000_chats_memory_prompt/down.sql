UPDATE chats SET noted = noted - 'prompt' WHERE noted ? 'prompt';
CREATE OR REPLACE FUNCTION add_memories(noted jsonb, told jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(noted, '{}') || jsonb_build_object(
        'core', jsonb_path_query_array(CASE
            WHEN told -> 'core' IS NULL OR coalesce(noted -> 'core', '[]') @>
                jsonb_build_array(jsonb_build_object('revision', told -> 'core' -> 'revision'))
                THEN coalesce(noted -> 'core', '[]')
            ELSE coalesce(noted -> 'core', '[]') || jsonb_build_array(told -> 'core') END, '$[last - 19 to last]'),
        'recalled', jsonb_path_query_array(
            coalesce(noted -> 'recalled', '[]') || coalesce(told -> 'recalled', '[]'), '$[last - 19 to last]'))
$$;
