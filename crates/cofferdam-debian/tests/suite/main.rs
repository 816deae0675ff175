//! The crate against the real archive of this machine, and against packages that mean harm.
#![forbid(unsafe_code)]

mod driven;
mod faults;
mod hostile;
mod packages;
mod proxy;
mod real;
mod root;
