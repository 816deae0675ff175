//! The handover from one process of a server to the next one, such as to a new version.
//!
//! ```text
//! predecessor: serving --(offer)--> offering --(ready)--> handed over: accepts nothing, answers forwarded requests
//!                                      |     --(no sandbox is left | time is over | successor stops | stop)--> closing:
//!                                      |     refuses forwarded requests, closes its sandboxes --> ended
//!                                      '--(successor ends | time is over)--> serving
//! successor:   started --(offer)--> ready --(go)--> serving, forwards requests for the predecessor's sandboxes
//! ```
//!
//! Both share one channel, which ends with either process: the predecessor keeps it open until it has closed everything,
//! and the successor settles what is left only then. The predecessor sends its listening sockets; the successor
//! sends connections, which are pairs of sockets without a path that another process could open.

mod channel;
mod predecessor;
mod shared;
mod successor;

pub(crate) use predecessor::Followed;
pub use predecessor::Predecessor;
pub(crate) use shared::Shared;
pub use successor::Control;
pub(crate) use successor::{Offer, Order, Ready, Successor, keep_files, offers};
