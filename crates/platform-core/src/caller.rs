use crate::AccountId;

/// Who is calling: made once per credential by `platform-auth`, shared by all its requests.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The account whose records this caller can see.
    pub account: AccountId,
    /// What it showed.
    pub credential: Credential,
    /// How the caller is named on records, for example `apikey:<id>` (contract 01 §2).
    pub user_uid: String,
}

/// The credential behind a [`Caller`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A full API key, by its id.
    FullKey(String),
}

impl Caller {
    /// Id of the credential, the owner of idempotency keys.
    pub fn credential_id(&self) -> &str {
        match &self.credential {
            Credential::FullKey(id) => id,
        }
    }
}
