//! Vectors of pieces: made in batches, each stored before the next is asked for.

use std::{sync::Arc, time::Duration};

use diesel::{
    prelude::*,
    sql_types::{BigInt, Integer, Jsonb, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Error, Id, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use platform_jobs::{Run, is_held_in};
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    chunk::Chunk,
    work::{IndexKind, finish_in},
};
use crate::{
    document::{
        Indexing, PgKnowledge,
        repository::{self, Indexed},
    },
    schema::documents,
    search,
};

/// Pieces that are embedded by one call.
const BATCH: usize = 64;
/// Documents that are queued at once when the model is another one.
const TOGETHER: i64 = 1000;
/// How often it is looked whether there is an index of the vectors, until there is one.
const LOOK: Duration = Duration::from_mins(1);

#[derive(QueryableByName)]
struct Missing {
    #[diesel(sql_type = Text)]
    text_hash: String,
    #[diesel(sql_type = Jsonb)]
    heading_path: Value,
    #[diesel(sql_type = Text)]
    text: String,
    #[diesel(sql_type = Integer)]
    position: i32,
}

#[derive(Serialize)]
struct NewVector<'a> {
    account: &'a str,
    document: &'a str,
    model: &'a str,
    hash: &'a str,
    embedding: Vec<f32>,
}

/// Makes the vectors that pieces of a document lack, and is done with it then.
pub(super) async fn embed(
    knowledge: &PgKnowledge,
    run: &Run,
    row: &repository::DocumentRow,
    model: &str,
    mut indexing: Indexing,
    stop: &CancellationToken,
) -> Result<()> {
    let account = run.account();
    let payer = search::payer(&account, row.project_id.clone());
    let asked = knowledge.budget.model(&payer, None);
    let mut after = -1;
    while !stop.is_cancelled() {
        let batch = missing(&mut *knowledge.db.conn().await?, &account, &row.id, (model, after)).await?;
        let texts: Vec<String> = batch
            .iter()
            .map(|piece| {
                let path: Vec<String> = serde_json::from_value(piece.heading_path.clone()).unwrap_or_default();
                Chunk::embedded(&path, &piece.text)
            })
            .collect();
        let vectors = if batch.is_empty() {
            Vec::new()
        } else {
            let embedding = asked.embed(&texts).await.map_err(|fault| Error::from(&fault))?;
            let mut usage = indexing.embedding.unwrap_or_default();
            usage.tokens += embedding.usage.input_tokens;
            usage.cost += embedding.cost.total_cost;
            indexing.embedding = Some(usage);
            embedding.vectors
        };
        let done = batch.len() < BATCH;
        after = batch.as_slice().last().map_or(after, |piece| piece.position);
        indexing.chunks_done = if done { indexing.chunks_total } else { i64::from(after) + 1 };
        let mut conn = knowledge.db.conn().await?;
        let still_due = conn.transaction::<_, Error, _>(async |conn| {
            let current = repository::lock(conn, &account, &row.id).await?;
            // Another text, another name: it begins anew.
            let Some(current) = current.filter(|current| current.current_version == row.current_version) else {
                return Ok(false);
            };
            insert(conn, row, model, &batch, vectors).await?;
            if done {
                forget_unused(conn, row, model).await?;
                let index_id = Some(Id::<IndexKind>::generate().into());
                let indexed = (Indexed { index_id, ..Indexed::default() }, Some(model));
                finish_in(conn, &account, &row.id, &indexing, indexed, knowledge.clock.now()).await?;
            } else {
                let due = current.due_ms.map(Timestamp);
                let indexed = Indexed::default();
                repository::note_indexing(conn, &account, &row.id, "pending", &indexing, due, indexed).await?;
            }
            if is_held_in(conn, run).await? { Ok(!done) } else { Err(Error::internal("the lease is lost")) }
        });
        if !still_due.await? {
            return Ok(());
        }
    }
    // Whoever stops has not failed.
    let attempts = (indexing.attempts - 1).max(0);
    let (mut conn, indexing) = (knowledge.db.conn().await?, Indexing { attempts, ..indexing });
    conn.transaction::<_, Error, _>(async |conn| {
        let current = repository::lock(conn, &account, &row.id).await?;
        let current = current.filter(|current| current.current_version == row.current_version);
        if let Some(current) = current.filter(|current| current.due_ms.is_some())
            && is_held_in(conn, run).await?
        {
            let due = current.due_ms.map(Timestamp);
            repository::note_indexing(conn, &account, &row.id, "pending", &indexing, due, Indexed::default()).await?;
        }
        Ok(())
    })
    .await
}

