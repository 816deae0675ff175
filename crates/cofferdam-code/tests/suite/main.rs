//! Code in real interpreters behind the process backend's wall, in one program.
#![forbid(unsafe_code)]

mod audit;
mod bash;
mod execute;
mod full;
mod hostile;
mod sessions;
mod support;
mod typescript;
