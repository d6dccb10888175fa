use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey},
    digest::{SHA256, digest},
    rand,
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD as BASE64, URL_SAFE_NO_PAD},
};
use platform_core::{AccountId, Error, Result};
use secrecy::zeroize::Zeroizing;

use crate::{Secret, are_equal, hmac_sha256};

const KEY_LEN: usize = 32;
const FORMAT: &str = "1";

/// Where a sealed text stands; it opens nowhere else.
#[derive(Debug, Clone, Copy)]
pub struct SecretLocation<'a> {
    /// The account that owns it.
    pub account: &'a AccountId,
    /// Table.
    pub table: &'a str,
    /// Column.
    pub column: &'a str,
    /// Key of the row.
    pub row: &'a str,
}

impl SecretLocation<'_> {
    /// No part may run into the next.
    fn bytes(&self) -> Vec<u8> {
        let parts = [self.account.as_str(), self.table, self.column, self.row];
        parts.iter().flat_map(|part| [&(part.len() as u64).to_be_bytes()[..], part.as_bytes()].concat()).collect()
    }
}

/// A key that seals data keys; its name is made of its hash.
pub struct MasterKey {
    name: String,
    key: RandomizedNonceKey,
    /// Signs what is given out and comes back.
    signing: Zeroizing<[u8; KEY_LEN]>,
}

impl MasterKey {
    /// Reads 32 bytes in base64.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(BASE64.decode(text.trim().trim_end_matches('=')).ok()?);
        Self::of(&bytes)
    }

    /// A new key that nobody else knows.
    pub fn generate() -> Self {
        Self::of(random_bytes().as_slice()).expect("32 bytes are a key")
    }

    /// A new key as text, to be kept.
    pub fn generate_text() -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(random_bytes()))
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let name = URL_SAFE_NO_PAD.encode(&digest(&SHA256, bytes).as_ref()[..9]);
        let key = RandomizedNonceKey::new(&AES_256_GCM, bytes).ok()?;
        Some(Self { name, key, signing: Zeroizing::new(hmac_sha256(bytes, b"signing")) })
    }
}

/// Seals and opens.
pub struct Vault {
    current: MasterKey,
    previous: Vec<MasterKey>,
}

impl Vault {
    /// Seals with `current`; opens what any of them sealed.
    pub fn new(current: MasterKey, previous: Vec<MasterKey>) -> Self {
        Self { current, previous }
    }

    /// The text, sealed for its place: `<format>.<key name>.<sealed data key>.<sealed text>`.
    pub fn seal(&self, place: &SecretLocation<'_>, text: &str) -> String {
        let place = place.bytes();
        let data_key = random_bytes();
        let key = RandomizedNonceKey::new(&AES_256_GCM, data_key.as_slice()).expect("32 bytes are a key");
        let wrapped = seal(&self.current.key, &place, data_key.as_slice());
        let sealed = seal(&key, &place, text.as_bytes());
        format!("{FORMAT}.{}.{wrapped}.{sealed}", self.current.name)
    }

    /// A signature of a text that is given out; `purpose` keeps it from being taken for another's.
    pub fn sign(&self, purpose: &str, text: &str) -> String {
        signature(&self.current, purpose, text)
    }

    /// Whether we signed a text for a purpose.
    pub fn has_signed(&self, purpose: &str, text: &str, signed: &str) -> bool {
        let mut keys = std::iter::once(&self.current).chain(&self.previous);
        keys.any(|key| are_equal(signature(key, purpose, text).as_bytes(), signed.as_bytes()))
    }

    /// What a request of a run carries that triggers led to: `<n>.<signature>` (contract 09 §3).
    pub fn depth_header(&self, account: &AccountId, depth: u8) -> String {
        format!("{depth}.{}", self.sign("depth", &format!("{}.{depth}", account.as_str())))
    }

    /// The depth that such a header tells; 0 when we did not write it.
    pub fn depth_of(&self, account: &AccountId, header: &str) -> u8 {
        let Some((depth, signed)) = header.split_once('.') else { return 0 };
        let text = format!("{}.{depth}", account.as_str());
        if self.has_signed("depth", &text, signed) { depth.parse().unwrap_or(0) } else { 0 }
    }

