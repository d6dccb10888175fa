//! Passwords: Argon2id (RFC 9106), a few at once, fairly over whoever asks, in memory that is used again.

use std::{
    sync::{LazyLock, Mutex},
    time::Duration,
};

use argon2::{
    Algorithm, Argon2, Block, Params, Version,
    password_hash::{
        generate_salt,
        phc::{Output, ParamsString, PasswordHash, Salt},
    },
};
use platform_core::{Error, FairSemaphore, Result, run_blocking};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

/// Hash of a password that nobody has: an unknown address takes as long to refuse as a wrong password.
const NOBODY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHRzb21lc2FsdA$hO4D2SExLBqBxTDRZMS1KXBpgw5q6bC8L4HgQmEz2zM";

/// Passwords that are hashed at once, in all and for one account or name: each takes 19 MiB and a core.
const AT_ONCE: (usize, usize) = (4, 2);
const MAX_WAIT: Duration = Duration::from_secs(10);

static PLACES: LazyLock<FairSemaphore<String>> = LazyLock::new(|| FairSemaphore::new(AT_ONCE.0, AT_ONCE.1));
/// An allocator would keep what each of its threads ever took.
static MEMORY: Mutex<Vec<Vec<Block>>> = Mutex::new(Vec::new());

/// Does what takes memory for hashing when it is the turn of `whose`.
async fn in_turn<T: Send + 'static>(
    whose: &str,
    work: impl FnOnce(&mut Vec<Block>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let waiting = timeout(MAX_WAIT, PLACES.acquire(&whose.to_owned())).await;
    let place = waiting.map_err(|_| Error::unavailable("Many passwords are being checked; try again in a moment."))?;
    run_blocking(move || {
        let _place = place;
        let mut memory = MEMORY.lock().expect("lock").pop().unwrap_or_default();
        let worked = work(&mut memory);
        MEMORY.lock().expect("lock").push(memory);
        worked
    })
    .await
}

fn output(password: &SecretString, salt: &[u8], by: &Argon2<'_>, memory: &mut Vec<Block>) -> Result<Output> {
    let failed = |error: &dyn std::fmt::Display| Error::internal(error.to_string());
    memory.resize(by.params().block_count(), Block::new());
    let mut out = vec![0; by.params().output_len().unwrap_or(Params::DEFAULT_OUTPUT_LEN)];
    by.hash_password_into_with_memory(password.expose_secret().as_bytes(), salt, &mut out, memory)
        .map_err(|error| failed(&error))?;
    Output::new(&out).map_err(|error| failed(&error))
}

/// The hash of a new password, as a PHC string.
pub(super) async fn hash(whose: &str, password: SecretString) -> Result<String> {
    in_turn(whose, move |memory| {
        let (salt, by) = (generate_salt(), Argon2::default());
        let hash = PasswordHash {
            algorithm: Algorithm::default().ident(),
            version: Some(Version::default().into()),
            params: ParamsString::try_from(by.params()).map_err(|error| Error::internal(error.to_string()))?,
            salt: Some(Salt::new(&salt).map_err(|error| Error::internal(error.to_string()))?),
            hash: Some(output(&password, &salt, &by, memory)?),
        };
        Ok(hash.to_string())
    })
    .await
}

/// Which of these hashes a password has, if any; where there is none it is as slow to say.
pub(super) async fn find(whose: &str, password: SecretString, hashes: Vec<String>) -> Result<Option<usize>> {
    in_turn(whose, move |memory| {
        let mut was_hashed = false;
        let found = hashes.iter().position(|hash| {
            let has = has(&password, hash, memory);
            was_hashed |= has.is_some();
            has == Some(true)
        });
        if !was_hashed {
            has(&password, NOBODY, memory);
        }
        Ok(found)
    })
    .await
}

/// Whether a password has this hash; `None` for what is no hash.
fn has(password: &SecretString, hash: &str, memory: &mut Vec<Block>) -> Option<bool> {
    let hash = PasswordHash::new(hash).ok()?;
    let algorithm = Algorithm::try_from(hash.algorithm.as_str()).ok()?;
    let version = Version::try_from(hash.version?).ok()?;
    let by = Argon2::new(algorithm, version, Params::try_from(&hash).ok()?);
    // They are compared in constant time.
    Some(output(password, hash.salt.as_ref()?, &by, memory).ok()? == hash.hash?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_has_its_hash_alone_also_in_memory_that_was_used() {
        let secret = |text: &str| SecretString::from(text);
        let mine = hash("a", secret("correct horse")).await.expect("a hash");
        assert!(mine.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{mine}");
        assert_ne!(mine, hash("a", secret("correct horse")).await.expect("a hash"), "each has a salt of its own");
        let find = async |password: &str, hashes: &[&str]| {
            let hashes = hashes.iter().map(|hash| (*hash).to_owned()).collect();
            find("a", secret(password), hashes).await.expect("an answer")
        };
        assert_eq!(find("correct horse", &["", NOBODY, &mine]).await, Some(2));
        assert_eq!(find("correct horsf", &[&mine]).await, None);
        assert_eq!(find("", &[]).await, None);
        // A known answer of the reference implementation.
        let reference = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        assert_eq!(find("password", &[reference]).await, Some(0));
    }
}
