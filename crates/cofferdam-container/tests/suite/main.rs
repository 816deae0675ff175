//! Tests of the backend with real engines.
#![forbid(unsafe_code)]

mod conformance;
mod connect;
mod faults;
mod images;
mod life;
mod network;
mod overlay;
mod own;
mod starved;
mod support;
mod sweep;
mod volume;
