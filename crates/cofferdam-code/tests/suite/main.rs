//! Tests of code in real interpreters on the process backend, in one program.
#![forbid(unsafe_code)]

mod audit;
mod bash;
mod execute;
mod full;
mod hostile;
mod sessions;
mod support;
mod typescript;
