//! What an archive promises: what goes in comes out, and nothing else is ever taken.
#![forbid(unsafe_code)]

mod common;
mod damage;
mod hostile;
mod memory;
mod round_trip;
mod space;
