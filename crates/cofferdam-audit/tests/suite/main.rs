//! Tests of the log through its public API: changed, cut, crashed, full, with many writers.
#![forbid(unsafe_code)]

mod artifacts;
mod chain;
mod child;
mod crash;
mod document;
mod full;
mod many;
mod rotation;
mod search;
mod support;
mod trust;
