use std::collections::BTreeSet;

use async_trait::async_trait;
use platform_core::{AccountId, Caller, Owner, Result};

use crate::reach::ProjectRole;

/// A kind of resource, as paths and bodies name its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    name: &'static str,
    is_placed: bool,
}

/// A record of some kind, by its id.
pub type Reference = (Kind, String);
/// Records, each once.
pub type References = BTreeSet<Reference>;

impl Kind {
    /// Records that can be in a project or belong to an end user, by the name of the kind.
    pub const fn placed(name: &'static str) -> Self {
        Self { name, is_placed: true }
    }

    /// Records that are of the whole account, or of nobody, by the name of the kind.
    pub const fn of_account(name: &'static str) -> Self {
        Self { name, is_placed: false }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Whether its records can be in a project or belong to an end user.
    pub const fn is_placed(self) -> bool {
        self.is_placed
    }
}

/// Where a record is: what decides who reaches it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The project that it is in.
    pub project: Option<String>,
    /// The tenant and end user that it belongs to; sessions of others do not reach it.
    pub owner: Option<Owner>,
    /// `userUID` of who started it, where that gives a viewer of its project the right to go on with it.
    pub started_by: Option<String>,
}

/// The records of one kind, as far as access is concerned. Whoever owns the kind implements it.
#[async_trait]
pub trait Resources: Send + Sync {
    /// Where a record is or was; `None` when there is none.
    async fn place(&self, account: &AccountId, id: &str) -> Result<Option<Place>>;

    /// Refuses a caller who must not know of a record, as if there were none.
    async fn known_to(&self, _caller: &Caller, _id: &str) -> Result<()> {
        Ok(())
    }

    /// Refuses a caller who must not know of a record, or must not use it.
    async fn open_to(&self, _caller: &Caller, _id: &str) -> Result<()> {
        Ok(())
    }

    /// What a record refers to; an error when there is none.
    async fn references(&self, _account: &AccountId, _id: &str) -> Result<References> {
        Ok(References::new())
    }

    /// What it takes to refer to a record of a project.
    fn referred_by(&self) -> ProjectRole {
        ProjectRole::Viewer
    }

    /// The records whose tools it has called.
    async fn tools(&self, _account: &AccountId, _id: &str) -> Result<References> {
        Ok(References::new())
    }
}
