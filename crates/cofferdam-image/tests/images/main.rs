//! The store of container images: adding, using and removing images, registries, hostile images, and killed processes.
#![forbid(unsafe_code)]

mod engine;
mod hostile;
mod kill;
mod life;
mod overlay;
mod pull;
mod server;
mod support;
