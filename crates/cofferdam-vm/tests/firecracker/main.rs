//! The client of Firecracker from outside.
#![forbid(unsafe_code)]

mod contract;
mod fake;
mod faults;
mod jail;
mod process;
mod real;
mod support;
mod vsock;
