DROP TABLE memory_entries;
DROP TABLE memory_buckets;
