//! Tests of prepared interpreters in real process sandboxes, compared with cold starts, in one program.
#![forbid(unsafe_code)]

mod corpus;
mod fresh;
mod life;
mod measure;
mod support;
