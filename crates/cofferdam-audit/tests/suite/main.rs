//! Tests of the log through its public API: changed, cut, crashed, full, with many writers.
#![forbid(unsafe_code)]

mod artifacts;
mod chain;
mod child;
mod concurrency;
mod crash;
mod document;
mod full;
mod rotation;
mod search;
mod support;
mod trust;
