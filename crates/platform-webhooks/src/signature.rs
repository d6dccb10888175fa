//! Signatures as Standard Webhooks defines them.

use base64::{Engine, engine::general_purpose::STANDARD};
use platform_vault::{Secret, hmac_sha256, random_bytes};

/// What stands before a secret.
const PREFIX: &str = "whsec_";

/// A new secret: `whsec_` and 32 bytes in base64.
pub(crate) fn new_secret() -> Secret {
    format!("{PREFIX}{}", STANDARD.encode(random_bytes().as_slice())).into()
}

/// The header `webhook-signature` of a message: a signature by each secret.
pub(crate) fn header(secrets: &[Secret], id: &str, timestamp: i64, body: &str) -> String {
    let signed: Vec<String> = secrets.iter().map(|secret| signature(secret, id, timestamp, body)).collect();
    signed.join(" ")
}

/// One signature of a message: `v1,` and the HMAC-SHA256 of `<id>.<timestamp>.<body>` in base64. A secret without
/// `whsec_` is taken as it is.
pub fn signature(secret: &Secret, id: &str, timestamp: i64, body: &str) -> String {
    let text = secret.expose();
    let key = text.strip_prefix(PREFIX).and_then(|base64| STANDARD.decode(base64).ok());
    let key = key.unwrap_or_else(|| text.as_bytes().to_vec());
    format!("v1,{}", STANDARD.encode(hmac_sha256(&key, format!("{id}.{timestamp}.{body}").as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_published_example() {
        let secret = Secret::from("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned());
        let body = r#"{"test": 2432232314}"#;
        let signed = header(&[secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_new_secret_is_32_bytes_that_no_other_has() {
        let (one, other) = (new_secret(), new_secret());
        assert_ne!(one.expose(), other.expose());
        let bytes = STANDARD.decode(one.expose().strip_prefix(PREFIX).expect("the prefix")).expect("base64");
        assert_eq!(bytes.len(), 32);
    }
}
