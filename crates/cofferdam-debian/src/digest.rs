//! SHA-256.

use std::io::Read;

use sha2::{Digest, Sha256};

/// In lower-case hexadecimal.
pub(crate) fn of(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Of all that comes; `seen` is told how many bytes it was, piece by piece.
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

/// Whether it looks like what the functions above return.
pub(crate) fn is_valid(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
