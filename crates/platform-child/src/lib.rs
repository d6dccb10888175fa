//! Work on what clients wrote, in child processes that can be killed.
//!
//! **Owns** no table and no endpoint. **Needs** a program whose one argument makes it call [`serve`]: the
//! platform's own binary. [`Children`] keeps such processes warm, gives each one piece of work at a time and
//! kills it when it takes too long.
//!
//! **Invariants**: a child has no environment, opens no file and no socket, and starts no process; a piece
//! of work has a budget of CPU time and memory that holds whatever native code it is stuck in; a child that
//! broke a bound does nothing more; a future that is dropped takes its child with it.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use platform_child::*;
//! const REVERSE: Work = Work {
//!     name: "reverse",
//!     run: |bytes| bytes.iter().rev().copied().collect(),
//!     cpu: Duration::from_secs(1),
//!     memory: 64 << 20,
//! };
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! if std::env::args().nth(1).as_deref() == Some("child") {
//!     return Ok(serve(&[REVERSE])?);
//! }
//! let children = Children::of_this_program("child")?;
//! assert_eq!(children.run("reverse", b"abc").await?, b"cba");
//! # Ok(()) }
//! ```

mod children;
mod serve;

pub use children::{ChildError, Children};
pub use serve::{Work, serve};
