//! Tests of the crate with the real archive of this host, and with hostile packages.
#![forbid(unsafe_code)]

mod driven;
mod faults;
mod hostile;
mod packages;
mod proxy;
mod real;
mod root;
