//! Tests of the public Firecracker client.
#![forbid(unsafe_code)]

mod contract;
mod driver;
mod faults;
mod guest;
mod kill;
mod machine;
mod programs;
mod real;
mod support;
mod vsock;
