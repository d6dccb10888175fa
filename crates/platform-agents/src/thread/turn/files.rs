//! Files of messages, fetched after the thread was accepted.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use platform_conversation::{ConversationStore, File, StoredFile, screen_files};
use platform_core::{AccountId, Error, Owner, Result};
use platform_jobs::{Run, Work, end, end_in};
use tokio_util::sync::CancellationToken;

use crate::thread::{
    change::act::hold_in,
    change::state::{Cause, ThreadState},
    facts::Unfetched,
    record::{Actor, Record, key},
    threads::{FILES, Threads},
};

/// Pauses before a file is asked for again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// Fetches the files of threads that are under construction.
pub(crate) struct Files(pub Arc<Threads>);

/// A message, its files and what was fetched of them.
pub(crate) type FetchedFiles = (String, Vec<File>, Vec<StoredFile>);
/// What was fetched, or the name of the file that could not be.
pub(crate) type Fetched = std::result::Result<Vec<FetchedFiles>, String>;

impl Threads {
    /// Asks for files, three times each.
    pub(crate) async fn fetch(&self, account: &AccountId, owner: &Owner, unfetched: &[Unfetched]) -> Fetched {
        let mut fetched = Vec::new();
        for Unfetched { message, files } in unfetched {
            let (mut waits, mut files) = (RETRY_DELAYS.into_iter(), files.clone());
            let kept = loop {
                match self.files.fetch(account, owner, &mut files).await {
                    Ok(kept) => break kept,
                    Err(error) => match waits.next() {
                        Some(wait) => tokio::time::sleep(wait).await,
                        None => {
                            let name = files.get(error.file.unwrap_or(0)).map(|file| file.name.clone());
                            return Err(name.unwrap_or_default());
                        }
                    },
                }
            };
            fetched.push((message.clone(), files, kept));
        }
        Ok(fetched)
    }

    /// Keeps what was fetched; documents are screened as if the user had written them.
    pub(crate) async fn keep_files_in(
        &self,
        conn: &mut platform_db::Conn,
        record: &mut Record,
        fetched: Vec<FetchedFiles>,
    ) -> Result<()> {
        let agent = self.agents.ready(&record.account, record.agent_id(), record.facts.turn.version).await?;
        let key = key(record.id());
        for (message, given, mut files) in fetched {
            if let Some(screen) = &agent.profile.screen {
                let (now, request) = (self.ports.clock.now(), &mut record.facts.turn.request);
                screen_files(screen, &mut files, &message, now, request).await?;
            }
            ConversationStore::of(&record.account, &key).store_files(conn, &message, &files).await?;
            ConversationStore::of(&record.account, &key).note_file_types(conn, &message, &given).await?;
        }
        record.facts.unfetched.clear();
        Ok(())
    }
}

#[async_trait]
impl Work for Files {
    fn kind(&self) -> &'static str {
        FILES
    }

    async fn work(&self, run: &Run, _stop: &CancellationToken) -> Result<()> {
        let threads = &self.0;
        let conn = threads.ports.db.read().await?;
        let found = crate::thread::repository::find(conn.get(), &run.account(), &run.subject).await?;
        drop(conn);
        let Some(found) = found else { return end(&threads.ports.db, run).await };
        let fetched = threads.fetch(&run.account(), &found.owner(), &found.facts.unfetched).await;
        let (by, now) = (Actor::worker(), threads.ports.clock.now());
        let mut conn = threads.ports.db.conn().await?;
        let moving = conn.transaction::<_, Error, _>(async |conn| {
            let held = hold_in(conn, run).await?.filter(|record| !record.facts.unfetched.is_empty());
            let Some(mut record) = held else { return Ok(None) };
            let is_new = record.state == ThreadState::UnderConstruction;
            match fetched {
                Ok(files) => threads.keep_files_in(conn, &mut record, files).await?,
                // One that is paused meanwhile asks again when it goes on.
                Err(_) if !is_new => return Ok(None),
                Err(name) => {
                    record.finish_reason = Some(format!("FILE_ERROR: {name}"));
                    record.enter(Cause::FilesFailed, ThreadState::Failed, &by, now)?;
                }
            }
            if is_new && !record.state.is_terminal() {
                let paused = (Cause::Paused, ThreadState::Paused);
                let ready = (Cause::FilesReady, ThreadState::Queued);
                let (cause, state) = if record.facts.begins_paused { paused } else { ready };
                record.enter(cause, state, &by, now)?;
            }
            let told = threads.commit_in(conn, &mut record, Some(run), 0, now).await?;
            if !is_new {
                end_in(conn, run).await?;
            }
            Ok(Some(told))
        });
        let moved = moving.await?;
        drop(conn);
        match moved {
            Some(told) => threads.tell(&told).await,
            None => end(&threads.ports.db, run).await,
        }
    }
}
