use std::{cmp::Reverse, sync::Arc};

use async_trait::async_trait;
use diesel_async::AsyncConnection;
use moka::sync::Cache;
use platform_core::{AccountId, Clock, Code, Error, FairSemaphore, Id, Object, Result, joined, overlay};
use platform_db::{Bus, Capacity, Conn, Db, Idempotency, InvalidatedCache};
use platform_runtime::{
    Budget, Catalog, CoreMemoryBlock, EarlierTurn, EarlierTurns, Memory, MemoryBucket, Payer, RecalledTurns,
};
use tracing::warn;

use crate::{
    block, code,
    entry::{
        AddedEntry, Bucket, CoreMemoryEntries, EntryPatch, MemoryEntry, MemoryLimits, NewEntry, RemovedEntry, Source,
    },
    recall, repository,
};

/// Bytes of blocks that are known at once.
const MAX_KNOWN: u64 = 32 << 20;
/// Under which changes are told to all processes.
const TOPIC: &str = "core-memory";
/// Recollections under way, and of one account.
const AT_ONCE: (usize, usize) = (16, 6);
/// Those of them that look through all that was said, of one account; of one bucket there is one at a time.
const SEARCHES: usize = 2;
/// Entries of a bucket that were put aside and are kept.
const MAX_ARCHIVED: i64 = 1000;

/// Core memory of assistants. `ENTRY_NOT_FOUND` comes from all that name an entry.
#[async_trait]
pub trait MemoryService: Send + Sync {
    /// What is remembered of one; `bucket`: `None` = the assistant remembers nothing.
    async fn get(
        &self,
        account: &AccountId,
        bucket: Option<&MemoryBucket>,
        archived: bool,
    ) -> Result<CoreMemoryEntries>;
    /// The same as a page of Markdown, with what was put aside.
    async fn export(&self, account: &AccountId, bucket: Option<&MemoryBucket>) -> Result<String>;
    /// Whether what is given of an entry can be written, wherever that may be.
    fn check(&self, given: Object) -> Result<()>;
    /// Writes an entry, unless there is one that says the same. `CORE_MEMORY_FULL` when there is no room.
    async fn add(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        new: NewEntry,
        source: Source,
        once: Option<&Idempotency>,
    ) -> Result<AddedEntry>;
    /// Changes where an entry stands, or has another stand in its place. `ENTRY_READ_ONLY` when it is not theirs.
    async fn update(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        id: &Id<MemoryEntry>,
        patch: Object,
        source: Source,
    ) -> Result<MemoryEntry>;
    /// Puts an entry aside. `ENTRY_READ_ONLY` when it is not theirs.
    async fn remove(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        id: &Id<MemoryEntry>,
        source: Source,
    ) -> Result<RemovedEntry>;
    /// Forgets all of a tenant, or of one of its end users.
    async fn forget(&self, account: &AccountId, tenant: &str, subtenant: Option<&str>) -> Result<()>;
    /// Forgets all that an assistant remembered, by its id.
    async fn forget_assistant(&self, account: &AccountId, id: &str) -> Result<()>;
}

/// What memory needs of others.
pub struct MemoryNeeds {
    /// Where it is kept.
    pub db: Db,
    /// Whom changes are told.
    pub bus: Bus,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What was said in earlier chats.
    pub turns: Arc<dyn EarlierTurns>,
    /// What models there are.
    pub catalog: Arc<dyn Catalog>,
    /// Who lets them be asked.
    pub budget: Arc<dyn Budget>,
    /// How much is remembered of one.
    pub limits: MemoryLimits,
}

/// Memory on PostgreSQL.
pub struct PgMemory {
    db: Db,
    clock: Arc<dyn Clock>,
    turns: Arc<dyn EarlierTurns>,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) budget: Arc<dyn Budget>,
    limits: MemoryLimits,
    /// What is known of each, as it stands in prompts.
    blocks: Arc<InvalidatedCache<String, Option<CoreMemoryBlock>>>,
    /// Recollections under way, each of some megabytes.
    recalling: FairSemaphore,
    /// Those of them that look through all that was said, by account and by bucket.
    searching: (FairSemaphore, FairSemaphore<String>),
    /// Vectors of what was said, by what makes them and the text.
    pub(crate) vectors: Cache<String, Arc<[f32]>>,
}

impl PgMemory {
    /// Memory that hears over the bus what others write.
    pub fn new(needs: MemoryNeeds) -> Self {
        let MemoryNeeds { db, bus, clock, turns, catalog, budget, limits } = needs;
        let size =
            |block: &Option<CoreMemoryBlock>| block.as_ref().map_or(0, |block| block.text.len() + block.record.len());
        let blocks = InvalidatedCache::by_id(&bus, TOPIC, Capacity::Bytes(MAX_KNOWN, size));
        let recalling = FairSemaphore::new(AT_ONCE.0, AT_ONCE.1);
        let searching = (FairSemaphore::new(0, SEARCHES), FairSemaphore::new(0, 1));
        Self { db, clock, turns, catalog, budget, limits, blocks, recalling, searching, vectors: recall::vectors() }
    }

