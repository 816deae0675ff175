//! Tests of the public Firecracker client.
#![forbid(unsafe_code)]

mod contract;
mod driver;
mod faults;
mod guest;
mod kill;
mod programs;
mod real;
mod stage;
mod support;
mod vsock;
