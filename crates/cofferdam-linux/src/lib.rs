//! Safe wrappers for the Linux interfaces that walls are made of: namespaces, mounts, control groups, seccomp,
//! Landlock, capabilities. It decides nothing: what to wall off, and with which values, is its callers' business.
pub mod seccomp;
