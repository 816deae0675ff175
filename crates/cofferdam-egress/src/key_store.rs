//! Key stores of Java with certificates, in the format JKS.
//!
//! The format is that of OpenJDK's `sun.security.provider.JavaKeyStore`: a header, the entries, and a digest with a
//! password. A virtual machine that has no password for its store does not check the digest.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// The tag of an entry that is a trusted certificate.
const TRUSTED: u32 = 2;
/// The password that Java's own store has.
const PASSWORD: &str = "changeit";
/// The text that is hashed after the password.
const SALT: &[u8] = b"Mighty Aphrodite";

/// Returns a store of trusted certificates.
pub fn encode<'a>(certificates: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut count: u32 = 0;
    for certificate in certificates {
        count += 1;
        entries.extend(TRUSTED.to_be_bytes());
        text(&mut entries, &format!("ca-{count}"));
        // The time of creation, in milliseconds since 1970. Nothing reads it.
        entries.extend(0_u64.to_be_bytes());
        text(&mut entries, "X.509");
        entries.extend((certificate.len() as u32).to_be_bytes());
        entries.extend(certificate);
    }
    let mut store = [MAGIC, VERSION, count].map(u32::to_be_bytes).concat();
    store.extend(entries);
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    PASSWORD.encode_utf16().for_each(|unit| digest.update(&unit.to_be_bytes()));
    digest.update(SALT);
    digest.update(&store);
    store.extend(digest.finish().as_ref());
    store
}

/// Appends a short text with its length.
fn text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u16).to_be_bytes());
    to.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_header_entries_and_digest() {
        let store = encode([&b"first"[..], b"second"].into_iter());
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]);
        let first = [&[0, 0, 0, 2, 0, 4][..], b"ca-1", &[0; 8], &[0, 5], b"X.509", &[0, 0, 0, 5], b"first"].concat();
        assert_eq!(store[12..12 + first.len()], first);
        assert_eq!(store.len(), 12 + 2 * first.len() + 1 + 20);
    }
}
