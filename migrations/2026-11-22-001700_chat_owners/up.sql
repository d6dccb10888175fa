-- Lists of an end user are found by what is noted of a chat: it is what its owner says, also where a message once said
-- something else.
UPDATE chats SET metadata = metadata || jsonb_build_object('subtenantId', subtenant_id)
WHERE subtenant_id IS NOT NULL AND metadata ->> 'subtenantId' IS DISTINCT FROM subtenant_id;
