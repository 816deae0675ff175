//! Which interpreter a sandbox has: asked once for each kind of sandbox, before any code of a request ran there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, ErrorKind, ExecRequest, Fault, Result, Sandbox, Spec};

use crate::{Language, Place, Runtime, error, rich};

/// Real time that an interpreter may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(20);
/// Kinds of sandboxes that are remembered.
const MAX_KNOWN: usize = 256;

/// What is known about the interpreters of sandboxes.
#[derive(Debug, Default)]
pub struct Versions(Mutex<HashMap<String, Arc<str>>>);

impl Versions {
    /// What is known, without asking.
    pub fn known(&self, place: &Place, spec: &Spec, name: &str) -> Option<Arc<str>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&key(place, spec, name)).cloned()
    }

    /// Asks a sandbox for the version of a language, unless that is known.
    ///
    /// # Errors
    /// `NotFound` if the interpreter is missing, `Unavailable` if it is too old; both say what to do.
    pub async fn ask(
        &self,
        place: &Place,
        sandbox: &dyn Sandbox,
        name: &str,
        language: &Language,
    ) -> Result<Option<Arc<str>>> {
        if language.version.is_empty() {
            return Ok(None);
        }
        if let Some(known) = self.known(place, sandbox.spec(), name) {
            return Ok(Some(known));
        }
        let request = ExecRequest::argv(language.version.clone())
            .timeout(PATIENCE)
            .max_output(ByteSize::from_bytes(4096))
            .build()?;
        let completed =
            sandbox.exec(request).await.map_err(|error| error::not_started(error, name, language.program()))?;
        let said = [&completed.stdout[..], &completed.stderr[..]].concat();
        let Some(version) = find(&String::from_utf8_lossy(&said)) else { return Ok(None) };
        if let Some(least) = &language.least_version {
            at_least(least, &version, ("execute", name, language))?;
        }
        let version: Arc<str> = version.into();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key(place, sandbox.spec(), name), Arc::clone(&version));
        Ok(Some(version))
    }
}

/// Refuses a version that is too old for what is to be done with a language.
///
/// # Errors
/// `Unavailable`, with what to do.
pub fn at_least(
    least: &str,
    version: &str,
    (operation, name, language): (&'static str, &str, &Language),
) -> Result<()> {
    if numbers(version) >= numbers(least) {
        return Ok(());
    }
    let what = if operation == "execute" { name.to_owned() } else { format!("a session in {name}") };
    let message = format!("{what} needs {} {least} or newer, and the sandbox has {version}", language.program());
    Err(Error::new(ErrorKind::Unavailable, operation, message).with_fault(Fault::Host).with_remedy(format!(
        "name an image that has it (--image), or install a newer one on the host and name it in [languages.{name}] of \
             the configuration"
    )))
}

/// A kind of sandbox: those with the same backend and root have the same interpreters.
fn key(place: &Place, spec: &Spec, name: &str) -> String {
    format!("{}\0{:?}\0{name}", place.backend, spec.root())
}

/// The first word that looks like a version, of what a program says about itself.
fn find(said: &str) -> Option<String> {
    let words = said.split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')'));
    let trimmed = words.map(|word| word.strip_prefix('v').unwrap_or(word));
    let version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && rich::plain_version(word);
    trimmed.into_iter().find(version).map(str::to_owned)
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok()).collect()
}

/// What a result says of an interpreter.
pub fn told(language: &Language, version: Option<String>) -> Runtime {
    Runtime { interpreter: language.program().to_owned(), version }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, version) in [
            ("Python 3.11.2\n", Some("3.11.2")),
            ("v20.20.2\n", Some("20.20.2")),
            ("GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)", Some("5.2.15")),
            ("cc (Debian 12.2.0-14) 12.2.0", Some("12.2.0-14")),
            ("no number", None),
        ] {
            let found = find(said);
            let version = version.map(str::to_owned);
            assert_eq!(found, version, "{said}");
        }
        assert!(numbers("20.20.2") < numbers("22.6"));
        assert!(numbers("22.13.1") > numbers("22.6"));
    }
}
