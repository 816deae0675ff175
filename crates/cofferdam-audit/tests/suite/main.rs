//! The log as its users meet it: changed, cut, crashed, full, written by many.
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
