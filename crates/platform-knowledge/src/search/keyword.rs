//! Search by words: rare words count more than common ones, words of headings more than those of the text.

use diesel::{
    prelude::*,
    sql_types::{Array, BigInt, Bool, Double, Integer, Jsonb, Nullable, Text},
};
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result};
use platform_db::Db;
use serde_json::Value;

use super::{Bounds, model::SearchResult, words as words_of};

/// A word that is in more pieces than this is told apart no further.
const MOST_COUNTED: i64 = 20_000;
/// Pieces that are weighed: those that have most of the words.
const MOST_WEIGHED: i64 = 300;
/// Words of a query that are looked for, the rarest first.
const MOST_WORDS: usize = 24;

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
}

#[derive(QueryableByName)]
struct Found {
    #[diesel(sql_type = Text)]
    document_id: String,
    #[diesel(sql_type = Text)]
    name: String,
    #[diesel(sql_type = Integer)]
    version: i32,
    #[diesel(sql_type = Text)]
    chunk_id: String,
    #[diesel(sql_type = Jsonb)]
    heading_path: Value,
    #[diesel(sql_type = Text)]
    text: String,
    #[diesel(sql_type = Double)]
    score: f64,
}

/// The words of a query in every language that the account has documents in, each with how many pieces have it.
const WORDS: &str = "\
    WITH RECURSIVE languages AS (\
        (SELECT language FROM documents WHERE account_id = $1 ORDER BY language LIMIT 1) \
        UNION ALL SELECT (SELECT d.language FROM documents d WHERE d.account_id = $1 AND d.language > l.language \
            ORDER BY d.language LIMIT 1) FROM languages l WHERE l.language IS NOT NULL), \
    words AS (SELECT DISTINCT lexeme AS word, '''' || replace(lexeme, '''', '''''') || '''' AS word_query \
        FROM languages, unnest(to_tsvector(language::regconfig, $2)) WHERE language IS NOT NULL), \
    mine AS (SELECT ('''account:' || $1 || '''')::tsquery AS account), \
    total AS (SELECT count(*) AS of FROM (SELECT FROM chunks WHERE account_id = $1 LIMIT $3) c) \
    SELECT word, word_query, \
        (SELECT count(*) FROM (SELECT FROM chunks WHERE words @@ (account && word_query::tsquery) LIMIT $3) c) \
        AS pieces, of FROM words, mine, total";

/// The best pieces by BM25 (Robertson and Zaragoza 2009), a word of a heading counting as three and one of the name as
/// two: those that have most of the query are found first, then weighed.
const SEARCH: &str = "\
    WITH asked AS (SELECT word, word_query::tsquery AS query, weight \
        FROM unnest($2, $3, $4) AS w (word, word_query, weight)), \
    any_of AS (SELECT ('(' || string_agg(query::text, ' | ') || ') & ''account:' || $1 || '''')::tsquery AS query \
        FROM asked), \
    candidates AS (\
        SELECT c.*, d.name FROM any_of, chunks c \
        JOIN documents d ON d.account_id = c.account_id AND d.id = c.document_id \
        WHERE c.account_id = $1 AND c.words @@ any_of.query \
            AND ($5::text IS NULL OR d.project_id = $5) \
            AND (cardinality($6::text[]) = 0 OR d.tags ?| $6) \
            AND ($7::text[] IS NULL OR d.project_id IS NULL OR d.project_id = ANY($7)) \
            AND CASE WHEN $10 THEN d.id = ANY($8) OR d.folder_id = ANY($9) \
                ELSE ($8::text[] IS NULL OR d.id = ANY($8)) AND ($9::text[] IS NULL OR d.folder_id = ANY($9)) END \
        ORDER BY (SELECT sum(weight) FILTER (WHERE c.words @@ query) FROM asked) DESC LIMIT $12), \
    weighed AS (\
        SELECT c.*, (SELECT sum(a.weight * often * 2.2 / (often + 0.3 + 0.9 * least(c.token_count, 400) / 200.0)) \
            FROM unnest(c.words) AS u (lexeme, positions, weights) JOIN asked a ON a.word = u.lexeme \
            CROSS JOIN LATERAL (SELECT sum(CASE w WHEN 'A' THEN 3 WHEN 'B' THEN 2 ELSE 1 END)::double precision \
                AS often FROM unnest(u.weights) AS w) t) AS score \
        FROM candidates c) \
    SELECT document_id, name, document_version AS version, id AS chunk_id, heading_path, text, score FROM weighed \
    ORDER BY score DESC, document_id, position LIMIT $11";

/// The pieces that have words of a query, the best first.
pub(crate) async fn search(
    db: &Db,
    account: &AccountId,
    query: &str,
    bounds: &Bounds,
    limit: i64,
) -> Result<Vec<SearchResult>> {
    let conn = db.read().await?;
    let mut conn = conn.get();
    let words = diesel::sql_query(WORDS).bind::<Text, _>(account.as_str()).bind::<Text, _>(words_of(query));
    let mut words: Vec<Word> = words.bind::<BigInt, _>(MOST_COUNTED).load(&mut conn).await?;
    words.retain(|word| word.pieces > 0);
    words.sort_by_key(|word| word.pieces);
    // What nearly every piece has says nothing, unless there is nothing else.
    let rare = words.iter().filter(|word| word.pieces < MOST_COUNTED).count();
    words.truncate(if rare > 0 { rare.min(MOST_WORDS) } else { 1 });
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let weights: Vec<f64> = words.iter().map(weight).collect();
    let most: f64 = weights.iter().sum();
    let (words, queries): (Vec<String>, Vec<String>) =
        words.into_iter().map(|word| (word.word, word.word_query)).unzip();
    let found: Vec<Found> = diesel::sql_query(SEARCH)
        .bind::<Text, _>(account.as_str())
        .bind::<Array<Text>, _>(&words)
        .bind::<Array<Text>, _>(&queries)
        .bind::<Array<Double>, _>(&weights)
        .bind::<Nullable<Text>, _>(&bounds.project)
        .bind::<Array<Text>, _>(&bounds.tags)
        .bind::<Nullable<Array<Text>>, _>(&bounds.within)
        .bind::<Nullable<Array<Text>>, _>(&bounds.documents)
        .bind::<Nullable<Array<Text>>, _>(&bounds.folders)
        .bind::<Bool, _>(bounds.either)
        .bind::<BigInt, _>(limit)
        .bind::<BigInt, _>(MOST_WEIGHED)
        .load(&mut conn)
        .await?;
    found.into_iter().map(|found| shown(found, most)).collect()
}

/// How much a word says: the rarer it is, the more.
fn weight(word: &Word) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "both are at most 20,000")]
    let (pieces, of) = (word.pieces as f64, word.of as f64);
    (1.0 + (of - pieces + 0.5) / (pieces + 0.5)).ln()
}

fn shown(found: Found, most: f64) -> Result<SearchResult> {
    // No word counts more than 2.2 times its weight.
    let score = (found.score / (most * 2.2)).clamp(0.0, 1.0);
    Ok(SearchResult {
        document_id: found.document_id,
        name: found.name,
        version: found.version,
        chunk_id: found.chunk_id,
        heading_path: serde_json::from_value(found.heading_path).map_err(Error::internal)?,
        text: found.text,
        score: (score * 10_000.0).round() / 10_000.0,
    })
}
