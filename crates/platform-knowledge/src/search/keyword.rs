//! Search by words: rare words count more than common ones, words of headings more than those of the text.

use diesel::{
    prelude::*,
    sql_types::{Array, BigInt, Bool, Double, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Error, Result, search_words};
use platform_db::Db;

use super::{
    Bounds, WITHIN,
    model::{Found, SearchResult},
};

/// A word that is in more pieces than this is told apart no further.
const MOST_COUNTED: i64 = 20_000;
/// Pieces that are looked at: those of as many words as have no more together, the rarest first. What has only words
/// that are everywhere is found when there are no others.
const MOST_MATCHED: i64 = 50_000;
/// Pieces that are weighed: those that have most of the words.
const MOST_WEIGHED: i64 = 300;
/// Words of a query whose pieces are counted, the longest: those are the rarest more often than not.
const MOST_ASKED: i64 = 64;
/// Words of a query that are looked for, the rarest first.
const MOST_WORDS: usize = 24;
/// Words that no piece has for which names like them are looked for, from so many characters on.
const MOST_UNKNOWN: usize = 8;
const SHORTEST_UNKNOWN: usize = 4;
/// A letter that is missing, or one too many, in a word of seven.
const ALIKE: &str = "SET LOCAL pg_trgm.word_similarity_threshold = 0.5";

#[derive(QueryableByName)]
struct Word {
    #[diesel(sql_type = Text)]
    word: String,
    /// As text of a `tsquery`.
    #[diesel(sql_type = Text)]
    word_query: String,
    /// Pieces that have it.
    #[diesel(sql_type = BigInt)]
    pieces: i64,
    /// All pieces of the account.
    #[diesel(sql_type = BigInt)]
    of: i64,
    /// The server tells how alike texts are.
    #[diesel(sql_type = Bool)]
    compares: bool,
}

/// The words of a query in every language that the account has documents in, each with how many pieces have it.
const WORDS: &str = "\
    WITH RECURSIVE languages AS (\
        (SELECT language FROM documents WHERE account_id = $1 ORDER BY language LIMIT 1) \
        UNION ALL SELECT (SELECT d.language FROM documents d WHERE d.account_id = $1 AND d.language > l.language \
            ORDER BY d.language LIMIT 1) FROM languages l WHERE l.language IS NOT NULL), \
    words AS (SELECT DISTINCT lexeme AS word, '''' || replace(lexeme, '''', '''''') || '''' AS word_query \
        FROM languages, unnest(to_tsvector(language::regconfig, $2)) WHERE language IS NOT NULL), \
    asked AS (SELECT * FROM words ORDER BY length(word) DESC, word LIMIT $4), \
    mine AS (SELECT ('''account:' || $1 || '''')::tsquery AS account), \
    total AS (SELECT count(*) AS of FROM (SELECT FROM chunks WHERE account_id = $1 LIMIT $3) c) \
    SELECT word, word_query, \
        (SELECT count(*) FROM (SELECT FROM chunks WHERE words @@ (account && word_query::tsquery) LIMIT $3) c) \
        AS pieces, of, EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm') AS compares \
    FROM asked, mine, total";

/// The best pieces by BM25 (Robertson and Zaragoza 2009), a word of a heading counting as three and one of the name as
/// two: those that have most of the query are found first, then weighed. They have one of the first `$12` words.
fn statement() -> String {
    format!(
        "WITH asked AS (SELECT word, word_query::tsquery AS query, weight \
            FROM unnest($8::text[], $9::text[], $10::float8[]) AS w (word, word_query, weight)), \
        any_of AS (SELECT ('(' || string_agg(query::text, ' | ') || ') & ''account:' || $1 || '''')::tsquery AS query \
            FROM (SELECT query FROM asked LIMIT $12) sought), \
        matching AS (\
            SELECT c.*, d.name FROM any_of, chunks c \
            JOIN documents d ON d.account_id = c.account_id AND d.id = c.document_id \
            WHERE c.account_id = $1 AND c.words @@ any_of.query AND {WITHIN} LIMIT {MOST_MATCHED}), \
        candidates AS (\
            SELECT * FROM matching c \
            ORDER BY (SELECT sum(weight) FILTER (WHERE c.words @@ query) FROM asked) DESC LIMIT {MOST_WEIGHED}), \
        weighed AS (\
            SELECT c.*, (SELECT sum(a.weight * often * 2.2 / (often + 0.3 + 0.9 * least(c.token_count, 400) / 200.0)) \
                FROM unnest(c.words) AS u (lexeme, positions, weights) JOIN asked a ON a.word = u.lexeme \
                CROSS JOIN LATERAL (SELECT sum(CASE w WHEN 'A' THEN 3 WHEN 'B' THEN 2 ELSE 1 END)::double precision \
                    AS often FROM unnest(u.weights) AS w) t) AS score \
            FROM candidates c) \
        SELECT document_id, name, document_version AS version, id AS chunk_id, heading_path, text, score \
        FROM weighed ORDER BY score DESC, document_id, position LIMIT $11"
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
    let words = diesel::sql_query(WORDS).bind::<Text, _>(account.as_str()).bind::<Text, _>(search_words(query));
    let mut words: Vec<Word> =
        words.bind::<BigInt, _>(MOST_COUNTED).bind::<BigInt, _>(MOST_ASKED).load(&mut *conn).await?;
    let all = f64::from(u32::try_from(words.len()).unwrap_or(u32::MAX));
    let is_unknown = |word: &Word| word.compares && word.word.chars().count() >= SHORTEST_UNKNOWN;
    let unknown = words.extract_if(.., |word| word.pieces == 0).filter(is_unknown).take(MOST_UNKNOWN);
    let unknown: Vec<String> = unknown.map(|word| word.word).collect();
    let mut called: Vec<Found> = Vec::new();
    if !unknown.is_empty() {
        let asked = bounds.bind(like_names(), account).bind::<Array<Text>, _>(unknown).bind::<BigInt, _>(limit);
        let finding = conn.transaction::<_, Error, _>(async |conn| {
            diesel::sql_query(ALIKE).execute(conn).await?;
            Ok(asked.load(conn).await?)
        });
        called = finding.await?;
    }
    let called = called.into_iter().map(|found| found.shown(|score| score / all));
    let called: Vec<SearchResult> = called.collect::<Result<_>>()?;
    words.sort_by_key(|word| word.pieces);
    // What nearly every piece has says nothing, unless there is nothing else.
    let rare = words.iter().filter(|word| word.pieces < MOST_COUNTED).count();
    words.truncate(if rare > 0 { rare.min(MOST_WORDS) } else { 1 });
    if words.is_empty() {
        return Ok(called);
    }
    let mut matched = 0;
    let is_few = |word: &&Word| {
        matched += word.pieces;
        matched <= MOST_MATCHED
    };
    let sought = words.iter().take_while(is_few).count().max(1);
    let weights: Vec<f64> = words.iter().map(weight).collect();
    let most: f64 = weights.iter().sum();
    let (words, queries): (Vec<String>, Vec<String>) =
        words.into_iter().map(|word| (word.word, word.word_query)).unzip();
    let found = bounds
        .bind(statement(), account)
        .bind::<Array<Text>, _>(words)
        .bind::<Array<Text>, _>(queries)
        .bind::<Array<Double>, _>(weights)
        .bind::<BigInt, _>(limit)
        .bind::<BigInt, _>(i64::try_from(sought).unwrap_or(i64::MAX));
    let found: Vec<Found> = found.load(&mut *conn).await?;
    // No word counts more than 2.2 times its weight.
    let found = found.into_iter().map(|found| found.shown(|score| score / (most * 2.2)));
    let mut found: Vec<SearchResult> = found.collect::<Result<_>>()?;
    let is_new = |of: &SearchResult| found.iter().all(|known| known.chunk_id != of.chunk_id);
    let called: Vec<SearchResult> = called.into_iter().filter(is_new).collect();
    found.extend(called);
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(found)
}

/// How much a word says: the rarer it is, the more.
fn weight(word: &Word) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "both are at most 20,000")]
    let (pieces, of) = (word.pieces as f64, word.of as f64);
    (1.0 + (of - pieces + 0.5) / (pieces + 0.5)).ln()
}
