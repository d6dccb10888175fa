//! Who reaches which record: one judgement for calls over HTTP and for all others.
//!
//! **Owns** the table `uses`: which record refers to which. **Needs** [`Projects`], which `platform-projects` answers, and one [`Resources`] for each
//! [`Kind`] whose records can be in a project or belong to an end user; the crate of that kind answers it.
//!
//! A caller who wants something says so as a [`Demand`]: what it names, what it refers to, where it puts something and
//! which [`Right`] it takes. [`Access::check`] refuses, or says which project decided.
//!
//! A record that refers to another says so with [`use_in`], in the transaction that stores it. Whoever deletes a record
//! asks [`users_in`] who is in the way, or has it taken out of all that refer to it by [`Referrers::forget_in`].
//!
//! **Invariants**: a kind whose records can be in a project has its [`Resources`], or [`Access::new`] fails; what does
//! not exist is refused by nobody here, since only its own service can say so.
//!
//! ```
//! use std::sync::Arc;
//! use platform_access::{Access, Demand, Kind, NoProjects, Right};
//! use platform_core::{AccountId, Caller, Credential, Origin};
//!
//! const LABEL: Kind = Kind::of_account("label");
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let access = Access::new(Arc::new(NoProjects), [], &[LABEL]).unwrap();
//! let caller = Caller {
//!     account: AccountId::generate(),
//!     credential: Credential::FullKey("k1".into()),
//!     user_uid: "apikey:k1".into(),
//!     projects: None,
//!     origin: Origin::default(),
//! };
//! let named = [(LABEL, "l1".to_owned())];
//! let demand = Demand { named: &named, right: Right::Change, ..Demand::default() };
//! access.check(&caller, demand).await.expect("a full key reaches all of its account");
//! # });
//! ```

mod access;
pub mod code;
mod demand;
mod kind;
mod reach;
mod schema;
mod settings;
mod uses;

pub use access::{Access, NoProjects, PROJECT_TOPIC, Projects, allowed, check_owner};
pub use demand::{Demand, ReferenceField, Right, references};
pub use kind::{Kind, Place, Reference, References, Resources};
pub use reach::{KnownProject, KnownProjects, ProjectRole, Reach, Visibility};
pub use settings::{ReferenceForm, ReferencePlace, SettingsTable};
pub use uses::{RecordRef, Referrer, Referrers, use_in, users_in};
