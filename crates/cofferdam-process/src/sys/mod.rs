//! The crate's unsafe code for the operating system.

pub mod entry;
#[cfg(feature = "net")]
pub mod filter;
pub mod fork;
pub mod watch;
