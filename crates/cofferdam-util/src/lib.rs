//! Small helpers that crates share of which none may use the other. A helper of one crate stays there.
//!
//! - [`hex`]: bytes as hexadecimal digits.
//! - [`private`]: directories and files that no other user can change.
//! - [`sha256`]: SHA-256 digests as text.
//! - `stall`, with the feature `stall`: a stream with a write timeout.
#![forbid(unsafe_code)]

pub mod hex;
pub mod private;
pub mod sha256;
#[cfg(feature = "stall")]
pub mod stall;
