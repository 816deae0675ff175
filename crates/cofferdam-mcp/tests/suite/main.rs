//! The protocol as a client sees it: over pipes in memory and over HTTP, with sandboxes of the process backend, and of the
//! simulated one where only that has what is asked for.
#![forbid(unsafe_code)]

mod hostile;
mod http;
mod pipe;
mod revisions;
mod sessions;
mod tools;
