//! SHA-256 digests.

use std::io::Read;

use sha2::{Digest, Sha256};

/// Returns the digest in lower-case hexadecimal.
pub(crate) fn of(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Returns the digest of a stream. Calls `seen` with the number of bytes of each piece.
pub(crate) fn of_reader(reader: &mut impl Read, mut seen: impl FnMut(u64)) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 1 << 17];
    loop {
        match reader.read(&mut piece)? {
            0 => return Ok(hexadecimal(&hasher.finalize())),
            length => {
                hasher.update(&piece[..length]);
                seen(length as u64);
            }
        }
    }
}

/// Returns true if the text has the form of a digest.
pub(crate) fn is_valid(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
