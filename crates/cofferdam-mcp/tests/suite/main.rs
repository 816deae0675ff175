//! The protocol from a client's view: over in-memory pipes and over HTTP, with sandboxes of the process backend, or of
//! the simulated one for features that only it has.
#![forbid(unsafe_code)]

mod hostile;
mod http;
mod pipe;
mod revisions;
mod sessions;
mod tools;
