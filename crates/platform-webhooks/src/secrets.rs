//! What messages are signed with: the present secret, and those before it for a day.

use platform_core::{AccountId, Error, Result, Timestamp};
use platform_vault::{Secret, SecretLocation, Vault};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// So long a secret signs after it was replaced.
const OLD_MS: i64 = 24 * 3_600_000;
/// Secrets before the previous one that still sign, the newest of them: each is a signature more in a header.
const MAX_OLDER: usize = 3;

/// Where the secret of a webhook is kept, or of single threads and agents.
pub(crate) fn place<'a>(account: &'a AccountId, webhook: Option<&'a str>) -> SecretLocation<'a> {
    let (table, row) = webhook.map_or(("webhook_secrets", account.as_str()), |id| ("webhooks", id));
    SecretLocation { account, table, column: "secret", row }
}

/// Secrets as they are stored: sealed.
#[derive(Debug)]
pub(crate) struct SealedSecrets {
    pub present: String,
    /// The one before, and when it was replaced.
    pub previous: Option<(String, i64)>,
    /// Those before that, as [`OldSecret`]s, the newest first.
    pub older: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OldSecret {
    secret: String,
    replaced_ms: i64,
}

impl SealedSecrets {
    /// Puts a secret in the place of the present one.
    pub fn rotate(self, sealed: String, now: Timestamp) -> Result<Self> {
        let mut older: Vec<OldSecret> = serde_json::from_value(self.older).map_err(Error::internal)?;
        older.splice(..0, self.previous.map(|(secret, replaced_ms)| OldSecret { secret, replaced_ms }));
        older.retain(|old| now.0 - old.replaced_ms < OLD_MS);
        older.truncate(MAX_OLDER);
        let older = serde_json::to_value(older).map_err(Error::internal)?;
        Ok(Self { present: sealed, previous: Some((self.present, now.0)), older })
    }

    pub fn open(self, vault: &Vault, account: &AccountId, webhook: Option<&str>) -> Result<OpenSecrets> {
        let open = |sealed: &str| vault.open(&place(account, webhook), sealed);
        let older: Vec<OldSecret> = serde_json::from_value(self.older).map_err(Error::internal)?;
        let older = older.into_iter().map(|old| (old.secret, old.replaced_ms));
        let old = self.previous.into_iter().chain(older).map(|(sealed, at)| Ok((open(&sealed)?, at)));
        let old = old.collect::<Result<_>>()?;
        Ok(OpenSecrets { present: open(&self.present)?, old })
    }
}

pub(crate) struct OpenSecrets {
    present: Secret,
    /// Each with when it was replaced.
    old: Vec<(Secret, i64)>,
}

impl OpenSecrets {
    /// Those that sign at a moment, the present one first.
    pub fn at(&self, now: Timestamp) -> Vec<Secret> {
        let old = self.old.iter().filter(|(_, replaced_ms)| now.0 - replaced_ms < OLD_MS).map(|(secret, _)| secret);
        [&self.present].into_iter().chain(old).cloned().collect()
    }
}
