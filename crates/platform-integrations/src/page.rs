//! Pages of what packs hold, and the cursors that lead through them (contract 00 §4).

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use platform_core::{AccountId, Error, Result, sha256_hex};
use platform_vault::Vault;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::code;

const VERSION: u8 = 1;

/// What a cursor says, followed by a `.` and its signature.
#[derive(Serialize, Deserialize)]
struct Cursor {
    v: u8,
    /// The last of the page before.
    k: String,
    /// A hash of what was listed, and by which filters.
    q: String,
}

/// One list of one account.
pub(crate) struct Listing<'a> {
    vault: &'a Vault,
    account: &'a AccountId,
    hash: String,
}

impl<'a> Listing<'a> {
    /// `filters`: which list it is, and what chooses in it.
    pub fn of(vault: &'a Vault, account: &'a AccountId, filters: &Value) -> Self {
        Self { vault, account, hash: sha256_hex(filters.to_string())[..16].to_owned() }
    }

    /// What stands behind `cursor`, and the cursor of the page behind that. `INVALID_CURSOR`.
    pub fn page<T>(
        &self,
        mut found: Vec<T>,
        key: impl Fn(&T) -> &str,
        (limit, cursor): (usize, Option<&str>),
    ) -> Result<(Vec<T>, Option<String>)> {
        if let Some(cursor) = cursor.filter(|cursor| !cursor.is_empty()) {
            let last = self.read(cursor).and_then(|last| found.iter().position(|one| key(one) == last));
            let last = last.ok_or_else(|| {
                let message = "cursor must be the nextCursor of the page before, with the same filters.";
                Error::new(code::INVALID_CURSOR, message)
            })?;
            found.drain(..=last);
        }
        let is_last = found.len() <= limit;
        found.truncate(limit);
        let next = found.last().filter(|_| !is_last).map(|last| self.write(key(last)));
        Ok((found, next))
    }

    fn write(&self, last: &str) -> String {
        let cursor = Cursor { v: VERSION, k: last.to_owned(), q: self.hash.clone() };
        let text = serde_json::to_string(&cursor).unwrap_or_default();
        let signature = self.vault.sign("cursor", &self.signed(&text));
        BASE64_URL_SAFE_NO_PAD.encode(format!("{text}.{signature}"))
    }

    fn read(&self, cursor: &str) -> Option<String> {
        let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        let (text, signature) = text.rsplit_once('.')?;
        let is_ours = self.vault.has_signed("cursor", &self.signed(text), signature);
        let Cursor { v, k, q } = serde_json::from_str(text).ok().filter(|_| is_ours)?;
        (v == VERSION && q == self.hash).then_some(k)
    }

    fn signed(&self, text: &str) -> String {
        format!("{}.{text}", self.account.as_str())
    }
}
