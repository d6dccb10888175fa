//! Search by meaning: the pieces whose vectors are nearest to that of a query. An index of pgvector finds them where the
//! server has it; else all vectors within the bounds are compared, which are kept in memory as far as they fit.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use diesel::{
    QueryableByName,
    sql_types::{Array, BigInt, Bool, Double, Float, Integer, Nullable, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::TryStreamExt;
use moka::sync::Cache;
use platform_core::{AccountId, Error, FairSemaphore, Result, run_blocking, sha256_hex};
use platform_db::Db;
use tracing::{info, warn};

use super::{
    Bounds, WITHIN,
    model::{Found, SearchResult},
};

/// Bytes of vectors that are kept in memory, and that one search compares at most.
const MAX_BYTES: usize = 112 << 20;
/// Searches that read and compare vectors at once, and of one account.
const AT_ONCE: (usize, usize) = (2, 1);
/// Pieces that are compared one by one although there is an index, which looks at what is of others, too.
const FEW: i64 = 20_000;
/// Documents whose vectors are read at once.
const BATCH: usize = 1000;
/// Pieces that the index is asked for at least: it finds them roughly in their order, the nearest not always first.
const CANDIDATES: i64 = 100;
/// Dimensions that an index of pgvector takes, of whole and of half numbers.
const MAX_INDEXED: (usize, usize) = (2000, 4000);

/// The vectors of pieces.
pub(crate) struct Vectors {
    /// By the index that they are of, which changes with them.
    known: Cache<String, Arc<Pieces>>,
    places: FairSemaphore,
    /// Dimensions of the vectors that pgvector has an index of, when it has one.
    indexed: OnceLock<usize>,
}

/// Vectors of a document.
#[derive(Default)]
struct Pieces {
    positions: Vec<i32>,
    /// One after the other.
    values: Vec<f32>,
}

impl Pieces {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.positions.len() * size_of::<i32>() + self.values.len() * size_of::<f32>()
    }
}

/// A piece that is near: how near, where its document is in a list, and where it is in that.
type Near = (f32, usize, i32);

#[derive(QueryableByName)]
struct Listed {
    #[diesel(sql_type = Text)]
    id: String,
    #[diesel(sql_type = Text)]
    index_id: String,
    #[diesel(sql_type = Integer)]
    piece_count: i32,
}

#[derive(QueryableByName)]
struct Vector {
    #[diesel(sql_type = Text)]
    document_id: String,
    #[diesel(sql_type = Integer)]
    position: i32,
    #[diesel(sql_type = Array<Float>)]
    embedding: Vec<f32>,
}

impl Default for Vectors {
    fn default() -> Self {
        let weigh = |_: &String, pieces: &Arc<Pieces>| u32::try_from(pieces.bytes()).unwrap_or(u32::MAX);
        let known = Cache::builder().weigher(weigh).max_capacity(MAX_BYTES as u64).build();
        Self { known, places: FairSemaphore::new(AT_ONCE.0, AT_ONCE.1), indexed: OnceLock::new() }
    }
}

impl Vectors {
    /// The pieces within the bounds that are nearest to a vector, the nearest first.
    pub async fn search(
        &self,
        db: &Db,
        account: &AccountId,
        model: &str,
        vector: Vec<f32>,
        bounds: &Bounds,
        limit: i64,
    ) -> Result<Vec<SearchResult>> {
        if vector.iter().all(|value| *value == 0.0) {
            return Ok(Vec::new());
        }
        let _place = self.places.acquire(account).await;
        let documents = listed(db, account, bounds).await?;
        let count: i64 = documents.iter().map(|document| i64::from(document.piece_count)).sum();
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        if count > FEW && self.indexed.get() == Some(&vector.len()) {
            match by_index(db, account, model, &vector, bounds, limit).await {
                Ok(found) if found.len() >= most => {
                    return Ok(found.into_iter().filter(|found| found.score > 0.0).collect());
                }
                // It looked at as much as it may, most of which is out of the bounds.
                Ok(_) => {}
                Err(error) => warn!(%error, "The index of vectors cannot be used; they are compared one by one."),
            }
        }
        let pieces = self.pieces(db, account, model, &documents, vector.len()).await?;
        let near = run_blocking(move || Ok(nearest(&vector, &pieces, most))).await?;
        found(db, account, &documents, &near).await
    }