    /// Finds room for an entry beside others that live.
    fn room(&self, others: &[MemoryEntry], entry: &EntryPatch) -> Result<()> {
        let chars: usize = others.iter().map(|entry| entry.content.chars().count()).sum();
        let MemoryLimits { max_chars, max_entries, .. } = self.limits;
        let fits = |count: usize, most: usize| most == 0 || count <= most;
        if fits(others.len() + 1, max_entries) && fits(chars + entry.content.chars().count(), max_chars) {
            return Ok(());
        }
        let message = format!(
            "Core memory is full: {} entries with {chars} characters. Remove what is no longer true, or shorten it.",
            others.len()
        );
        Err(Error::new(code::CORE_MEMORY_FULL, message).with("limits", self.limits))
    }
}

/// An entry of a bucket, also one that was put aside.
async fn entry(conn: &mut Conn, account: &AccountId, bucket: &MemoryBucket, id: &str) -> Result<MemoryEntry> {
    let missing = || Error::not_found(code::ENTRY_NOT_FOUND, "core memory entry", id);
    // An id has one spelling: neither a sign nor zeros before it.
    let number = id.parse::<i64>().ok().filter(|number| number.to_string() == id).ok_or_else(missing)?;
    repository::find(conn, account, bucket, number).await?.ok_or_else(missing)
}

/// A name of a bucket.
fn name(account: &AccountId, bucket: &MemoryBucket) -> String {
    let MemoryBucket { assistant_id, tenant_id, subtenant_id, .. } = bucket;
    joined([account.as_str(), assistant_id, tenant_id, subtenant_id.as_deref().unwrap_or_default()])
}

/// Refuses whoever must leave an entry as it is.
fn check_change(entry: &MemoryEntry, source: Source) -> Result<()> {
    if entry.read_only && !source.is_trusted() {
        return Err(Error::new(code::ENTRY_READ_ONLY, format!("The entry {} is read-only.", entry.id)));
    }
    Ok(())
}

/// The entry that says the same.
fn same<'a>(entries: &'a [MemoryEntry], content: &str) -> Option<&'a MemoryEntry> {
    let content = folded(content);
    entries.iter().find(|entry| folded(&entry.content) == content)
}

/// A text without case and superfluous space.
fn folded(text: &str) -> String {
    text.split_whitespace().map(str::to_lowercase).collect::<Vec<_>>().join(" ")
}

#[async_trait]
impl MemoryService for PgMemory {
    async fn get(
        &self,
        account: &AccountId,
        bucket: Option<&MemoryBucket>,
        archived: bool,
    ) -> Result<CoreMemoryEntries> {
        let limits = self.limits;
        let Some(bucket) = bucket else {
            let (bucket, entries) = (Bucket::default(), Vec::new());
            return Ok(CoreMemoryEntries { enabled: false, bucket, entries, limits, revision: None });
        };
        let entries = repository::list(self.db.read().await?.get(), account, bucket, archived).await?;
        let live: Vec<MemoryEntry> = entries.iter().filter(|entry| entry.archived_at.is_none()).cloned().collect();
        let revision = Some(block::render(&live, &limits).revision);
        Ok(CoreMemoryEntries { enabled: true, bucket: bucket.into(), entries, limits, revision })
    }

    async fn export(&self, account: &AccountId, bucket: Option<&MemoryBucket>) -> Result<String> {
        Ok(block::markdown(&self.get(account, bucket, true).await?.entries))
    }

    fn check(&self, given: Object) -> Result<()> {
        let any = EntryPatch { content: "-".to_owned(), ..EntryPatch::default() };
        overlay(&any, given)?.check(&self.limits)
    }

    async fn add(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        new: NewEntry,
        source: Source,
        once: Option<&Idempotency>,
    ) -> Result<AddedEntry> {
        let NewEntry { content, section, pinned, read_only } = new;
        if read_only && source == Source::User {
            return Err(Error::new(Code::FORBIDDEN, "readOnly cannot be set by sessions."));
        }
        let section = section.unwrap_or_else(|| EntryPatch::default().section);
        let mut entry = EntryPatch { content, section, pinned, read_only };
        entry.check(&self.limits)?;
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let adding = conn.transaction::<_, Error, _>(async |conn| {
            repository::make(conn, account, bucket).await?;
            let last = repository::lock(conn, account, bucket).await?;
            let live = repository::list(conn, account, bucket, false).await?;
            let added = match same(&live, &entry.content) {
                Some(entry) => AddedEntry { entry: entry.clone(), deduped: true },
                None => {
                    self.room(&live, &entry)?;
                    let new = (last + 1, &entry);
                    let entry = repository::insert(conn, account, bucket, new, (source.as_str(), None), now).await?;
                    AddedEntry { entry, deduped: false }
                }
            };
            if let Some(once) = once {
                once.store(conn, if added.deduped { 200 } else { 201 }, &added).await?;
            }
            Ok(added)
        });
        let added = adding.await?;
        drop(conn);
        if !added.deduped {
            self.blocks.changed(&name(account, bucket)).await?;
        }
        Ok(added)
    }

