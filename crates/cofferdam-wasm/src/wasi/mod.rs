//! WASI preview 1 for one exec, over files in memory.
//!
//! It opens no host file and has no network. Each call is bounded: in the bytes that it copies, in the time that it
//! waits, and in the memory that the host allocates.

mod abi;
mod access;
mod clocks;
mod descriptors;
mod environment;
mod files;
mod host;
mod link;
mod memory;
mod paths;
mod poll;
mod resources;

#[cfg(test)]
pub(crate) use descriptors::OpenFile;
pub(crate) use descriptors::{Descriptor, Descriptors, OpenDirectory};
pub(crate) use host::{Host, HostParts, Preopen, Run};
pub(crate) use link::add_to;
