//! The newest state of a chat or thread, for whoever watches.
//!
//! **Owns** no table. **Needs** a [`Source`], which reads the committed state from the store.
//!
//! PostgreSQL holds the truth; this crate holds only the message that is being written.
//! A run shows it through [`Live`], a stream follows it through a [`Watcher`].
//!
//! Between processes a [`Relay`] carries it over NATS: a run says once that it begins and what revisions it commits,
//! and what it writes only when somebody elsewhere watches. Words may be lost; whoever sees a gap asks again, and the
//! store is asked from time to time, often when there is no relay.
//!
//! **Invariants**: nothing is queued, a reader holds only the newest state and a slow one
//! costs nobody anything; a frame is encoded once, whoever watches; a frame never shows
//! text that a later frame lacks; with `partial`, folding the frames of a connection gives
//! the state at every moment (contract 02 §7).
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use platform_core::{AccountId, Result};
//! # use platform_realtime::*;
//! # async fn example(realtime: Arc<Realtime>, account: AccountId, store: Arc<dyn Source>) -> Result<()> {
//! let chat: Key = (account, "chat-1".into());
//! let live = realtime.open(chat.clone(), 1, "m2", 1);
//! live.append("Hello");
//! live.committed(2, "m2");
//! let mut watcher = realtime.watch(chat, store, false);
//! while let Some(frame) = watcher.next().await? {
//!     // A frame of the stream, encoded once for all who watch.
//! }
//! # Ok(()) }
//! ```

mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod live;
mod relay;
mod room;
mod watcher;

pub use frame::Head;
pub use live::{Key, Live, Realtime};
pub use relay::Relay;
pub use watcher::{Source, Watcher};
