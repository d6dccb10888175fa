\set a random(1000, 1500)
\set b random(1000, 1500)
\set c random(1000, 1500)
\set d random(1000, 1500)
WITH asked AS (SELECT string_agg('''' || left(md5(account_id), 8) || 'w' || n || '''', ' | ')::tsquery AS query FROM (SELECT account_id FROM documents WHERE id = 'd1') own, unnest(ARRAY[:a, :b, :c, :d]::int[]) n) SELECT c.id, c.heading_path, c.text, d.name, ts_rank(c.words, asked.query) AS score FROM asked, chunks c JOIN documents d ON d.account_id = c.account_id AND d.id = c.document_id WHERE c.words @@ asked.query ORDER BY score DESC LIMIT 10;
