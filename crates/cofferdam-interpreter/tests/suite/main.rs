//! Tests of prepared interpreters in real process sandboxes, compared with cold starts, in one program.
#![forbid(unsafe_code)]

mod corpus;
mod life;
mod measure;
mod random_state;
mod support;
