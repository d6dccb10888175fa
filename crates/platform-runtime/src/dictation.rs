use async_trait::async_trait;
use platform_core::{AccountId, Error, Owner, Result};

/// The port to what was dictated.
#[async_trait]
pub trait Dictations: Send + Sync {
    /// The text of a transcript that whoever acts for `owner` may use; `TRANSCRIPT_NOT_FOUND` when there is none.
    async fn text(&self, account: &AccountId, owner: &Owner, id: &str) -> Result<String>;
}

/// Nothing was dictated.
#[async_trait]
impl Dictations for () {
    async fn text(&self, _: &AccountId, _: &Owner, id: &str) -> Result<String> {
        Err(Error::not_found(crate::code::TRANSCRIPT_NOT_FOUND, "transcript", id))
    }
}
