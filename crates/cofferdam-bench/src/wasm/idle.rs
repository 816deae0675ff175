//! Memory of idle sessions: this process's memory before and while they are held, divided by their number.
//!
//! Sessions of one kind stay open while the next kind is measured, so that it does not reuse freed memory.

use anyhow::{Context, Result};
use bytes::Bytes;
use cofferdam_contract::Spec;
use cofferdam_wasm::{Language, Session, SessionKind, WasmBackend};

use super::cache::Interpreters;
use crate::host::kernel;
use crate::host::tree::{self, Memory};
use crate::process_backend;

/// A library whose function writes to its one page.
const LIBRARY: &str = r#"(module (memory (export "memory") 1)
  (func (export "touch") (i32.store (i32.const 1024) (i32.const 1))))"#;
/// Divisor of the host's memory that must stay available.
const MIN_AVAILABLE_DIVISOR: u64 = 10;
/// Number of sessions between two checks of the available memory.
const CHECK_EVERY: usize = 50;

/// Results of idle sessions of one kind.
#[derive(Debug)]
pub struct Idle {
    /// The kind.
    pub kind: Kind,
    /// The number of sessions held.
    pub held: usize,
    /// The memory of each, in KiB.
    pub each: Each,
    /// The reason why there are fewer than requested, if so.
    pub stopped: Option<String>,
}

/// Memory of one session, in KiB.
#[derive(Debug, Clone, Copy)]
pub struct Each {
    /// Resident set size.
    pub resident: f64,
    /// Proportional set size.
    pub proportional: f64,
    /// Unique set size.
    pub own: f64,
    /// Page tables, which the kernel holds.
    pub tables: f64,
}

/// A kind of session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A library of one page.
    Module,
    /// JavaScript that has run `x = 1`.
    JavaScript,
    /// Python that has run `x = 1`.
    Python,
}

/// A kind that was not measured, and the reason.
pub type Unavailable = (Kind, String);

impl Kind {
    /// All kinds, the smallest first.
    pub const ALL: [Self; 3] = [Self::Module, Self::JavaScript, Self::Python];

    /// Returns the name for display and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::JavaScript => "javascript",
            Self::Python => "python",
        }
    }

    fn language(self) -> Option<Language> {
        match self {
            Self::Module => None,
            Self::JavaScript => Some(Language::JavaScript),
            Self::Python => Some(Language::Python),
        }
    }
}

/// Holds `wanted` sessions of each kind, and returns their memory.
pub async fn measure(interpreters: &Interpreters, wanted: usize) -> Result<(Vec<Idle>, Vec<Unavailable>)> {
    let backend = interpreters.backend();
    let (mut found, mut unavailable, mut held) = (Vec::new(), Vec::new(), Vec::new());
    for kind in Kind::ALL {
        if let Some(language) = kind.language()
            && let Err(reason) = interpreters.prepare(language).await
        {
            unavailable.push((kind, reason));
            continue;
        }
        let opener = Opener::new(&backend, kind)?;
        // The first session creates the state that all share.
        held.push(opener.open().await?);
        let before = read_memory()?;
        let (sessions, stopped) = opener.hold(wanted).await;
        let each = read_memory()?.since(before, sessions.len());
        found.push(Idle { kind, held: sessions.len(), each, stopped });
        held.extend(sessions);
    }
    for session in held {
        session.close().await?;
    }
    Ok((found, unavailable))
}

struct Opener<'a> {
    backend: &'a WasmBackend,
    kind: Kind,
    library: Bytes,
}

impl<'a> Opener<'a> {
    fn new(backend: &'a WasmBackend, kind: Kind) -> Result<Self> {
        Ok(Self { backend, kind, library: wat::parse_str(LIBRARY)?.into() })
    }

    /// Opens a session and calls it once.
    async fn open(&self) -> Result<Session> {
        let kind = match self.kind.language() {
            Some(language) => SessionKind::Language(language),
            None => SessionKind::Module(self.library.clone()),
        };
        let session = self.backend.open_session(kind, Spec::default()).await?;
        let completed = match self.kind {
            Kind::Module => session.call("touch", Bytes::new()).await?,
            Kind::JavaScript | Kind::Python => session.execute("x = 1").await?,
        };
        process_backend::check(&completed, "")?;
        Ok(session)
    }

    async fn hold(&self, wanted: usize) -> (Vec<Session>, Option<String>) {
        let mut sessions = Vec::new();
        while sessions.len() < wanted {
            if sessions.len() % CHECK_EVERY == 0
                && let Some(reason) = little_left()
            {
                return (sessions, Some(reason));
            }
            match self.open().await {
                Ok(session) => sessions.push(session),
                Err(error) => return (sessions, Some(format!("{error:#}"))),
            }
        }
        (sessions, None)
    }
}

fn little_left() -> Option<String> {
    let now = kernel::memory();
    (now.available < now.total / MIN_AVAILABLE_DIVISOR)
        .then(|| format!("only {} MiB of memory are left", now.available / 1024))
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    memory: Memory,
    tables: u64,
}

fn read_memory() -> Result<Reading> {
    let own = std::process::id();
    let memory = tree::memory(&[own]).context("this process may not inspect its own memory")?;
    Ok(Reading { memory, tables: tree::page_tables(own) })
}

impl Reading {
    fn since(self, before: Self, held: usize) -> Each {
        let each = |after: u64, before: u64| (after as f64 - before as f64) / held as f64;
        Each {
            resident: each(self.memory.resident, before.memory.resident),
            proportional: each(self.memory.proportional, before.memory.proportional),
            own: each(self.memory.own, before.memory.own),
            tables: each(self.tables, before.tables),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// All tests of a process share its memory, so the measurement needs a process of its own.
    #[test]
    fn module_sessions_are_measured_and_scripts_skipped_without_interpreters() {
        let own = std::env::current_exe().unwrap();
        let inner = concat!(module_path!(), "::inner_measurement");
        let inner = inner.split_once("::").unwrap().1;
        let output = Command::new(own).args(["--exact", inner, "--ignored", "--nocapture"]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("1 passed"), "{printed}{output:?}");
    }

    #[tokio::test]
    #[ignore = "started by the test above, in a process of its own"]
    async fn inner_measurement() {
        let none = tempfile::tempdir().unwrap();
        let interpreters = Interpreters::new(Some(none.path().join("none")));
        let (found, unavailable) = measure(&interpreters, 100).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].kind, found[0].held, &found[0].stopped), (Kind::Module, 100, &None));
        // At least the page that was written. The process's unique memory shrinks if another process starts the same
        // program meanwhile, because its code is then shared.
        assert!(found[0].each.resident >= 4.0, "{found:?}");
        let kinds: Vec<Kind> = unavailable.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::JavaScript, Kind::Python]);
    }
}
