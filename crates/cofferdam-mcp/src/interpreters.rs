//! The live interpreters of one sandbox, by the names that its client gives them.
//!
//! ```text
//! unknown --first call--> opening --> live --(crash | time-out | cancelled | exit | idle)--> lost --close--> unknown
//!                            \-(refused | failed | given up)-> unknown
//! ```
//!
//! The name of one that is lost answers why, so that nobody takes a new interpreter for the old one; who closes it has
//! the name back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_code::CodeSession;
use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use tokio::time::timeout;

/// Names of a sandbox, those of lost ones included.
const MAX_NAMES: usize = 64;
/// Characters of a name.
const MAX_LENGTH: usize = 64;
/// How long one may take to end once its sandbox has.
const PATIENCE: Duration = Duration::from_secs(1);

/// A name that may be one of an interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

/// Interpreters of one sandbox.
#[derive(Debug, Default)]
pub struct Interpreters(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    slots: BTreeMap<String, Slot>,
    closed: bool,
}

#[derive(Debug, Clone)]
enum Slot {
    Opening,
    Live(Arc<CodeSession>),
}

/// What a name stands for.
#[derive(Debug)]
pub enum Entered<'a> {
    /// An interpreter, which may be lost.
    Live(Arc<CodeSession>),
    /// None so far: the caller starts one.
    New(Opening<'a>),
}

/// A name whose interpreter is being started. Dropped, the name is free again.
#[derive(Debug)]
pub struct Opening<'a> {
    of: &'a Interpreters,
    name: Option<String>,
}

impl Name {
    /// Refuses what is no name.
    pub fn parse(text: &str) -> Result<Self> {
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if plain && (1..=MAX_LENGTH).contains(&text.len()) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid("session", "the name of a session is 1 to 64 letters, digits, '.', '_' and '-'")
            .with_remedy("give a name such as main"))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What a client is told whose interpreter is lost; any other error as it is.
    pub fn gone(&self, session: &CodeSession, error: Error) -> Error {
        if error.kind() != ErrorKind::Closed {
            return error;
        }
        let why = session.lost().unwrap_or_else(|| "it was closed".to_owned());
        Error::new(ErrorKind::Closed, "session", format!("the session is gone: {why}"))
            .with_context("session", self.0.clone())
            .with_remedy(
                "begin one of another name, or close this one with close_sandbox to use its name again; \
                 what was defined in it has to be defined anew",
            )
    }
}

impl Interpreters {
    fn lock(&self) -> MutexGuard<'_, Book> {
        // What a panic leaves behind is still consistent: every change is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the name stands for, in this language.
    pub fn enter(&self, name: &Name, language: &str) -> Result<Entered<'_>> {
        let mut book = self.lock();
        match book.slots.get(&name.0) {
            Some(Slot::Live(session)) if session.language() == language => {
                return Ok(Entered::Live(Arc::clone(session)));
            }
            Some(Slot::Live(session)) => {
                let what = format!("the session '{}' is of the language {}", name.0, session.language());
                return Err(Error::new(ErrorKind::Conflict, "session", what)
                    .with_remedy("give another name for another language"));
            }
            Some(Slot::Opening) => {
                let what = format!("the session '{}' is being started by another call", name.0);
                return Err(Error::new(ErrorKind::Conflict, "session", what)
                    .with_retry(Retry::MayHelp)
                    .with_remedy("wait for the end of that call, or give another name"));
            }
            None => {}
        }
        if book.closed {
            return Err(Error::new(ErrorKind::Closed, "session", "the sandbox is being closed"));
        }
        if book.slots.len() >= MAX_NAMES {
            // Why they are gone is forgotten first.
            book.slots.retain(|_, slot| !matches!(slot, Slot::Live(session) if session.lost().is_some()));
        }
        if book.slots.len() >= MAX_NAMES {
            return Err(Error::new(ErrorKind::ResourceExhausted, "session", "the sandbox has too many sessions")
                .with_remedy("end one with close_sandbox and its session"));
        }
        book.slots.insert(name.0.clone(), Slot::Opening);
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
                .with_remedy("give the name that run_code was given"));
        };
        session.close().await;
        let mut book = self.lock();
        if matches!(book.slots.get(name), Some(Slot::Live(now)) if Arc::ptr_eq(now, &session)) {
            book.slots.remove(name);
        }
        Ok(())
    }

    /// Lets go of all of them, once their sandbox has ended. None is started any more.
    pub async fn close_all(&self) {
        let all: Vec<Slot> = {
            let mut book = self.lock();
            book.closed = true;
            book.slots.values().cloned().collect()
        };
        for slot in all {
            if let Slot::Live(session) = slot {
                // What does not end in time ends with its process, which is gone.
                let _ = timeout(PATIENCE, session.close()).await;
            }
        }
    }
}

impl Opening<'_> {
    /// It is there.
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
    fn names_are_plain_and_one_that_is_given_up_is_free_again() {
        for bad in ["", "a b", "ü", "../x", "a\n", &"x".repeat(65)] {
            assert_eq!(Name::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
        let (interpreters, name) = (Interpreters::default(), Name::parse("a.b_c-1").unwrap());
        let opening = interpreters.enter(&name, "python").unwrap();
        assert_eq!(interpreters.enter(&name, "python").unwrap_err().kind(), ErrorKind::Conflict);
        drop(opening);
        let kept: Vec<_> = (0..MAX_NAMES)
            .map(|number| interpreters.enter(&Name::parse(&number.to_string()).unwrap(), "python").unwrap())
            .collect();
        assert_eq!(interpreters.enter(&name, "python").unwrap_err().kind(), ErrorKind::ResourceExhausted);
        drop(kept);
        assert!(matches!(interpreters.enter(&name, "python"), Ok(Entered::New(_))));
    }
}
