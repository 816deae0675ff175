//! The crate's unsafe and operating-system specific corner.

pub mod entry;
pub mod fork;
pub mod watch;
