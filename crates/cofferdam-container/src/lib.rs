//! The container backend: containers of an engine that speaks the Docker API, with any OCI runtime that it offers.
//!
//! ```text
//! ContainerBackend --Docker API--> engine --> container --> agent (process 1) --> guests
//!          '-------------- attached stdin and stdout --------------'
//! ```
//!
//! The engine isolates, as strictly as its API allows. The agent inside adds our system call filter and Landlock,
//! measures the protections, starts programs, carries their streams, and reads and writes files. The backend contacts
//! the engine on first use. `docs/containers.md` is the user's page, `docs/adr/0015-containers-by-an-agent.md` has
//! the design reasons.
//!
//! # Where to look
//!
//! - From a spec to a plan: `plan.rs`; from a plan to the request to the engine: `create_request.rs`. Both are pure.
//!   Creation of a sandbox: `pending.rs`.
//! - Sizes of writable directories: `sizes.rs`, which is pure.
//! - Settings of the backend from a file, the environment or options: `settings.rs`.
//! - Mounts: `mounts.rs`; file systems in files: `disks.rs`; copy-on-write directories: `overlay.rs`.
//! - Removal of the containers of killed supervisors: `labels.rs` and `sweep.rs`.
//! - Freezing a sandbox while its files are copied: `freeze.rs`.
//! - From evidence to posture: `posture.rs`, which is pure.
//! - Image names and the allowlist: `reference.rs`, which is pure; pulls and imports: `image.rs`; images of
//!   other stores: `load.rs`; what both send: `upload.rs`.
//! - The connection to the engine: `engine.rs` and `attached.rs`.
#![forbid(unsafe_code)]

mod attached;
mod backend;
mod config;
mod container;
mod create_request;
mod disks;
mod doctor;
mod engine;
mod error;
mod file_memory;
mod freeze;
mod image;
mod labels;
mod load;
mod mounts;
mod outside;
mod overlay;
mod pending;
mod plan;
mod posture;
#[cfg(test)]
mod posture_tests;
mod prepared;
mod progress;
mod reference;
mod removal;
mod sandbox;
mod settings;
mod sizes;
mod snapshot;
mod state;
mod stream;
mod sweep;
mod tree;
mod upload;
mod user;
mod volume;

pub use backend::ContainerBackend;
pub use config::{ContainerConfig, DEFAULT_IMAGE, Deadlines, EngineName, PullPolicy};
pub use disks::sweep_disks;
pub use doctor::{doctor, doctor_with_source};
pub use image::{Image, Imported};
pub use load::ImageSource;
pub use progress::{PullEvent, PullProgress};
pub use settings::ContainerSettings;
pub use snapshot::ContainerSnapshot;

/// The backend's name in options and configuration.
pub const NAME: &str = "docker";
