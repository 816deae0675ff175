//! Waiting interpreters in real process sandboxes, compared with runs from cold, in one program.
#![forbid(unsafe_code)]

mod corpus;
mod fresh;
mod life;
mod measure;
mod support;
