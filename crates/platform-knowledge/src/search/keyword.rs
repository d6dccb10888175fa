//! Search by words: rare words count more than common ones, words of headings more than those of the text.

use diesel::{
    prelude::*,
    sql_types::{Array, BigInt, Bool, Double, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Error, Result};
use platform_db::Db;

use super::{
    Bounds, WITHIN,
    model::{Found, SearchResult},
};
use crate::index::kept_words;

/// A word that is in so many pieces is counted no further, and looked for only where no rarer one is found.
const MAX_COUNTED: i64 = 20_000;
/// Documents whose pieces are counted; who has more has many.
const MAX_READ: i64 = 5000;
/// Pieces that are weighed: those that have most of the words, and have them most often.
const MAX_WEIGHED: i64 = 200;
/// Pieces of which it is looked how often they have the words.
const MAX_RANKED: i64 = 1000;
/// What a word counts that is a stop word in one of the languages.
const STOP_WORD: f64 = 0.1;
/// Words of a query whose pieces are counted, the longest: those are the rarest more often than not.
const MAX_ASKED: i64 = 64;
/// Words of a query that are looked for, the rarest.
const MAX_WORDS: i64 = 24;
/// Words that are not found for which names like them are looked for, from so many characters on.
const MAX_UNKNOWN: usize = 8;
const MIN_UNKNOWN: i64 = 4;
/// A letter that is missing, or one too many, in a word of seven.
const ALIKE: &str = "SET LOCAL pg_trgm.word_similarity_threshold = 0.5";

/// A piece, when there is one, with what is known of the words that were asked for.
#[derive(QueryableByName)]
struct Row {
    /// Words that are not found, where the server tells how alike texts are.
    #[diesel(sql_type = Array<Text>)]
    unknown: Vec<String>,
    /// All words.
    #[diesel(sql_type = BigInt)]
    asked: i64,
    /// What the words that are looked for weigh together.
    #[diesel(sql_type = Double)]
    weight: f64,
    #[diesel(sql_type = Bool)]
    is_found: bool,
    #[diesel(embed)]
    found: Found,
}

/// The best pieces by BM25 (Robertson and Zaragoza 2009), a word of a heading counting as three and one of the name as
/// two. Words are those of the query in every language that the account has documents in; those that are stop words in one
/// of them are rare where texts are in another, or in none that is told, and count little. The pieces of each are found once,
/// which counts them; those that have most of what is rare are weighed, and above all those that have it in a
/// heading or in the name. A word is kept with a prefix of its account; pieces that were indexed before that have the
/// account as another word. `|| ''` keeps PostgreSQL from going through all pieces of the account beside those of the word.
fn statement(bounds: &Bounds) -> String {
    // Where any document may be found, none need be read for that, and the pieces that counted a common word will do.
    let (within, common) = if *bounds == Bounds::default() {
        (String::new(), "SELECT n, document_id, position, weight FROM hits JOIN common USING (n)".to_owned())
    } else {
        let within = format!("JOIN documents d ON d.account_id = $1 AND d.id = hits.document_id AND {WITHIN}");
        // By the pieces of the documents where they are few, else by those of the words.
        let few = format!(
            "(SELECT count(*) < {MAX_READ} AND sum(piece_count) < {MAX_COUNTED}
                FROM (SELECT piece_count FROM documents d WHERE {WITHIN} LIMIT {MAX_READ}) d)"
        );
        let common = format!(
            "SELECT n, document_id, position, weight FROM common JOIN (
                (SELECT c.* FROM documents d JOIN chunks c ON c.account_id = d.account_id AND c.document_id = d.id
                WHERE {WITHIN} AND EXISTS (SELECT FROM common) AND {few} OFFSET 0)
                UNION ALL
                (SELECT c.* FROM chunks c JOIN documents d ON d.account_id = c.account_id || '' AND d.id = c.document_id
                WHERE {WITHIN} AND c.words @@ (SELECT string_agg(query::text, '|')::tsquery FROM common) AND NOT {few}
                LIMIT {MAX_COUNTED})
            ) c ON words @@ query"
        );
        (within, common)
    };
    format!(
        "WITH RECURSIVE languages AS (
            (SELECT language FROM documents WHERE account_id = $1 ORDER BY language LIMIT 1)
            UNION ALL SELECT (SELECT d.language FROM documents d WHERE d.account_id = $1 AND d.language > l.language
                ORDER BY d.language LIMIT 1) FROM languages l WHERE l.language IS NOT NULL
        ), mine AS (
            SELECT left(md5($1), 8) AS prefix, ('''account:' || $1 || '''')::tsquery AS account
        ), words AS (
            SELECT DISTINCT lexeme AS word,
                ('''' || prefix || lexeme || '''')::tsquery || (account && ('''' || lexeme || '''')::tsquery) AS query,
                ('''' || prefix || '^' || lexeme || '''')::tsquery AS above
            FROM mine, languages, unnest(to_tsvector(language::regconfig, $8)) WHERE language IS NOT NULL
        ), asked AS MATERIALIZED (
            SELECT row_number() OVER (ORDER BY length(word) DESC, word)::smallint AS n, * FROM words
            ORDER BY n LIMIT {MAX_ASKED}
        ), hits AS MATERIALIZED (
            SELECT asked.n, hit.document_id, hit.position FROM asked CROSS JOIN LATERAL (
                SELECT document_id, position FROM chunks WHERE account_id || '' = $1 AND words @@ asked.query
                LIMIT {MAX_COUNTED}) hit
        ), counted AS MATERIALIZED (
            SELECT asked.*, coalesce(pieces, 0) AS pieces, EXISTS (SELECT FROM languages
                WHERE language <> 'simple' AND to_tsvector(language::regconfig, word) = '') AS is_stop
            FROM asked LEFT JOIN (SELECT n, count(*) AS pieces FROM hits GROUP BY n) h USING (n)
        ), total AS (
            SELECT CASE WHEN count(*) < {MAX_READ} THEN sum(piece_count) ELSE greatest(sum(piece_count), {MAX_COUNTED})
                END AS of FROM (SELECT piece_count FROM documents WHERE account_id = $1 LIMIT {MAX_READ}) d
        ), sought AS MATERIALIZED (
            SELECT n, word, query, pieces, ln(1 + (greatest(of - pieces, 0) + 0.5) / (pieces + 0.5))::float8
                * CASE WHEN is_stop THEN {STOP_WORD} ELSE 1 END AS weight
            FROM counted, total WHERE pieces > 0 ORDER BY pieces, n LIMIT {MAX_WORDS}
        ), rare AS MATERIALIZED (
            SELECT n, hits.document_id, hits.position, weight FROM hits JOIN sought USING (n) {within}
            WHERE pieces < {MAX_COUNTED}
        ), common AS (
            SELECT * FROM sought WHERE pieces >= {MAX_COUNTED} AND NOT EXISTS (SELECT FROM rare)
        ), matching AS MATERIALIZED (
            SELECT * FROM rare UNION ALL {common}
        ), above AS (
            SELECT hit.document_id, hit.position, weight FROM (SELECT DISTINCT n, weight FROM matching) m
            JOIN asked USING (n) CROSS JOIN LATERAL (
                SELECT hits.document_id, hits.position FROM chunks hits {within}
                WHERE hits.account_id || '' = $1 AND hits.words @@ asked.above LIMIT {MAX_WEIGHED}) hit
        ), ranked AS MATERIALIZED (
            SELECT document_id, position, sum(weight) AS weight FROM (
                SELECT document_id, position, weight FROM matching UNION ALL SELECT * FROM above
            ) m GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT {MAX_RANKED}
        ), candidates AS (
            SELECT of.document_id, of.position FROM ranked of
            JOIN chunks c ON c.account_id = $1 AND c.document_id = of.document_id AND c.position = of.position
            ORDER BY of.weight DESC,
                ts_rank(c.words, (SELECT string_agg(query::text, '|')::tsquery FROM sought)) DESC, 1, 2
            LIMIT {MAX_WEIGHED}
        ), weighed AS (
            SELECT c.*, d.name,
                (SELECT sum(s.weight * often * 2.2 / (often + 0.3 + 0.9 * least(c.token_count, 400) / 200.0))
                FROM unnest(c.words) AS u (lexeme, positions, weights) JOIN sought s ON s.word = replace(u.lexeme, prefix, '')
                CROSS JOIN LATERAL (SELECT sum(CASE w WHEN 'A' THEN 3 WHEN 'B' THEN 2 ELSE 1 END)::double precision
                    AS often FROM unnest(u.weights) AS w) t) AS score
            FROM mine, candidates of
            JOIN chunks c ON c.account_id = $1 AND c.document_id = of.document_id AND c.position = of.position
            JOIN documents d ON d.account_id = $1 AND d.id = of.document_id
        ), best AS (
            SELECT * FROM weighed ORDER BY score DESC, document_id, position LIMIT $9
        )
        SELECT ARRAY(SELECT word FROM counted
                WHERE (pieces = 0 OR pieces < {MAX_COUNTED} AND n IN (SELECT n FROM sought EXCEPT SELECT n FROM rare))
                AND length(word) >= {MIN_UNKNOWN}
                AND EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm') ORDER BY n) AS unknown,
            (SELECT count(*) FROM counted) AS asked, (SELECT coalesce(sum(weight), 1) FROM sought) AS weight,
            id IS NOT NULL AS is_found, coalesce(document_id, '') AS document_id, coalesce(name, '') AS name,
            coalesce(document_version, 0) AS version, coalesce(id, '') AS chunk_id,
            coalesce(heading_path, '[]') AS heading_path, coalesce(text, '') AS text, coalesce(score, 0) AS score
        FROM (SELECT) one LEFT JOIN best ON true ORDER BY best.score DESC, document_id, position"
    )
}

/// The beginnings of documents whose names have something like the words `$8`: they may be misspelt.
fn like_names() -> String {
    format!(
        "SELECT d.id AS document_id, d.name, c.document_version AS version, c.id AS chunk_id, c.heading_path, c.text, \
            max(word_similarity(asked.word, d.name))::float8 AS score \
        FROM unnest($8::text[]) AS asked (word) JOIN documents d ON asked.word <% d.name \
        CROSS JOIN LATERAL (SELECT * FROM chunks c WHERE c.account_id = d.account_id AND c.document_id = d.id \
            ORDER BY c.position LIMIT 1) c \
        WHERE {WITHIN} GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY score DESC, document_id LIMIT $9"
    )
}

/// The pieces that have words of a query, and the beginnings of documents that are called like words which no piece has;
/// the best first.
pub(crate) async fn search(
    db: &Db,
    account: &AccountId,
    query: &str,
    bounds: &Bounds,
    limit: i64,
) -> Result<Vec<SearchResult>> {
    let mut conn = db.fair_conn(account).await?;
    let asked = bounds.bind(statement(bounds), account).bind::<Text, _>(kept_words(query)).bind::<BigInt, _>(limit);
    let mut rows: Vec<Row> = asked.load(&mut *conn).await?;
    let Some(first) = rows.first_mut() else { return Ok(Vec::new()) };
    #[expect(clippy::cast_precision_loss, reason = "at most 64")]
    let (all, weight) = (first.asked as f64, first.weight);
    let mut unknown = std::mem::take(&mut first.unknown);
    unknown.truncate(MAX_UNKNOWN);
    let found = rows.into_iter().filter(|row| row.is_found).map(|row| row.found);
    // No word counts more than 2.2 times its weight.
    let mut found: Vec<SearchResult> =
        found.map(|found| found.shown(|score| score / (weight * 2.2))).collect::<Result<_>>()?;
    if !unknown.is_empty() {
        let asked = bounds.bind(like_names(), account).bind::<Array<Text>, _>(unknown).bind::<BigInt, _>(limit);
        let finding = conn.transaction::<_, Error, _>(async |conn| {
            diesel::sql_query(ALIKE).execute(conn).await?;
            Ok(asked.load::<Found>(conn).await?)
        });
        let called = finding.await?.into_iter().map(|found| found.shown(|score| score / all));
        for called in called.collect::<Result<Vec<_>>>()? {
            if found.iter().all(|known| known.chunk_id != called.chunk_id) {
                found.push(called);
            }
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    Ok(found)
}