    /// The vectors of documents, in their order; none of those that are too many.
    async fn pieces(
        &self,
        db: &Db,
        account: &AccountId,
        model: &str,
        documents: &[Listed],
        dimensions: usize,
    ) -> Result<Vec<Arc<Pieces>>> {
        let mut pieces: Vec<Arc<Pieces>> = Vec::with_capacity(documents.len());
        let (mut bytes, mut left_out) = (0, 0);
        let mut missing: HashMap<&str, usize> = HashMap::new();
        for (at, document) in documents.iter().enumerate() {
            let known = self.known.get(&document.index_id);
            let numbers = usize::try_from(document.piece_count).unwrap_or(0) * dimensions;
            let size = known.as_ref().map_or(numbers * size_of::<f32>(), |known| known.bytes());
            if bytes + size > MAX_BYTES {
                left_out += 1;
                pieces.push(Arc::default());
                continue;
            }
            bytes += size;
            if known.is_none() {
                missing.insert(&document.id, at);
            }
            pieces.push(known.unwrap_or_default());
        }
        if left_out > 0 {
            warn!(account = %account, left_out, documents = documents.len(),
                "There are more vectors than one search compares; the oldest documents are found by words alone. \
                 PostgreSQL with the extension `vector` has no such bound.");
        }
        let ids: Vec<&str> = missing.keys().copied().collect();
        for ids in ids.chunks(BATCH) {
            let mut read = read(db, account, (model, dimensions), ids).await?;
            for id in ids {
                let at = missing[id];
                pieces[at] = Arc::new(read.remove(*id).unwrap_or_default());
                self.known.insert(documents[at].index_id.clone(), Arc::clone(&pieces[at]));
            }
        }
        Ok(pieces)
    }

    /// Has pgvector keep an index of the vectors of a model, where the server has it and there are any.
    pub async fn keep_index(&self, db: &Db, model: &str) -> Result<()> {
        #[derive(QueryableByName)]
        struct Size {
            #[diesel(sql_type = Nullable<Integer>)]
            dimensions: Option<i32>,
        }
        const SIZE: &str =
            "SELECT array_length(embedding, 1) AS dimensions FROM chunk_vectors WHERE model = $1 LIMIT 1";
        if self.indexed.get().is_some() {
            return Ok(());
        }
        let mut conn = db.dedicated().await?;
        let size: Vec<Size> = diesel::sql_query(SIZE).bind::<Text, _>(model).load(&mut conn).await?;
        let dimensions = size.into_iter().next().and_then(|size| usize::try_from(size.dimensions?).ok());
        let Some(dimensions) = dimensions.filter(|dimensions| (1..=MAX_INDEXED.1).contains(dimensions)) else {
            return Ok(());
        };
        #[derive(QueryableByName)]
        struct Ready {
            #[diesel(sql_type = Bool)]
            ready: bool,
        }
        let has = "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') AS ready";
        let has: Ready = diesel::sql_query(has).get_result(&mut conn).await?;
        if !has.ready || conn.batch_execute("CREATE EXTENSION IF NOT EXISTS vector").await.is_err() {
            return Ok(());
        }
        // One process makes it; one that was broken off while it was made is made anew.
        let name = format!("chunk_vectors_{}", &sha256_hex(format!("{model} {dimensions}"))[..12]);
        let lock = format!("SELECT pg_try_advisory_lock(hashtext('{name}')) AS ready");
        let is_alone: Ready = diesel::sql_query(lock).get_result(&mut conn).await?;
        let known = format!("SELECT indisvalid AS ready FROM pg_index WHERE indexrelid = to_regclass('{name}')");
        let known: Vec<Ready> = diesel::sql_query(known).load(&mut conn).await?;
        match known.into_iter().next() {
            Some(Ready { ready: true }) => {}
            _ if !is_alone.ready => return Ok(()),
            broken => {
                if broken.is_some() {
                    conn.batch_execute(&format!("DROP INDEX CONCURRENTLY {name}")).await?;
                }
                let (cast, model) = (cast(dimensions), model.replace('\'', "''"));
                let kind = if dimensions > MAX_INDEXED.0 { "halfvec" } else { "vector" };
                let create = format!(
                    "CREATE INDEX CONCURRENTLY {name} ON chunk_vectors \
                     USING hnsw ((embedding::{cast}) {kind}_cosine_ops) WHERE model = '{model}'"
                );
                conn.batch_execute(&create).await?;
            }
        }
        #[derive(QueryableByName)]
        struct Former {
            #[diesel(sql_type = Text)]
            name: String,
        }
        let former = format!(
            "SELECT indexname::text AS name FROM pg_indexes WHERE tablename = 'chunk_vectors' \
             AND indexname LIKE 'chunk\\_vectors\\_%' AND indexdef LIKE '%hnsw%' AND indexname <> '{name}'"
        );
        let former: Vec<Former> = diesel::sql_query(former).load(&mut conn).await?;
        for Former { name } in former.into_iter().filter(|_| is_alone.ready) {
            conn.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")).await?;
        }
        info!(model, dimensions, "Vectors are found by an index of pgvector.");
        let _ = self.indexed.set(dimensions);
        Ok(())
    }
}