    async fn update(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        id: &Id<MemoryEntry>,
        patch: Object,
        source: Source,
    ) -> Result<MemoryEntry> {
        // What no session can change was `false` before.
        if patch.get("readOnly") == Some(&true.into()) && source == Source::User {
            return Err(Error::new(Code::FORBIDDEN, "readOnly cannot be set by sessions."));
        }
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let changing = conn.transaction::<_, Error, _>(async |conn| {
            let last = repository::lock(conn, account, bucket).await?;
            let found = entry(conn, account, bucket, id).await?;
            if found.archived_at.is_some() {
                return Err(Error::not_found(code::ENTRY_NOT_FOUND, "core memory entry", id));
            }
            check_change(&found, source)?;
            let before = EntryPatch {
                content: found.content.clone(),
                section: found.section.clone(),
                pinned: found.pinned,
                read_only: found.read_only,
            };
            let mut entry = overlay(&before, patch)?;
            entry.check(&self.limits)?;
            if entry == before {
                return Ok(found);
            }
            if entry.content == found.content {
                return repository::update(conn, account, bucket, (found.id, &entry), now).await;
            }
            let mut others = repository::list(conn, account, bucket, false).await?;
            others.retain(|other| other.id != found.id);
            if let Some(same) = same(&others, &entry.content) {
                let message = format!("The entry {} says the same already; remove one of the two.", same.id);
                return Err(Error::new(Code::CONFLICT, message));
            }
            self.room(&others, &entry)?;
            repository::archive(conn, account, bucket, found.id, now).await?;
            repository::trim(conn, account, bucket, MAX_ARCHIVED).await?;
            let new = (last + 1, &entry);
            repository::insert(conn, account, bucket, new, (&found.source, Some(found.id)), now).await
        });
        let changed = changing.await?;
        drop(conn);
        self.blocks.changed(&name(account, bucket)).await?;
        Ok(changed)
    }

    async fn remove(
        &self,
        account: &AccountId,
        bucket: &MemoryBucket,
        id: &Id<MemoryEntry>,
        source: Source,
    ) -> Result<RemovedEntry> {
        let now = self.clock.now();
        let mut conn = self.db.conn().await?;
        let removing = conn.transaction::<_, Error, _>(async |conn| {
            repository::lock(conn, account, bucket).await?;
            let found = entry(conn, account, bucket, id).await?;
            let removed = found.archived_at.is_none();
            if removed {
                check_change(&found, source)?;
                repository::archive(conn, account, bucket, found.id, now).await?;
                repository::trim(conn, account, bucket, MAX_ARCHIVED).await?;
            }
            Ok(RemovedEntry { removed, id: found.id })
        });
        let removed = removing.await?;
        drop(conn);
        self.blocks.changed(&name(account, bucket)).await?;
        Ok(removed)
    }

    async fn forget(&self, account: &AccountId, tenant: &str, subtenant: Option<&str>) -> Result<()> {
        repository::forget(&mut *self.db.conn().await?, account, tenant, subtenant).await?;
        self.blocks.changed("").await
    }

    async fn forget_assistant(&self, account: &AccountId, id: &str) -> Result<()> {
        repository::forget_assistant(&mut *self.db.conn().await?, account, id).await?;
        self.blocks.changed("").await
    }
}

#[async_trait]
impl Memory for PgMemory {
    async fn core(&self, account: &AccountId, bucket: &MemoryBucket) -> Result<Arc<Option<CoreMemoryBlock>>> {
        let load = async {
            let entries = repository::list(self.db.read().await?.get(), account, bucket, false).await?;
            Ok(Some((!entries.is_empty()).then(|| block::render(&entries, &self.limits))))
        };
        Ok(self.blocks.get_or_load(&name(account, bucket), load).await?.unwrap_or_default())
    }

    async fn earlier(
        &self,
        bucket: &MemoryBucket,
        payer: &Payer,
        chat: &str,
        question: &str,
        source: &'static str,
    ) -> Result<RecalledTurns> {
        let account = &payer.account;
        let searches = source != recall::AT_START;
        // Who searches without end holds nobody else up, and of their own account no chat that begins.
        let _search = if searches {
            let (of_account, of_bucket) = &self.searching;
            Some((of_bucket.acquire(&name(account, bucket)).await, of_account.acquire(account).await))
        } else {
            None
        };
        let _place = self.recalling.acquire(account).await;
        let mut turns = self.turns.newest(account, bucket, chat, recall::MAX_TURNS).await?;
        let mut is_partial = false;
        if searches {
            let words = recall::sought(question);
            let older = self.turns.saying(account, bucket, chat, &words).await.unwrap_or_else(|error| {
                warn!(%error, "Words could not be looked for in all chats; they are in the newest.");
                is_partial = true;
                Vec::new()
            });
            let is_new = |turn: &EarlierTurn| !turns.iter().any(|known| known.holds(turn));
            let older: Vec<_> = older.into_iter().filter(|turn| is_new(turn)).collect();
            turns.extend(older);
            turns.sort_by_key(|turn| Reverse(turn.at));
        }
        Ok(RecalledTurns { is_partial, ..recall::find(self, payer, turns, question, source).await? })
    }
}
