use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac};

/// HMAC-SHA256 of a message (RFC 2104).
pub fn hmac_sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    tag.as_ref().try_into().expect("a SHA-256 has 32 bytes")
}

/// Whether two texts are equal; how long it takes says nothing of where they differ.
pub fn are_equal(one: &[u8], other: &[u8]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

#[cfg(test)]
mod tests {
    use platform_core::hex;

    use super::*;

    #[test]
    fn a_code_is_that_of_rfc_4231() {
        let code = hmac_sha256(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex(&code), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert!(are_equal(&code, &code) && !are_equal(&code, &code[..31]) && !are_equal(b"a", b"b"));
    }
}
