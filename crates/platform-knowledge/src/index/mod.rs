//! The search index: documents in pieces, kept up to date by durable runs.

mod chunk;
mod embed;
mod summary;
mod work;

use std::sync::Arc;

use crate::{
    document::{Indexing, PgKnowledge, Reindex},
    schema::documents,
};
use diesel::prelude::*;
use diesel_async::RunQueryDsl;
use platform_core::{AccountId, Error, Result, Timestamp, search_words, unsplit_words};
use platform_db::Conn;
use platform_jobs::{Work, enqueue_or_wake_in};

use summary::SummaryWork;
pub(crate) use summary::{BY_CLIENT, wake_in as sum_up_in};
use work::IndexWork;
pub(crate) use work::publish_in;

pub use embed::keep;

/// Kind of the runs that index the documents of an account; their subject is the account.
pub(crate) const KIND: &str = "index";
/// Bytes of a word; what is longer is nobody's word.
const MAX_WORD: usize = 1000;

/// The words of a text that the index keeps: PostgreSQL takes 2,046 bytes, the account before each among them.
pub(crate) fn kept_words(text: &str) -> String {
    let words = unsplit_words(text).fold(search_words(text), |words, whole| words + " " + &whole);
    let is_kept = |word: &&str| word.len() <= MAX_WORD;
    if words.split(' ').all(|word| is_kept(&word)) {
        return words;
    }
    words.split(' ').filter(is_kept).collect::<Vec<_>>().join(" ")
}

/// Has what is due in an account indexed once this transaction commits; to be called last in it, since whoever else
/// writes there waits for its end.
pub(crate) async fn wake_in(conn: &mut Conn, account: &AccountId) -> Result<()> {
    // Whoever works the run looks again before it ends.
    enqueue_or_wake_in(conn, account, KIND, account.as_str()).await
}

/// Has documents indexed anew that have a text, or a file that may have one; how many.
pub(crate) async fn queue_in(
    conn: &mut Conn,
    account: &AccountId,
    which: &Reindex,
    folders: Option<&[String]>,
    within: Option<&[String]>,
    now: Timestamp,
) -> Result<i64> {
    let mut of = documents::table
        .filter(documents::account_id.eq(account.as_str()))
        .filter(documents::size.gt(0).or(documents::source_file_id.is_not_null()))
        .select(documents::id)
        .into_boxed();
    if let Some(folders) = folders {
        of = of.filter(documents::folder_id.eq_any(folders));
    }
    if let Some(project) = &which.project_id {
        of = of.filter(documents::project_id.eq(project));
    }
    if which.status.is_some() {
        of = of.filter(documents::status.eq("failed"));
    }
    if let Some(within) = within {
        of = of.filter(documents::project_id.is_null().or(documents::project_id.eq_any(within)));
    }
    let indexing = serde_json::to_value(Indexing::queued()).map_err(Error::internal)?;
    let queued = (documents::status.eq("pending"), documents::indexing.eq(indexing), documents::due_ms.eq(now.0));
    let ids: Vec<String> = of.load(conn).await?;
    let all = documents::table.filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(&ids)));
    let ids: Vec<String> = all.order(documents::id).for_no_key_update().select(documents::id).load(conn).await?;
    let queued = diesel::update(documents::table)
        .filter(documents::account_id.eq(account.as_str()).and(documents::id.eq_any(&ids)))
        .set(queued)
        .execute(conn)
        .await?;
    Ok(i64::try_from(queued).unwrap_or(i64::MAX))
}

/// The runs that keep the index up to date.
pub fn works(knowledge: &Arc<PgKnowledge>) -> Vec<Arc<dyn Work>> {
    vec![Arc::new(IndexWork(Arc::clone(knowledge))), Arc::new(SummaryWork(Arc::clone(knowledge)))]
}