/// Pieces beyond a position that have no vector of a model, as many as one call embeds.
async fn missing(
    conn: &mut Conn,
    account: &AccountId,
    document: &str,
    (model, after): (&str, i32),
) -> Result<Vec<Missing>> {
    const MISSING: &str = "SELECT c.text_hash, c.heading_path, c.text, c.position FROM chunks c \
        WHERE c.account_id = $1 AND c.document_id = $2 AND c.position > $4 AND NOT EXISTS (\
            SELECT FROM chunk_vectors v WHERE v.account_id = $1 AND v.document_id = $2 AND v.model = $3 \
            AND v.text_hash = c.text_hash) ORDER BY c.position LIMIT $5";
    let missing = diesel::sql_query(MISSING).bind::<Text, _>(account.as_str()).bind::<Text, _>(document);
    let missing = missing.bind::<Text, _>(model).bind::<Integer, _>(after);
    Ok(missing.bind::<BigInt, _>(i64::try_from(BATCH).unwrap_or(i64::MAX)).load(conn).await?)
}

async fn insert(
    conn: &mut Conn,
    row: &repository::DocumentRow,
    model: &str,
    batch: &[Missing],
    vectors: Vec<Vec<f32>>,
) -> Result<()> {
    const INSERT: &str = "INSERT INTO chunk_vectors (account_id, document_id, model, text_hash, embedding) \
        SELECT account, document, model, hash, embedding FROM jsonb_to_recordset($1::jsonb) \
        AS v (account text, document text, model text, hash text, embedding real[]) ON CONFLICT DO NOTHING";
    if batch.is_empty() {
        return Ok(());
    }
    let vectors = batch.iter().zip(vectors).map(|(piece, embedding)| {
        let (account, document) = (row.account_id.as_str(), row.id.as_str());
        NewVector { account, document, model, hash: &piece.text_hash, embedding }
    });
    JsonStatement::new(INSERT, &vectors.collect::<Vec<_>>())?.execute(conn).await?;
    Ok(())
}

/// Removes vectors of a document that none of its pieces has, or that another model made.
async fn forget_unused(conn: &mut Conn, row: &repository::DocumentRow, model: &str) -> Result<()> {
    const FORGET: &str = "DELETE FROM chunk_vectors v WHERE v.account_id = $1 AND v.document_id = $2 AND (v.model <> $3 \
        OR NOT EXISTS (SELECT FROM chunks c WHERE c.account_id = $1 AND c.document_id = $2 \
            AND c.text_hash = v.text_hash))";
    let forget = diesel::sql_query(FORGET).bind::<Text, _>(&row.account_id).bind::<Text, _>(&row.id);
    forget.bind::<Text, _>(model).execute(conn).await?;
    Ok(())
}

/// Keeps what vectors there are those of the model of the settings, and an index of them where the server has one.
pub async fn keep(knowledge: Arc<PgKnowledge>) {
    let Some(model) = knowledge.embedding_model() else { return };
    match queue_others(&knowledge, &model).await {
        Ok(0) => {}
        Ok(queued) => info!(documents = queued, model, "Documents are indexed anew, for the model of their vectors."),
        Err(error) => {
            warn!(%error, "Documents could not be queued for the model of their vectors; the next start does.");
        }
    }
    loop {
        if let Err(error) = knowledge.vectors.keep_index(&knowledge.db, &model).await {
            warn!(%error, "No index of vectors could be made; they are compared one by one.");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Has documents indexed anew whose vectors another model made, or none; how many.
async fn queue_others(knowledge: &PgKnowledge, model: &str) -> Result<usize> {
    const QUEUE: &str = "UPDATE documents SET status = 'pending', indexing = $3, due_ms = $4 WHERE account_id = $1 \
        AND id = ANY(SELECT id FROM documents WHERE account_id = $1 AND size > 0 AND due_ms IS NULL \
            AND embedded_by IS DISTINCT FROM $2 ORDER BY id LIMIT $5 FOR NO KEY UPDATE SKIP LOCKED)";
    let indexing = serde_json::to_value(Indexing::queued()).map_err(Error::internal)?;
    let accounts = documents::table
        .filter(documents::size.gt(0).and(documents::due_ms.is_null()))
        .filter(documents::embedded_by.is_distinct_from(model))
        .select(documents::account_id)
        .distinct();
    let mut conn = knowledge.db.conn().await?;
    let accounts: Vec<String> = accounts.load(&mut conn).await?;
    let mut all = 0;
    for account in accounts.iter().filter_map(|account| AccountId::parse(account).ok()) {
        loop {
            let queued = conn.transaction::<_, Error, _>(async |conn| {
                let queued = diesel::sql_query(QUEUE)
                    .bind::<Text, _>(account.as_str())
                    .bind::<Text, _>(model)
                    .bind::<Jsonb, _>(&indexing)
                    .bind::<BigInt, _>(knowledge.clock.now().0)
                    .bind::<BigInt, _>(TOGETHER)
                    .execute(conn)
                    .await?;
                if queued > 0 {
                    super::wake_in(conn, &account).await?;
                }
                Ok(queued)
            });
            match queued.await? {
                0 => break,
                queued => all += queued,
            }
        }
    }
    drop(conn);
    knowledge.jobs.announce();
    Ok(all)
}
