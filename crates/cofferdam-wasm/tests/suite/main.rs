//! Tests of the backend through its public API.
#![forbid(unsafe_code)]

mod adapted;
mod component_bombs;
mod component_hostile;
mod componentize;
mod components;
mod conformance;
mod deterministic;
mod directories;
mod files;
mod hostile;
mod interpreters;
mod isolation;
mod limits;
mod memory_pressure;
mod modules;
mod network;
mod runtime;
mod sessions;
mod snapshots;
mod support;
mod warm;
