//! The live interpreters of one sandbox, by the names that its client assigned.
//!
//! ```text
//! unknown --first call--> opening --> live --(crash | time-out | cancelled | exit | idle)--> lost --close--> unknown
//!                            \-(refused | failed | cancelled)-> unknown
//! ```
//!
//! The name of a lost interpreter reports the reason of the loss, so that the client does not mistake a new interpreter
//! for the old one. Closing it frees the name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_code::CodeSession;
use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::timeout;

/// Maximum number of names in a sandbox, including those of lost interpreters.
const MAX_NAMES: usize = 64;
/// Maximum length of a name, in characters.
const MAX_LENGTH: usize = 64;
/// Timeout for an interpreter to end after its sandbox.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A valid name of an interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

/// The interpreters of one sandbox.
#[derive(Debug, Default)]
pub struct Interpreters(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    slots: BTreeMap<String, Slot>,
    closed: bool,
}

#[derive(Debug, Clone)]
enum Slot {
    Opening,
    Live(Arc<CodeSession>),
}

/// The interpreter of a name.
#[derive(Debug)]
pub enum Entered<'a> {
    /// An existing interpreter, which may be lost.
    Live(Arc<CodeSession>),
    /// No interpreter yet; the caller starts one.
    New(Opening<'a>),
}

/// A name whose interpreter is being started. Dropping it frees the name.
#[derive(Debug)]
pub struct Opening<'a> {
    of: &'a Interpreters,
    name: Option<String>,
}

impl Name {
    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self> {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if plain && (1..=MAX_LENGTH).contains(&text.len()) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid("session", "the name of a session is 1 to 64 letters, digits, '.', '_' and '-'")
            .with_remedy("use a name such as main"))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Converts the error of a call to a lost interpreter into one with the reason. Returns any other error unchanged.
    pub fn gone(&self, session: &CodeSession, error: Error) -> Error {
        if error.kind() != ErrorKind::Closed {
            return error;
        }
        let why = session.lost().unwrap_or_else(|| "it was closed".to_owned());
        Error::new(ErrorKind::Closed, "session", format!("the session is lost: {why}"))
            .with_context("session", self.0.clone())
            .with_remedy(
                "use another name, or close this session with close_sandbox to reuse its name; \
                 its definitions are lost",
            )
    }
}

impl Interpreters {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // The state is consistent after a panic, because every change is one step.
        self.0.lock()
    }

    /// Returns the interpreter of the name and language, or reserves the name.
    pub fn enter(&self, name: &Name, language: &str) -> Result<Entered<'_>> {
        let mut table = self.lock();
        match table.slots.get(&name.0) {
            Some(Slot::Live(session)) if session.language() == language => {
                return Ok(Entered::Live(Arc::clone(session)));
            }
            Some(Slot::Live(session)) => {
                let what = format!("the session '{}' has the language {}", name.0, session.language());
                return Err(Error::new(ErrorKind::Conflict, "session", what)
                    .with_remedy("use another name for another language"));
            }
            Some(Slot::Opening) => {
                let what = format!("the session '{}' is being started by another call", name.0);
                return Err(Error::new(ErrorKind::Conflict, "session", what)
                    .with_retry(Retry::MayHelp)
                    .with_remedy("wait for the end of that call, or use another name"));
            }
            None => {}
        }
        if table.closed {
            return Err(Error::new(ErrorKind::Closed, "session", "the sandbox is being closed"));
        }
        if table.slots.len() >= MAX_NAMES {
            // Drops lost interpreters and the reasons for their loss first.
            table.slots.retain(|_, slot| !matches!(slot, Slot::Live(session) if session.lost().is_some()));
        }
        if table.slots.len() >= MAX_NAMES {
            return Err(Error::new(ErrorKind::ResourceExhausted, "session", "the sandbox has too many sessions")
                .with_remedy("end one by close_sandbox with its session"));
        }
        table.slots.insert(name.0.clone(), Slot::Opening);
        Ok(Entered::New(Opening { of: self, name: Some(name.0.clone()) }))
    }

    /// Ends the interpreter of this name, and frees the name.
    pub async fn close(&self, name: &str) -> Result<()> {
        let session = match self.lock().slots.get(name) {
            Some(Slot::Live(session)) => Some(Arc::clone(session)),
            Some(Slot::Opening) => {
                return Err(Error::new(ErrorKind::Conflict, "close", "the session is being started by another call")
                    .with_retry(Retry::MayHelp)
                    .with_remedy("cancel that call, or wait for its end"));
            }
            None => None,
        };
        let Some(session) = session else {
            let shown: String = name.chars().take(MAX_LENGTH).flat_map(char::escape_debug).collect();
            return Err(Error::new(ErrorKind::NotFound, "close", "the sandbox has no session of this name")
                .with_context("session", shown)
                .with_remedy("use the name that was passed to run_code"));
        };
        session.close().await;
        let mut table = self.lock();
        if matches!(table.slots.get(name), Some(Slot::Live(now)) if Arc::ptr_eq(now, &session)) {
            table.slots.remove(name);
        }
        Ok(())
    }

    /// Closes all interpreters after their sandbox has ended. No further ones can start.
    pub async fn close_all(&self) {
        let all: Vec<Slot> = {
            let mut table = self.lock();
            table.closed = true;
            table.slots.values().cloned().collect()
        };
        for slot in all {
            if let Slot::Live(session) = slot {
                // The interpreter's process is dead, even if closing times out.
                let _ = timeout(CLOSE_TIMEOUT, session.close()).await;
            }
        }
    }
}

impl Opening<'_> {
    /// Assigns the started interpreter to the name.
    pub fn done(mut self, session: Arc<CodeSession>) -> Arc<CodeSession> {
        if let Some(name) = self.name.take() {
            self.of.lock().slots.insert(name, Slot::Live(Arc::clone(&session)));
        }
        session
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            self.of.lock().slots.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused_and_released_names_are_free() {
        for bad in ["", "a b", "ü", "../x", "a\n", &"x".repeat(65)] {
            assert_eq!(Name::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
        let (interpreters, name) = (Interpreters::default(), Name::parse("a.b_c-1").unwrap());
        let opening = interpreters.enter(&name, "python").unwrap();
        assert_eq!(interpreters.enter(&name, "python").unwrap_err().kind(), ErrorKind::Conflict);
        drop(opening);
        let entered: Vec<_> = (0..MAX_NAMES)
            .map(|number| interpreters.enter(&Name::parse(&number.to_string()).unwrap(), "python").unwrap())
            .collect();
        assert_eq!(interpreters.enter(&name, "python").unwrap_err().kind(), ErrorKind::ResourceExhausted);
        drop(entered);
        assert!(matches!(interpreters.enter(&name, "python"), Ok(Entered::New(_))));
    }
}
