//! Containers of an engine that speaks the Docker API, with any OCI runtime that it offers.
//!
//! ```text
//! DockerBackend --Docker API--> engine --> container --> agent (process 1) --> guests
//!       '-------------- attached stdin and stdout --------------'
//! ```
//!
//! The engine makes the walls, as hard as its API allows; the agent inside adds a system-call filter and Landlock of ours,
//! measures what holds, and serves: it starts programs, carries their streams, and reads and writes files. Nothing is
//! contacted before the first use. `ARCHITECTURE.md` has the whole picture.
#![forbid(unsafe_code)]

mod attached;
mod backend;
mod config;
mod container;
mod create;
mod doctor;
mod engine;
mod error;
mod host;
mod image;
mod labels;
mod make;
mod outside;
mod posture;
#[cfg(test)]
mod posture_tests;
mod reference;
mod sandbox;
mod snapshot;
mod stored;
mod stream;
mod sweep;
mod tree;
mod user;
mod volume;
mod warm;

pub use backend::DockerBackend;
pub use config::{DEFAULT_IMAGE, Deadlines, DockerConfig, EngineName, PullPolicy};
pub use doctor::{Finding, FindingState, doctor};
pub use image::{Image, Imported, PullEvent, PullProgress};
pub use snapshot::ContainerSnapshot;
