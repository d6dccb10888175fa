//! Indexing as a durable run: one of each account, through all of its documents that are due.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel::prelude::*;
use diesel_async::{AsyncConnection, RunQueryDsl};
use platform_core::{AccountId, Error, ErrorKind, Id, Result, Timestamp, run_blocking};
use platform_db::{Conn, JsonStatement};
use platform_events::Event;
use platform_jobs::{Run, When, Work, end_in, enqueue_in, is_held_in};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    KIND,
    chunk::{Chunk, chunks as pieces},
    embed::{Embedding, embed},
    kept_words, summary,
};
use crate::{
    document::{
        Indexing, IndexingError, PgKnowledge,
        repository::{self, Indexed},
    },
    schema::{chunks, documents},
};

/// Waits before the second and the third try (contract 06 §1).
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(10), Duration::from_mins(1)];
/// Pieces that are stored by one statement.
const BATCH: usize = 500;
/// Letters of a text by which its language is told.
const SAMPLE: usize = 10_000;

/// Indexes what is due.
pub(crate) struct IndexWork(pub Arc<PgKnowledge>);

enum ChunkKind {}
pub(super) enum IndexKind {}

#[async_trait]
impl Work for IndexWork {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn work(&self, run: &Run, stop: &CancellationToken) -> Result<()> {
        let account = run.account();
        while !stop.is_cancelled() {
            let due = first_due(self.0.db.read().await?.get(), &account, self.0.clock.now()).await?;
            match due {
                Some((id, due)) if due <= self.0.clock.now() => self.index(run, &account, &id, stop).await?,
                _ if self.rest(run, &account).await? => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }
}

impl IndexWork {
    /// Ends the run, or puts it off until something is due; `false` when something is.
    async fn rest(&self, run: &Run, account: &AccountId) -> Result<bool> {
        let now = self.0.clock.now();
        let mut conn = self.0.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            // Who has something new waits for this lock, or has committed before.
            if !is_held_in(conn, run).await? {
                return Ok(true);
            }
            let due = first_due(conn, account, now).await?.map(|(_, due)| due);
            if due.is_some_and(|due| due <= now) {
                return Ok(false);
            }
            end_in(conn, run).await?;
            if let Some(due) = due {
                enqueue_in(conn, account, KIND, account.as_str(), Value::Null, When::ByClock(due.since(now))).await?;
            }
            Ok(true)
        })
        .await
    }

