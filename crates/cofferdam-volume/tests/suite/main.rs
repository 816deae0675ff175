//! Volumes in real stores, with real file systems.
#![forbid(unsafe_code)]

mod common;
mod disks;
mod hostile;
mod interruptions;
mod life;
mod locks;
mod mounts;
mod tars;
