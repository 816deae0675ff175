//! The server over real sockets, with the simulated and the process backend.
#![forbid(unsafe_code)]

mod archives;
mod audit;
mod authority;
mod certificates;
mod changes;
mod code;
mod collector;
mod creates;
mod dashboard;
mod execs;
mod files;
mod hostile;
mod identity;
mod images;
mod issuer;
mod lifecycle;
mod matrix;
mod network;
mod networked;
mod oidc;
mod openapi;
mod plugins;
mod pools;
mod ports;
mod quotas;
mod remote;
mod runs;
mod sandboxes;
mod snapshots;
mod support;
mod traces;
mod volumes;
