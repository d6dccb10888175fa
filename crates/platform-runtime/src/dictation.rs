use async_trait::async_trait;
use platform_core::{AccountId, Caller, Error, Owner, Result};

use crate::SecondaryCall;

/// The port to what was dictated.
#[async_trait]
pub trait Dictations: Send + Sync {
    /// The text of a transcript that the caller may use for a chat of `owner`; `TRANSCRIPT_NOT_FOUND` when there is none.
    async fn text(&self, caller: &Caller, owner: &Owner, id: &str) -> Result<String>;
    /// What a transcript took, if it was counted for no chat yet; from now on it is.
    async fn take_cost(&self, account: &AccountId, id: &str) -> Result<Option<SecondaryCall>>;
}

/// Nothing was dictated.
#[async_trait]
impl Dictations for () {
    async fn text(&self, _: &Caller, _: &Owner, id: &str) -> Result<String> {
        Err(Error::not_found(crate::code::TRANSCRIPT_NOT_FOUND, "transcript", id))
    }

    async fn take_cost(&self, _: &AccountId, _: &str) -> Result<Option<SecondaryCall>> {
        Ok(None)
    }
}
