//! Safe wrappers for Linux isolation interfaces: namespaces, mounts, control groups, seccomp, Landlock, capabilities.
//!
//! The crate makes no decisions. Its callers choose what to isolate and with which values.
//!
//! # Where to look
//!
//! - Allowed system calls and the reason for each: `seccomp/rules.rs`, one entry per call. `seccomp/checks.rs` has the
//!   conditions on arguments, `seccomp/compiler.rs` makes the filter.
//! - Control groups of version 1 and 2: `cgroup/mod.rs`; the choice of a group: `cgroup/parents.rs`.
//! - Files named by callers: `named.rs` opens a directory once, `walk.rs` reads trees without following links,
//!   `beneath.rs` resolves below a directory. `trust.rs` decides which files are trusted.
//! - File systems in files: `loop_device.rs`.
//! - Watched directories: `inotify/`, with `inotify/tree.rs` as a pure state machine that the hosts of guest agents use,
//!   too.
//! - Refused connections of a network namespace: `connection_attempts.rs`.
//! - Hardware virtualisation: `kvm/mod.rs` tries it with a tiny guest.
//! - Sources shared by programs without a C library (the inits and the guest agent): `bare/`, with `bare/compile.rs`
//!   for build scripts.
#[cfg(not(target_os = "linux"))]
compile_error!("cofferdam-linux wraps Linux only");

pub mod beneath;
pub mod caps;
pub mod cgroup;
pub mod child;
pub mod clock;
pub mod connection_attempts;
pub mod inotify;
#[cfg(feature = "kvm")]
pub mod kvm;
pub mod landlock;
pub mod loop_device;
pub mod message;
pub mod mount;
pub mod named;
pub mod namespace;
pub mod peer;
pub mod probe;
pub mod process;
pub mod programs;
pub mod seccomp;
pub mod spawn;
pub mod trust;
pub mod walk;

mod relay;
mod sys;
