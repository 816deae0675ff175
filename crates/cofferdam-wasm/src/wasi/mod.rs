//! WASI preview 1 for one exec, over files in memory.
//!
//! It opens nothing of the host and has no network. Each call is bounded: in what it copies, in how long it waits, and
//! in what it makes the host keep.

pub(crate) mod abi;
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

#[cfg(test)]
pub(crate) use descriptors::OpenFile;
pub(crate) use descriptors::{Descriptor, Descriptors, OpenDirectory};
pub(crate) use host::{Host, HostParts, Preopen, Run, lock};
pub(crate) use link::add_to;