/// Reads the vectors of documents, one row after the other.
async fn read(
    db: &Db,
    account: &AccountId,
    (model, dimensions): (&str, usize),
    ids: &[&str],
) -> Result<HashMap<String, Pieces>> {
    // Each vector by its own key, whatever the planner knows of young tables.
    const READ: &str = "SELECT c.document_id, c.position, v.embedding FROM chunks c CROSS JOIN LATERAL (\
            SELECT embedding FROM chunk_vectors WHERE account_id = c.account_id AND document_id = c.document_id \
                AND model = $3 AND text_hash = c.text_hash LIMIT 1) v \
        WHERE c.account_id = $1 AND c.document_id = ANY($2) ORDER BY c.document_id, c.position";
    let rows = diesel::sql_query(READ).bind::<Text, _>(account.as_str()).bind::<Array<Text>, _>(ids);
    let mut conn = db.conn().await?;
    let mut rows = rows.bind::<Text, _>(model).load_stream::<Vector>(&mut conn).await?;
    let mut read: HashMap<String, Pieces> = HashMap::new();
    while let Some(row) = rows.try_next().await? {
        if row.embedding.len() == dimensions {
            let of = read.entry(row.document_id).or_default();
            of.positions.push(row.position);
            of.values.extend(row.embedding);
        }
    }
    Ok(read)
}

/// The type of pgvector that vectors of so many dimensions are compared as.
fn cast(dimensions: usize) -> String {
    if dimensions > MAX_INDEXED.0 { format!("halfvec({dimensions})") } else { format!("vector({dimensions})") }
}

/// The documents within the bounds, newest first.
async fn listed(db: &Db, account: &AccountId, bounds: &Bounds) -> Result<Vec<Listed>> {
    let list = format!(
        "SELECT d.id, d.index_id, d.piece_count FROM documents d WHERE {WITHIN} AND d.piece_count > 0 \
         ORDER BY d.created_ms DESC, d.id"
    );
    Ok(bounds.bind(list, account).load(&mut *db.conn().await?).await?)
}

