//! The newest state of a chat or thread, for whoever watches.
//!
//! **Owns** no table. **Needs** a [`Source`], which reads the committed state from the store.
//!
//! PostgreSQL holds the truth; this crate holds only the message that is being written.
//! A run shows it through [`Live`], a stream follows it through a [`Watcher`].
//!
//! **Invariants**: nothing is queued, a reader holds only the newest state and a slow one
//! costs nobody anything; a frame is encoded once, whoever watches; a frame never shows
//! text that a later frame lacks; with `partial`, folding the frames of a connection gives
//! the state at every moment (contract 02 §7).

mod frame;
mod live;
mod watcher;

pub use frame::Head;
pub use live::{Key, Live, Realtime};
pub use watcher::{Source, Watcher};
