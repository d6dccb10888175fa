DELETE FROM uses WHERE target_kind = 'agent';
