//! What an agent calls: code in a language, run in a sandbox of any backend, with all that came of it.
//!
//! [`Executor::execute`] takes a [`CodeRequest`] and gives a [`CodeResult`]: output, exit, results such as the value of the
//! last expression, files that changed. Before anything is started it screens the code, and says in the audit log that it
//! will run. [`Sessions`] keep an interpreter alive between calls. [`BashTool`] answers a model's shell lines with one text.
//!
//! It reaches sandboxes through the contract only and knows no backend. It is no wall: what comes from inside is bounded
//! and parsed, and believed in nothing but what it shows. `docs/code.md` has the forms of all that goes in and comes out.
#![forbid(unsafe_code)]

mod audit;
mod bash;
mod bootstrap;
mod bounds;
mod config;
mod ends;
mod error;
mod executor;
mod files;
mod language;
mod line;
mod request;
mod restore;
mod result;
mod rich;
mod runtime;
mod screening;
mod session;

pub use audit::{AuditConfig, AuditSync};
pub use bash::{BashConfig, BashTool};
pub use bounds::Bounds;
pub use config::{CodeConfig, Warn};
pub use ends::Ends;
pub use executor::{Call, Executor, OnOutput, Place};
pub use language::{Language, Languages, MODULE, MODULE_INTERPRETER, Results};
pub use line::Line;
pub use request::{CodeRequest, Contents, Secret, Secrets, Want};
pub use restore::{Origin, Restoring};
pub use result::{CodeResult, Data, FileChange, Files, Meta, Runtime, Screened, SessionState, Touched, posture_digest};
pub use rich::{RichKind, RichResult};
pub use screening::{ScreeningConfig, ScreeningMode};
pub use session::{Admitted, CodeSession, SessionBounds, Sessions};
