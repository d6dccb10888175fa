use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use platform_core::{Error, Result, sha256_hex};
use secrecy::{ExposeSecret, SecretString};

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const LENGTH: usize = 43;

/// The value of an API key, `<prefix>-<43 base62>`: 256 random bits that cannot be printed by accident.
#[derive(Clone)]
pub struct KeySecret(SecretString);

impl KeySecret {
    /// A new value.
    pub fn generate(prefix: &str) -> Result<Self> {
        let random = SystemRandom::new();
        let mut text = format!("{prefix}-");
        let mut bytes = [0_u8; 64];
        while text.len() < prefix.len() + 1 + LENGTH {
            random.fill(&mut bytes).map_err(|_| Error::internal("the system has no randomness"))?;
            // 248 is the largest multiple of 62 a byte can hold: no character is likelier than another.
            let good = bytes.iter().filter(|byte| **byte < 248);
            for byte in good.take(prefix.len() + 1 + LENGTH - text.len()) {
                text.push(char::from(BASE62[usize::from(byte % 62)]));
            }
        }
        Ok(Self(text.into()))
    }

    /// A value given in a setting; `None` when it has not the form of a key.
    pub fn parse(text: &str, prefix: &str) -> Option<Self> {
        let random = text.strip_prefix(prefix)?.strip_prefix('-')?;
        let good = random.len() == LENGTH && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
        good.then(|| Self(text.to_owned().into()))
    }

    /// The value, to be shown once.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    pub(crate) fn digest(&self) -> String {
        sha256_hex(self.expose())
    }

    pub(crate) fn last4(&self) -> String {
        let text = self.expose();
        text[text.len() - 4..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_promised_form_and_never_repeat() {
        let (first, second) = (KeySecret::generate("ak").expect("random"), KeySecret::generate("ak").expect("random"));
        assert_ne!(first.expose(), second.expose());
        assert!(KeySecret::parse(first.expose(), "ak").is_some());
        assert!(KeySecret::parse(first.expose(), "xy").is_none());
        assert!(KeySecret::parse(&first.expose()[..45], "ak").is_none());
    }
}
