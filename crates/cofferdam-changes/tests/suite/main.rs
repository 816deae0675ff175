//! Properties of change sets: what the guest did arrives in the workspace, and nothing else does.
#![forbid(unsafe_code)]

mod application;
mod common;
mod discard;
mod guard;
mod hostile;
mod interrupted;
mod overlay;
mod races;
mod review;
mod round_trip;
mod saved;
mod store;