/// The same by an index of pgvector, however far they are.
async fn by_index(
    db: &Db,
    account: &AccountId,
    model: &str,
    vector: &[f32],
    bounds: &Bounds,
    limit: i64,
) -> Result<Vec<SearchResult>> {
    let cast = cast(vector.len());
    let near = format!(
        "SELECT c.document_id, d.name, c.document_version AS version, c.id AS chunk_id, c.heading_path, c.text, \
            1 - (v.embedding::{cast} <=> $9::real[]::{cast}) AS score \
         FROM chunk_vectors v \
         JOIN chunks c ON c.account_id = v.account_id AND c.document_id = v.document_id AND c.text_hash = v.text_hash \
         JOIN documents d ON d.account_id = v.account_id AND d.id = v.document_id \
         WHERE {WITHIN} AND v.account_id = $1 AND v.model = $8 \
         ORDER BY v.embedding::{cast} <=> $9::real[]::{cast} LIMIT $10"
    );
    let mut conn = db.conn().await?;
    let found = conn.transaction::<_, Error, _>(async |conn| {
        // The index goes on until enough of what it finds is within the bounds, or it has looked at so much.
        let wide = "SET LOCAL hnsw.iterative_scan = 'relaxed_order'; SET LOCAL hnsw.ef_search = 400; \
            SET LOCAL hnsw.max_scan_tuples = 200000";
        conn.batch_execute(wide).await?;
        let near = bounds.bind(near, account).bind::<Text, _>(model).bind::<Array<Float>, _>(vector);
        Ok(near.bind::<BigInt, _>(limit.max(CANDIDATES)).load::<Found>(conn).await?)
    });
    let mut found: Vec<SearchResult> =
        found.await?.into_iter().map(|found| found.shown(|score| score)).collect::<Result<_>>()?;
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(found)
}

/// The pieces that are nearest, the nearest first; what points elsewhere is none.
fn nearest(vector: &[f32], pieces: &[Arc<Pieces>], most: usize) -> Vec<Near> {
    let mut nearest: Vec<Near> = Vec::with_capacity(most + 1);
    let mut least = 0.0;
    for (document, of) in pieces.iter().enumerate() {
        for (position, values) in of.positions.iter().zip(of.values.chunks_exact(vector.len())) {
            let near = dot(vector, values);
            if near > least {
                let at = nearest.partition_point(|(other, ..)| *other >= near);
                nearest.insert(at, (near, document, *position));
                nearest.truncate(most);
                if nearest.len() == most {
                    least = nearest.last().map_or(0.0, |(near, ..)| *near);
                }
            }
        }
    }
    nearest
}

/// In lanes, so that the compiler makes one instruction of many.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut lanes = [0.0_f32; 16];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..16 {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// What the nearest pieces say.
async fn found(db: &Db, account: &AccountId, documents: &[Listed], near: &[Near]) -> Result<Vec<SearchResult>> {
    const FOUND: &str = "SELECT c.document_id, d.name, c.document_version AS version, c.id AS chunk_id, \
            c.heading_path, c.text, n.near AS score \
        FROM unnest($2::text[], $3::integer[], $4::float8[]) AS n (document, position, near) \
        JOIN chunks c ON c.account_id = $1 AND c.document_id = n.document AND c.position = n.position \
        JOIN documents d ON d.account_id = $1 AND d.id = n.document ORDER BY n.near DESC";
    let ids: Vec<&str> = near.iter().map(|(_, document, _)| documents[*document].id.as_str()).collect();
    let positions: Vec<i32> = near.iter().map(|(.., position)| *position).collect();
    let scores: Vec<f64> = near.iter().map(|(near, ..)| f64::from(*near)).collect();
    let found = diesel::sql_query(FOUND)
        .bind::<Text, _>(account.as_str())
        .bind::<Array<Text>, _>(ids)
        .bind::<Array<Integer>, _>(positions)
        .bind::<Array<Double>, _>(scores);
    let found: Vec<Found> = found.load(&mut *db.conn().await?).await?;
    found.into_iter().map(|found| found.shown(|score| score)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first_and_what_points_elsewhere_is_left_out() {
        let pieces = |of: &[(i32, [f32; 20])]| {
            let values = of.iter().flat_map(|(_, values)| *values).collect();
            Arc::new(Pieces { positions: of.iter().map(|(position, _)| *position).collect(), values })
        };
        let at = |place: usize, value: f32| {
            let mut vector = [0.0; 20];
            vector[place] = value;
            vector
        };
        let query = at(19, 1.0);
        let all = [pieces(&[(0, at(19, 0.5)), (1, at(3, 1.0))]), pieces(&[(7, at(19, 0.9)), (8, at(19, -1.0))])];
        assert_eq!(nearest(&query, &all, 5), [(0.9, 1, 7), (0.5, 0, 0)]);
        assert_eq!(nearest(&query, &all, 1), [(0.9, 1, 7)]);
    }
}
