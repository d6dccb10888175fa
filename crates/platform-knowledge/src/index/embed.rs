//! Vectors of pieces: made in batches, each stored before the next is asked for.

use std::{collections::HashSet, sync::Arc, time::Duration};

use diesel::{
    prelude::*,
    sql_types::{BigInt, Jsonb, Text},
};
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Error, Id, Result, Timestamp};
use platform_db::{Conn, JsonStatement};
use platform_jobs::{Run, is_held_in};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    chunk::Chunk,
    work::{self, IndexKind, Pieces, finish_in, is_same},
};
use crate::{
    document::{
        Indexing, PgKnowledge,
        repository::{self, Indexed},
    },
    schema::{chunk_vectors, documents},
    search,
};

/// Pieces that are embedded by one call.
const BATCH: usize = 64;
/// Documents that are queued at once when the model is another one.
const QUEUE_BATCH: i64 = 1000;
/// How often it is looked whether there is an index of the vectors, until there is one.
const LOOK: Duration = Duration::from_mins(1);

/// A version of a document whose pieces get vectors.
pub(super) struct Embedding<'a> {
    pub row: &'a repository::DocumentRow,
    pub pieces: &'a Pieces,
    /// Its pieces are in the index; else those of the version before are.
    pub is_stored: bool,
    pub model: &'a str,
}

/// A piece that has no vector.
struct Missing<'a> {
    position: usize,
    text_hash: String,
    chunk: &'a Chunk,
}

#[derive(Serialize)]
struct NewVector<'a> {
    account: &'a str,
    document: &'a str,
    model: &'a str,
    hash: &'a str,
    embedding: Vec<f32>,
}

/// Makes the vectors that pieces of a document lack; then it is found by all that it says.
pub(super) async fn embed(
    knowledge: &PgKnowledge,
    run: &Run,
    Embedding { row, pieces, is_stored, model }: Embedding<'_>,
    mut indexing: Indexing,
    stop: &CancellationToken,
) -> Result<()> {
    let account = run.account();
    let payer = search::payer(&account, row.project_id.clone());
    let asked = knowledge.budget.model(&payer, None);
    let missing = missing(&mut *knowledge.db.conn().await?, &account, &row.id, (model, &pieces.chunks)).await?;
    let mut left = missing.as_slice();
    while !stop.is_cancelled() {
        let batch = left.split_off(..left.len().min(BATCH)).unwrap_or_default();
        let texts: Vec<String> =
            batch.iter().map(|piece| Chunk::embedded(&piece.chunk.heading_path, &piece.chunk.text)).collect();
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
        let done = left.is_empty();
        let next = left.first().map_or(pieces.chunks.len(), |piece| piece.position);
        indexing.chunks_done = i64::try_from(next).unwrap_or(i64::MAX);
        let mut conn = knowledge.db.conn().await?;
        let still_due = conn.transaction::<_, Error, _>(async |conn| {
            let current = repository::lock(conn, &account, &row.id).await?;
            // Another text, another name: it begins anew. Pieces that are stored say of which version they are.
            let is_still = |current: &repository::DocumentRow| {
                is_same(current, row) && (!is_stored || current.current_version == row.current_version)
            };
            let Some(current) = current.filter(is_still) else { return Ok(false) };
            insert(conn, row, model, batch, vectors).await?;
            if done {
                let indexed = if is_stored {
                    Indexed { index_id: Some(Id::<IndexKind>::generate().into()), ..Indexed::default() }
                } else {
                    work::insert(conn, row, current.current_version, pieces).await?
                };
                forget_unused(conn, row, model).await?;
                finish_in(conn, &account, &row.id, &indexing, (indexed, Some(model)), knowledge.clock.now()).await?;
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
        let current = current.filter(|current| is_same(current, row) && current.due_ms.is_some());
        if let Some(current) = current
            && is_held_in(conn, run).await?
        {
            let due = current.due_ms.map(Timestamp);
            repository::note_indexing(conn, &account, &row.id, "pending", &indexing, due, Indexed::default()).await?;
        }
        Ok(())
    })
    .await
}

/// Pieces that have no vector of a model, each text once.
async fn missing<'a>(
    conn: &mut Conn,
    account: &AccountId,
    document: &str,
    (model, chunks): (&str, &'a [Chunk]),
) -> Result<Vec<Missing<'a>>> {
    let known = chunk_vectors::table
        .filter(chunk_vectors::account_id.eq(account.as_str()).and(chunk_vectors::document_id.eq(document)))
        .filter(chunk_vectors::model.eq(model))
        .select(chunk_vectors::text_hash);
    let mut known: HashSet<String> = known.load(conn).await?.into_iter().collect();
    let hashed = chunks.iter().map(Chunk::text_hash).zip(chunks).enumerate();
    let missing = hashed.filter(|(_, (hash, _))| known.insert(hash.clone()));
    Ok(missing.map(|(position, (text_hash, chunk))| Missing { position, text_hash, chunk }).collect())
}

async fn insert(
    conn: &mut Conn,
    row: &repository::DocumentRow,
    model: &str,
    batch: &[Missing<'_>],
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
    let mut is_queued = false;
    loop {
        if !is_queued {
            match queue_others(&knowledge, &model).await {
                Ok(queued) => {
                    is_queued = true;
                    if queued > 0 {
                        info!(documents = queued, model, "Documents are indexed anew, for the model of their vectors.");
                    }
                }
                Err(error) => {
                    warn!(%error, "Documents could not be queued for the model of their vectors; it is tried again.");
                }
            }
        }
        if let Err(error) = knowledge.vectors.keep_index(&knowledge.db, &model).await {
            warn!(%error, "No index of vectors could be made; they are compared one by one.");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Has documents indexed anew whose vectors another model made, or none; how many.
async fn queue_others(knowledge: &PgKnowledge, model: &str) -> Result<usize> {
    let queue = |waits: &str| {
        format!(
            "UPDATE documents SET status = 'pending', indexing = $3, due_ms = $4 WHERE account_id = $1 \
            AND id = ANY(SELECT id FROM documents WHERE account_id = $1 AND size > 0 AND due_ms IS NULL \
                AND embedded_by IS DISTINCT FROM $2 ORDER BY id LIMIT $5 FOR NO KEY UPDATE {waits})"
        )
    };
    // Those that somebody writes at are waited for, one by one, while no other is held.
    let (many, one) = ((queue("SKIP LOCKED"), QUEUE_BATCH), (queue(""), 1));
    let indexing = serde_json::to_value(Indexing::queued()).map_err(Error::internal)?;
    let accounts = documents::table
        .filter(documents::size.gt(0).and(documents::due_ms.is_null()))
        .filter(documents::embedded_by.is_distinct_from(model))
        .select(documents::account_id)
        .distinct();
    let mut conn = knowledge.db.conn().await?;
    let accounts: Vec<String> = accounts.load(&mut conn).await?;
    let mut all = 0;
    let accounts: Vec<_> = accounts.iter().filter_map(|account| AccountId::parse(account).ok()).collect();
    for (account, (sql, most)) in accounts.iter().flat_map(|account| [&many, &one].map(|queue| (account, queue))) {
        loop {
            let queued = conn.transaction::<_, Error, _>(async |conn| {
                let queued = diesel::sql_query(sql)
                    .bind::<Text, _>(account.as_str())
                    .bind::<Text, _>(model)
                    .bind::<Jsonb, _>(&indexing)
                    .bind::<BigInt, _>(knowledge.clock.now().0)
                    .bind::<BigInt, _>(*most)
                    .execute(conn)
                    .await?;
                if queued > 0 {
                    super::wake_in(conn, account).await?;
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
