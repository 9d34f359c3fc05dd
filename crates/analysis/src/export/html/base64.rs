//! Base64 with padding, of RFC 4648: what a script block may hold whatever the trace says. In: bytes. Out: text.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0, |word, byte| word << 8 | usize::from(*byte)) << (8 * (3 - chunk.len()));
        let digit = |at: usize| ALPHABET[word >> (18 - 6 * at) & 63];
        let digits = [digit(0), digit(1), digit(2), digit(3)];
        out.extend_from_slice(&digits[..=chunk.len()]);
        out.extend_from_slice(&b"=="[..3 - chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_examples_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            super::base64(&mut out, bytes.as_bytes());
            assert_eq!(out, text.as_bytes());
        }
    }
}
