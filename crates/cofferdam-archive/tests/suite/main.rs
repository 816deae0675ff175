//! Properties of archives: the restored contents equal the saved ones, and nothing else is accepted.
#![forbid(unsafe_code)]

mod common;
mod damage;
mod hostile;
mod memory;
mod round_trip;
mod space;
