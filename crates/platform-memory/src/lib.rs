//! Memory: what assistants keep of those they talk to, and what was said to them in earlier chats (contract 11).
//!
//! **Owns** the tables `memory_buckets` and `memory_entries`; the endpoints `/v1/memory`; the tools of `builtin-memory`.
//! **Needs** `platform-db`, [`EarlierTurns`](platform_runtime::EarlierTurns) for what was said, and a
//! [`Budget`](platform_runtime::Budget) for vectors of it. It answers the port [`Memory`](platform_runtime::Memory).
//!
//! **Invariants**: a bucket is one assistant's for one tenant, or for one of its end users, and nothing leaves it; an
//! entry is never changed in what it says but superseded by another; ids never come back; what a model writes goes to
//! the bucket of its own turn, within the limits, and never over what is read-only; the same entries give the same text
//! in the prompt, byte by byte.
//!
//! ```no_run
//! # use platform_core::{AccountId, Result};
//! # use platform_memory::*;
//! # use platform_runtime::{Memory, MemoryBucket};
//! # async fn example(needs: MemoryNeeds, account: AccountId, bucket: MemoryBucket, new: NewEntry) -> Result<()> {
//! let memory = PgMemory::new(needs);
//! let added = memory.add(&account, &bucket, new, Source::Api, None).await?;
//! let block = memory.core(&account, &bucket).await?;
//! # Ok(()) }
//! ```

mod block;
pub mod code;
mod entry;
mod recall;
mod repository;
mod schema;
mod service;
mod tools;

pub use entry::{
    AddedEntry, Bucket, CoreMemoryEntries, EntryPatch, MemoryEntry, MemoryLimits, NewEntry, RemovedEntry, Source,
};
pub use service::{MemoryNeeds, MemoryService, PgMemory};
pub use tools::memory_tools;
