//! Code in real interpreters behind the process backend's wall, in one program.
#![forbid(unsafe_code)]

mod execute;
mod support;
