//! Small helpers that at least three crates share. A helper of one or two crates stays there.
//!
//! - [`hex`]: bytes as hexadecimal digits.
//! - [`private`]: directories and files that no other user can change.
//! - [`sha256`]: SHA-256 digests as text.
#![forbid(unsafe_code)]

pub mod hex;
pub mod private;
pub mod sha256;
