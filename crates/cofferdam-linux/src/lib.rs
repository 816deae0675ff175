//! Safe wrappers for the Linux interfaces that walls are made of: namespaces, mounts, control groups, seccomp,
//! Landlock, capabilities. It decides nothing: what to wall off, and with which values, is its callers' business.
#[cfg(not(target_os = "linux"))]
compile_error!("cofferdam-linux wraps Linux only");

pub mod beneath;
pub mod caps;
pub mod cgroup;
pub mod child;
pub mod clock;
#[cfg(feature = "kvm")]
pub mod kvm;
pub mod landlock;
pub mod marks;
pub mod message;
pub mod mount;
pub mod named;
pub mod namespace;
pub mod probe;
pub mod process;
pub mod programs;
pub mod seccomp;
pub mod spawn;
pub mod trust;
pub mod walk;

mod relay;
mod sys;
