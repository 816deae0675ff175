//! The crate's unsafe code for the operating system.

pub mod entry;
pub mod fork;
pub mod watch;