    async fn index(&self, run: &Run, account: &AccountId, id: &str, stop: &CancellationToken) -> Result<()> {
        let began = self.0.clock.now();
        let conn = self.0.db.read().await?;
        let Some(row) = repository::find(conn.get(), account, id).await? else { return Ok(()) };
        let text = repository::text(conn.get(), account, id, &row.content_hash).await?.unwrap_or_default();
        drop(conn);
        let before: Indexing = serde_json::from_value(row.indexing.clone()).map_err(Error::internal)?;
        let attempts = before.attempts + 1;
        if row.unread {
            // What is in its file may be readable now.
            let parsing = Indexing { state: "parsing".to_owned(), started_timestamp_ms: Some(began), ..before.clone() };
            let (due, indexed) = (row.due_ms.map(Timestamp), Indexed::default());
            let mut conn = self.0.db.conn().await?;
            repository::note_indexing(&mut conn, account, id, "pending", &parsing, due, indexed).await?;
            drop(conn);
            match self.0.read_again(account, id).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return self.fail(run, account, &row, &error, attempts).await,
            }
        }
        let under_way = &Indexing {
            state: "chunking".to_owned(),
            attempts,
            error: before.error,
            embedding: before.embedding,
            started_timestamp_ms: Some(began),
            ..Indexing::default()
        };
        if text.len() > 64 * 1024 || attempts > 1 {
            // What takes a moment shows that it is under way.
            let mut conn = self.0.db.conn().await?;
            let due = row.due_ms.map(Timestamp);
            let indexed = Indexed::default();
            repository::note_indexing(&mut conn, account, id, "pending", under_way, due, indexed).await?;
        }
        let pieces = run_blocking(move || Ok(Pieces { language: language(&text), chunks: pieces(&text) })).await;
        let (pieces, indexed) = match pieces {
            Ok(pieces) => {
                let indexed = self.put(run, &row, &pieces, under_way, stop).await;
                (Some(pieces), indexed)
            }
            Err(error) => (None, Err(error)),
        };
        let Err(error) = indexed else { return Ok(()) };
        warn!(document = id, attempts, %error, "A document could not be indexed.");
        let is_last = usize::try_from(attempts).is_ok_and(|tried| tried > RETRY_DELAYS.len());
        if let Some(pieces) = pieces.filter(|_| is_last && is_of_embedder(&error)) {
            // No vectors will come soon: at least its words are found.
            self.store(run, &row, &pieces, under_way).await?;
        }
        self.fail(run, account, &row, &error, attempts).await
    }

    /// Puts a version of a document into the index. What was there of the one before is found until all of this one can
    /// be; where there was nothing, its words are found at once.
    async fn put(
        &self,
        run: &Run,
        row: &repository::DocumentRow,
        pieces: &Pieces,
        under_way: &Indexing,
        stop: &CancellationToken,
    ) -> Result<()> {
        let Some(model) = self.0.embedding_model() else { return self.store(run, row, pieces, under_way).await };
        let account = run.account();
        let is_new = repository::piece_count(self.0.db.read().await?.get(), &account, &row.id).await? == 0;
        if is_new {
            self.store(run, row, pieces, under_way).await?;
        }
        let so_far = Indexing { state: "embedding".to_owned(), chunks_total: pieces.count(), ..under_way.clone() };
        embed(&self.0, run, Embedding { row, pieces, is_stored: is_new, model: &model }, so_far, stop).await
    }

    /// Puts the pieces of a version into the index in place of those before, unless there is a newer one: they are found
    /// by their words from then on. Without vectors that is all.
    async fn store(
        &self,
        run: &Run,
        row: &repository::DocumentRow,
        pieces: &Pieces,
        under_way: &Indexing,
    ) -> Result<()> {
        let (account, count) = (run.account(), pieces.count());
        let stored = Indexing { state: "embedding".to_owned(), chunks_total: count, ..under_way.clone() };
        let mut conn = self.0.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            let Some(current) = repository::lock(conn, &account, &row.id).await? else { return Ok(()) };
            // Another text, another name: it is still due.
            if !is_same(&current, row) {
                return Ok(());
            }
            let indexed = insert(conn, row, current.current_version, pieces).await?;
            if self.0.embedding_model().is_some() {
                let due = current.due_ms.map(Timestamp);
                repository::note_indexing(conn, &account, &row.id, "pending", &stored, due, indexed).await?;
            } else {
                let done = Indexing { chunks_done: count, ..stored };
                finish_in(conn, &account, &row.id, &done, (indexed, None), self.0.clock.now()).await?;
            }
            if is_held_in(conn, run).await? { Ok(()) } else { Err(Error::internal("the lease is lost")) }
        })
        .await
    }

    /// It is tried again later, or has failed.
    async fn fail(
        &self,
        run: &Run,
        account: &AccountId,
        row: &repository::DocumentRow,
        error: &Error,
        attempts: i64,
    ) -> Result<()> {
        let now = self.0.clock.now();
        let tried = usize::try_from(attempts).unwrap_or(usize::MAX);
        let again = RETRY_DELAYS.get(tried.saturating_sub(1)).copied();
        let rest = if again.is_some() {
            "It is tried again soon."
        } else {
            "Its words are found; have it indexed again for the rest."
        };
        let error = if is_of_embedder(error) {
            IndexingError { code: "EMBEDDING_FAILED".to_owned(), message: format!("{} {rest}", error.message()) }
        } else {
            IndexingError {
                code: "INDEXING_FAILED".to_owned(),
                message: "The text could not be put into the index; have it indexed again.".to_owned(),
            }
        };
        let (state, status) = if again.is_some() { ("queued", "pending") } else { ("error", "failed") };
        let due = again.map(|wait| now.after(wait));
        let mut conn = self.0.db.conn().await?;
        conn.transaction::<_, Error, _>(async |conn| {
            let current = repository::lock(conn, account, &row.id).await?;
            let is_still = |current: &repository::DocumentRow| {
                is_same(current, row) && current.current_version == row.current_version
            };
            if let Some(current) = current.filter(is_still)
                && is_held_in(conn, run).await?
            {
                // How far it came stands in the record.
                let so_far: Indexing = serde_json::from_value(current.indexing).map_err(Error::internal)?;
                let (state, error) = (state.to_owned(), Some(error));
                let finished_timestamp_ms = Some(now);
                let failed = Indexing { state, attempts, error, finished_timestamp_ms, ..so_far };
                let indexed = Indexed::default();
                repository::note_indexing(conn, account, &row.id, status, &failed, due, indexed).await?;
                if again.is_none() {
                    publish_in(conn, account, &row.id, &failed, now).await?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// A text as it is put into the index.
pub(super) struct Pieces {
    language: &'static str,
    pub chunks: Vec<Chunk>,
}

impl Pieces {
    pub fn count(&self) -> i64 {
        i64::try_from(self.chunks.len()).unwrap_or(i64::MAX)
    }
}

/// Whether it was the model of vectors that failed.
fn is_of_embedder(error: &Error) -> bool {
    matches!(error.code().kind(), ErrorKind::Upstream | ErrorKind::UpstreamTimeout)
}

/// Whether a document still has the text and the name that are being indexed.
pub(super) fn is_same(current: &repository::DocumentRow, row: &repository::DocumentRow) -> bool {
    current.content_hash == row.content_hash && current.name == row.name
}

/// What is in the index is what the document says: it is found, and summed up next.
pub(super) async fn finish_in(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    indexing: &Indexing,
    (indexed, embedded_by): (Indexed, Option<&str>),
    now: Timestamp,
) -> Result<()> {
    let finished_timestamp_ms = Some(now);
    let done = Indexing { state: "done".to_owned(), error: None, finished_timestamp_ms, ..indexing.clone() };
    repository::note_ready(conn, account, id, &done, indexed, embedded_by).await?;
    publish_in(conn, account, id, &done, now).await?;
    summary::wake_in(conn, account).await
}

/// Says that a document is in the index, or will not be.
pub(crate) async fn publish_in(
    conn: &mut Conn,
    account: &AccountId,
    id: &str,
    indexing: &Indexing,
    now: Timestamp,
) -> Result<()> {
    let of = repository::by_id(account.as_str(), id).select((documents::name, documents::project_id));
    let (name, project): (String, Option<String>) = of.first(conn).await?;
    let (kind, status) =
        if indexing.error.is_some() { ("document.failed", "failed") } else { ("document.indexed", "ready") };
    let mut data = json!({"documentId": id, "name": name, "status": status});
    if let Some(error) = &indexing.error {
        data["error"] = json!(error);
    }
    let event = Event { project: project.as_deref(), ..Event::new(account, kind, data) };
    platform_events::publish_in(conn, vec![event], now).await
}

/// The document of an account that is due first. Those whose file could not be read before wait for the others: reading
/// it again may take long.
async fn first_due(conn: &Conn, account: &AccountId, now: Timestamp) -> Result<Option<(String, Timestamp)>> {
    let mut conn = conn;
    let due = || {
        documents::table
            .filter(documents::account_id.eq(account.as_str()).and(documents::due_ms.is_not_null()))
            .order((documents::due_ms, documents::id))
            .select((documents::id, documents::due_ms, documents::unread))
    };
    type First = (String, Option<i64>, bool);
    let mut first: Option<First> = due().first(&mut conn).await.optional()?;
    if first.as_ref().is_some_and(|(_, due, unread)| *unread && *due <= Some(now.0)) {
        let read = due().filter(documents::due_ms.le(now.0).and(documents::unread.eq(false)));
        first = read.first::<First>(&mut conn).await.optional()?.or(first);
    }
    Ok(first.and_then(|(id, due, _)| Some((id, Timestamp(due?)))))
}

#[derive(Serialize)]
struct NewChunk<'a> {
    account: &'a str,
    document: &'a str,
    version: i32,
    language: &'static str,
    name: String,
    position: usize,
    id: String,
    path: &'a [String],
    headings: String,
    text: &'a str,
    /// Of its vector.
    hash: String,
    /// Of it, as they are looked for.
    words: String,
    tokens: usize,
}

/// Puts pieces into the index in place of those before; what it holds then.
pub(super) async fn insert(
    conn: &mut Conn,
    row: &repository::DocumentRow,
    version: i32,
    Pieces { language, chunks: pieces }: &Pieces,
) -> Result<Indexed> {
    // With a prefix of the account in each word, the index leads to pieces of that account alone, however many it has;
    // with a mark after it, to those that have the word in what stands above them.
    const INSERT: &str = "INSERT INTO chunks \
        (account_id, document_id, position, id, document_version, heading_path, text, text_hash, token_count, \
            words) \
        SELECT account, document, position, id, version, path, text, hash, tokens, \
            replace(' ' || (setweight(to_tsvector(language::regconfig, headings), 'A') \
                || setweight(to_tsvector(language::regconfig, name), 'B') \
                || to_tsvector(language::regconfig, words))::text, ' ''', ' ''' || left(md5(account), 8))::tsvector \
            || strip(replace(' ' || to_tsvector(language::regconfig, headings || ' ' || name)::text, ' ''', \
                ' ''' || left(md5(account), 8) || '^')::tsvector) \
        FROM jsonb_to_recordset($1::jsonb) AS c (account text, document text, version integer, language text, \
            name text, position integer, id text, path jsonb, headings text, text text, hash text, words text, \
            tokens integer)";
    let old = chunks::table.filter(chunks::account_id.eq(&row.account_id).and(chunks::document_id.eq(&row.id)));
    diesel::delete(old).execute(conn).await?;
    for (batch, pieces) in pieces.chunks(BATCH).enumerate() {
        let rows: Vec<NewChunk<'_>> = pieces
            .iter()
            .enumerate()
            .map(|(at, chunk)| NewChunk {
                account: &row.account_id,
                document: &row.id,
                version,
                language,
                name: kept_words(&row.name),
                position: batch * BATCH + at,
                id: Id::<ChunkKind>::generate().into(),
                path: &chunk.heading_path,
                headings: kept_words(&chunk.heading_path.join(" ")),
                words: kept_words(&chunk.text),
                text: &chunk.text,
                hash: chunk.text_hash(),
                tokens: chunk.token_count,
            })
            .collect();
        JsonStatement::new(INSERT, &rows)?.execute(conn).await?;
    }
    let piece_count = Some(i32::try_from(pieces.len()).unwrap_or(i32::MAX));
    let index_id = Some(Id::<IndexKind>::generate().into());
    Ok(Indexed { language: Some(language), piece_count, index_id })
}

/// Name of the text search configuration of a text's language; `simple` when it cannot be told.
fn language(text: &str) -> &'static str {
    use whatlang::Lang;
    let sample: String = text.chars().take(SAMPLE).collect();
    let found = whatlang::detect(&sample).filter(whatlang::Info::is_reliable);
    match found.map(|found| found.lang()) {
        Some(Lang::Eng) => "english",
        Some(Lang::Deu) => "german",
        Some(Lang::Fra) => "french",
        Some(Lang::Spa) => "spanish",
        Some(Lang::Ita) => "italian",
        Some(Lang::Por) => "portuguese",
        Some(Lang::Nld) => "dutch",
        Some(Lang::Swe) => "swedish",
        Some(Lang::Dan) => "danish",
        Some(Lang::Nob) => "norwegian",
        Some(Lang::Fin) => "finnish",
        Some(Lang::Hun) => "hungarian",
        Some(Lang::Ron) => "romanian",
        Some(Lang::Rus) => "russian",
        Some(Lang::Tur) => "turkish",
        Some(Lang::Ara) => "arabic",
        Some(Lang::Ell) => "greek",
        Some(Lang::Hin) => "hindi",
        Some(Lang::Ind) => "indonesian",
        Some(Lang::Lit) => "lithuanian",
        Some(Lang::Nep) => "nepali",
        Some(Lang::Srp) => "serbian",
        Some(Lang::Tam) => "tamil",
        Some(Lang::Cat) => "catalan",
        Some(Lang::Hye) => "armenian",
        Some(Lang::Yid) => "yiddish",
        _ => "simple",
    }
}

#[cfg(test)]
mod tests {
    use super::language;

    #[test]
    fn the_language_of_a_text_is_told_when_there_is_enough_of_it() {
        let german =
            "Der Schl\u{fc}ssel wird jeden Monat gewechselt, und wer ihn verliert, meldet das noch am selben Tag.";
        let english = "The key is changed every month, and whoever loses it reports that on the same day.";
        assert_eq!((language(german), language(english), language("x1 y2")), ("german", "english", "simple"));
    }
}