    /// The text again; an error when it was sealed for another place, or by a key that is not here.
    pub fn open(&self, place: &SecretLocation<'_>, sealed: &str) -> Result<Secret> {
        let place = place.bytes();
        let parts: Vec<&str> = sealed.split('.').collect();
        let [FORMAT, name, wrapped, sealed] = parts[..] else {
            return Err(Error::internal("a sealed text has another format"));
        };
        let mut keys = std::iter::once(&self.current).chain(&self.previous);
        let master = keys.find(|key| key.name == name).ok_or_else(|| {
            Error::internal(format!(
                "a secret was sealed with the master key {name}; give it in PLATFORM_SECRET_KEY_PREVIOUS"
            ))
        })?;
        let data_key = open(&master.key, &place, wrapped)?;
        let key = RandomizedNonceKey::new(&AES_256_GCM, &data_key).map_err(Error::internal)?;
        let text = String::from_utf8(open(&key, &place, sealed)?.to_vec()).map_err(Error::internal)?;
        Ok(Secret::from(text))
    }
}

fn signature(key: &MasterKey, purpose: &str, text: &str) -> String {
    URL_SAFE_NO_PAD.encode(hmac_sha256(key.signing.as_slice(), format!("{purpose}:{text}").as_bytes()))
}

/// Bytes that nobody can guess.
pub fn random_bytes() -> Zeroizing<[u8; KEY_LEN]> {
    let mut bytes = Zeroizing::new([0; KEY_LEN]);
    rand::fill(bytes.as_mut_slice()).expect("the system has randomness");
    bytes
}

/// Nonce and sealed bytes in base64.
fn seal(key: &RandomizedNonceKey, place: &[u8], bytes: &[u8]) -> String {
    let mut sealed = bytes.to_vec();
    let nonce = key.seal_in_place_append_tag(Aad::from(place), &mut sealed).expect("short texts can be sealed");
    BASE64.encode([nonce.as_ref().as_slice(), &sealed].concat())
}

fn open(key: &RandomizedNonceKey, place: &[u8], text: &str) -> Result<Zeroizing<Vec<u8>>> {
    let damaged = || Error::internal("a sealed text does not open here: it was changed, or stands in another place");
    let mut bytes = Zeroizing::new(BASE64.decode(text).map_err(|_| damaged())?);
    let (nonce, sealed) = bytes.split_at_mut_checked(AES_256_GCM.nonce_len()).ok_or_else(damaged)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
    let opened = key.open_in_place(nonce, Aad::from(place), sealed).map_err(|_| damaged())?;
    Ok(Zeroizing::new(opened.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MASK;

    #[test]
    fn what_was_sealed_opens_in_its_place_alone_and_with_an_older_key_too() {
        let (first, other) = (AccountId::generate(), AccountId::generate());
        let old_text = MasterKey::generate_text();
        let key = |text: &str| MasterKey::parse(text).expect("a key");
        let old = Vault::new(key(&old_text), Vec::new());
        let place = SecretLocation { account: &first, table: "t", column: "c", row: "r" };
        let sealed = old.seal(&place, "canary");
        assert!(!sealed.contains("canary") && sealed != old.seal(&place, "canary"));
        let new = Vault::new(MasterKey::generate(), vec![key(&old_text)]);
        assert_eq!(new.open(&place, &sealed).expect("opens").expose(), "canary");
        for elsewhere in [
            SecretLocation { account: &other, ..place },
            SecretLocation { table: "u", ..place },
            SecretLocation { column: "d", ..place },
            SecretLocation { row: "s", ..place },
            SecretLocation { table: "tc", column: "", ..place },
        ] {
            assert!(new.open(&elsewhere, &sealed).is_err(), "{elsewhere:?}");
        }
        let signed = old.sign("depth", "1");
        assert!(new.has_signed("depth", "1", &signed) && old.has_signed("depth", "1", &signed));
        for (purpose, text) in [("depth", "2"), ("width", "1")] {
            assert!(!new.has_signed(purpose, text, &signed));
        }
        let stranger = Vault::new(MasterKey::generate(), Vec::new()).open(&place, &sealed).expect_err("no key");
        assert!(stranger.to_string().contains("PLATFORM_SECRET_KEY_PREVIOUS"));
        let damaged = format!("{}A", &sealed[..sealed.len() - 1]);
        assert!(old.open(&place, &damaged).is_err() || damaged == sealed);
    }

    #[test]
    fn a_secret_shows_its_mask_only() {
        let secret = Secret::from("canary".to_owned());
        assert_eq!(format!("{secret:?}"), MASK);
        assert!(!secret.is_mask() && Secret::from(MASK.to_owned()).is_mask());
    }
}
