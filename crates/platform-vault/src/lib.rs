//! Secrets at rest: envelope encryption, and a type that cannot be printed.
//!
//! **Owns** no table and no endpoint; what it seals is a text for a column of another crate.
//! **Needs** a master key of 32 bytes, and older ones to open what they sealed.
//!
//! **Invariants**: each text is sealed with a data key of its own (AES-256-GCM), which is sealed
//! with the master key and stands beside it with that key's name; both are bound to account,
//! table, column and row, so that a text that was moved does not open; a [`Secret`] shows itself
//! as [`MASK`] wherever it is printed or serialised.
//!
//! ```
//! # use platform_core::AccountId;
//! # use platform_vault::{MasterKey, SecretLocation, Vault};
//! let vault = Vault::new(MasterKey::generate(), Vec::new());
//! let account = AccountId::parse("a1").unwrap();
//! let place = SecretLocation { account: &account, table: "tool_servers", column: "secrets", row: "s1" };
//! let sealed = vault.seal(&place, "hush");
//! assert_eq!(vault.open(&place, &sealed).unwrap().expose(), "hush");
//! assert!(vault.open(&SecretLocation { row: "s2", ..place }, &sealed).is_err());
//! ```

mod mac;
mod redact;
mod secret;
mod spellings;
mod vault;

pub use mac::{are_equal, hmac_sha256};
pub use redact::Redactor;
pub use secret::{MASK, Secret};
pub use spellings::spellings;
pub use vault::{MasterKey, SecretLocation, Vault, random_bytes};
