//! The words every other crate speaks: ids, time, money, errors, pages, callers.
//!
//! **Owns** no table and no endpoint. **Needs** nothing. Values, tasks and fair shares:
//! what each floor above stands on.
//!
//! **Invariants**: an [`Id`] of ours always has the form the API promises; [`Money`] is an
//! integer of nano-dollars, never a float; an [`Error`] carries a stable code and a
//! message that is fit for a client, its cause is for the log alone; the current time
//! comes from a [`Clock`].
//!
//! ```
//! # use platform_core::{Id, Money, Page, Timestamp};
//! struct Order;
//! let id = Id::<Order>::generate();
//! assert_eq!(Id::<Order>::parse(id.as_str()).unwrap(), id);
//! let cost = Money::from_nanos(250_000_000);
//! assert_eq!((cost + cost).nanos(), 500_000_000);
//! assert_eq!(Timestamp(0).to_iso(), "1970-01-01T00:00:00.000Z");
//! ```

mod caller;
mod checks;
mod digest;
mod error;
mod fair;
mod id;
mod json;
mod money;
mod page;
mod period;
mod precondition;
mod strict;
mod task;
mod time;
mod words;

pub use caller::{Caller, Credential, Origin, OriginUser, Owner, Session, joined};
pub use checks::{Checks, FieldLimits, Issue};
pub use digest::{hex, sha256_hex};
pub use error::{Code, Error, ErrorKind, Result};
pub use fair::{FairMemory, FairPermit, FairSemaphore, NoRoom};
pub use id::{Account, AccountId, Id, IdError};
pub use json::{
    MAX_NULLS, Object, check_size, check_types, drop_null, heap_bytes, json_length, lower_case, memory_of, misfit,
    overlay, parse, read_only, without_nul,
};
pub use money::Money;
pub use page::{MAX_LISTED, Page, fitting};
pub use period::{Bound, Period, day_of};
pub use precondition::Precondition;
pub use strict::Strict;
pub use task::{TRACES, finished, run_blocking, run_detached, run_sized, spawn, spawn_finishing};
pub use time::{Clock, SystemClock, Timestamp, millis};
pub use words::{ascii_words, search_words, unsplit_words};
