//! Versions of interpreters, queried once for each kind of sandbox before code of a request runs there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Capability, Error, ErrorKind, ExecRequest, Fault, Result, Sandbox, Spec};
use parking_lot::Mutex;

use crate::{BackendProfile, Language, Runtime, error, rich};

/// Timeout for an interpreter to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// The most remembered kinds of sandboxes.
const MAX_KNOWN: usize = 256;

/// Known versions of interpreters.
#[derive(Debug, Default)]
pub struct Versions(Mutex<HashMap<String, Arc<str>>>);

impl Versions {
    /// Returns the version if it is known.
    pub fn known(&self, profile: &BackendProfile, spec: &Spec, name: &str) -> Option<Arc<str>> {
        let known = self.0.lock();
        known.get(&key(profile, spec, name)).cloned()
    }

    /// Returns the version of a language's interpreter. Queries the sandbox if the version is unknown. Returns `None`
    /// if the sandbox runs no programs that could be queried.
    ///
    /// # Errors
    /// - `NotFound` if the interpreter is missing.
    /// - `Unavailable` if it is too old.
    pub async fn ask(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        name: &str,
        language: &Language,
    ) -> Result<Option<Arc<str>>> {
        if language.version.is_empty() || !profile.capabilities.contains(&Capability::UnixPrograms) {
            return Ok(None);
        }
        if let Some(known) = self.known(profile, sandbox.spec(), name) {
            return Ok(Some(known));
        }
        let request = ExecRequest::argv(language.version.clone())
            .timeout(VERSION_TIMEOUT)
            .max_output(ByteSize::from_bytes(4096))
            .build()?;
        let completed =
            sandbox.exec(request).await.map_err(|error| error::not_started(error, name, language.program()))?;
        let printed = [&completed.stdout[..], &completed.stderr[..]].concat();
        let Some(version) = find(&String::from_utf8_lossy(&printed)) else { return Ok(None) };
        if let Some(least) = &language.least_version {
            at_least(least, &version, ("execute", name, language))?;
        }
        let version: Arc<str> = version.into();
        let mut known = self.0.lock();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key(profile, sandbox.spec(), name), Arc::clone(&version));
        Ok(Some(version))
    }
}

/// Checks that a version is not older than a minimum.
///
/// # Errors
/// - `Unavailable` if it is.
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

/// Returns the key of a kind of sandbox: those with the same backend and root have the same interpreters.
fn key(profile: &BackendProfile, spec: &Spec, name: &str) -> String {
    format!("{}\0{:?}\0{name}", profile.backend, spec.root())
}

/// Returns the first word that looks like a version in the output of a program.
fn find(printed: &str) -> Option<String> {
    let words = printed.split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')'));
    let trimmed = words.map(|word| word.strip_prefix('v').unwrap_or(word));
    let version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && rich::plain_version(word);
    trimmed.into_iter().find(version).map(str::to_owned)
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok()).collect()
}

/// Describes an interpreter for a result.
pub fn describe(language: &Language, version: Option<String>) -> Runtime {
    Runtime { interpreter: language.program().to_owned(), version }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_program_output() {
        for (output, version) in [
            ("Python 3.11.2\n", Some("3.11.2")),
            ("v20.20.2\n", Some("20.20.2")),
            ("GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)", Some("5.2.15")),
            ("cc (Debian 12.2.0-14) 12.2.0", Some("12.2.0-14")),
            ("no number", None),
        ] {
            let found = find(output);
            let version = version.map(str::to_owned);
            assert_eq!(found, version, "{output}");
        }
        assert!(numbers("20.20.2") < numbers("22.6"));
        assert!(numbers("22.13.1") > numbers("22.6"));
    }
}
