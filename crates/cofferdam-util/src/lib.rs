//! Small helpers for crates that must not use each other. A helper that one crate uses stays in that crate.
//!
//! # Where to look
//!
//! - [`hex`]: bytes as hexadecimal digits, and random ones.
//! - [`private`]: directories and files that no other user can change, and the atomic replacement of small files.
//! - [`sha256`]: SHA-256 digests as text.
//! - `stall`, with the feature `stall`: a stream with a write timeout.
//! - [`text`]: untrusted text in messages.
#![forbid(unsafe_code)]

pub mod hex;
pub mod private;
pub mod sha256;
#[cfg(feature = "stall")]
pub mod stall;
pub mod text;
