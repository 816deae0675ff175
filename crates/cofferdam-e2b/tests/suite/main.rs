//! The backend against a local server that speaks E2B's protocol.
#![forbid(unsafe_code)]

mod conformance;
mod execs;
mod faults;
mod sandboxes;
mod sdk;
mod server;
mod support;
