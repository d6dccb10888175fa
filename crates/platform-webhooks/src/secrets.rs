//! What messages are signed with: the present secret, and those before it for a day.

use platform_core::{AccountId, Error, Result, Timestamp};
use platform_vault::{Secret, SecretLocation, Vault};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// So long a secret signs after it was replaced.
const OLD_MS: i64 = 24 * 3_600_000;
/// Secrets of a day that sign beside the present one, the newest: each is a signature more in a header.
const MAX_OLD: usize = 4;

/// Where the secret of a webhook is kept, or of single threads and agents.
pub(crate) fn place<'a>(account: &'a AccountId, webhook: Option<&'a str>) -> SecretLocation<'a> {
    let (table, row) = webhook.map_or(("webhook_secrets", account.as_str()), |id| ("webhooks", id));
    SecretLocation { account, table, column: "secret", row }
}

/// Secrets as they are stored: sealed.
#[derive(Debug)]
pub(crate) struct SealedSecrets {
    pub present: String,
    /// As [`OldSecret`]s, the newest first.
    pub old: Value,
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
        let mut old: Vec<OldSecret> = serde_json::from_value(self.old).map_err(Error::internal)?;
        old.insert(0, OldSecret { secret: self.present, replaced_ms: now.0 });
        old.retain(|old| now.0 - old.replaced_ms < OLD_MS);
        old.truncate(MAX_OLD);
        Ok(Self { present: sealed, old: serde_json::to_value(old).map_err(Error::internal)? })
    }

    pub fn open(self, vault: &Vault, account: &AccountId, webhook: Option<&str>) -> Result<OpenSecrets> {
        let open = |sealed: &str| vault.open(&place(account, webhook), sealed);
        let old: Vec<OldSecret> = serde_json::from_value(self.old).map_err(Error::internal)?;
        let old = old.into_iter().map(|old| Ok((open(&old.secret)?, old.replaced_ms))).collect::<Result<_>>()?;
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
