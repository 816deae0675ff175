//! Credentials for registries from the configuration files of Docker and Podman, and from credential helpers.
//!
//! The files and helpers belong to the user. Secrets are held in memory only, and appear in no message.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_linux::child::{self, Start};
use cofferdam_linux::programs;
use cofferdam_linux::trust::{self, Secrecy};
use rustix::fs::MemfdFlags;
use serde::Deserialize;

use super::super::error::{Result, StoreError, io};
use super::super::reference::DOCKER_HUB;

/// The key of Docker Hub in configuration files.
const HUB_KEY: &str = "https://index.docker.io/v1/";
const MAX_CONFIG: u64 = 1 << 20;
const MAX_ANSWER: u64 = 64 << 10;
const HELPER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The user name with which helpers return an identity token.
const TOKEN_USER: &str = "<token>";
/// The answer of helpers that have no credentials.
const NOT_FOUND: &str = "credentials not found";

/// Credentials for one registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// User name and password.
    Basic(String, String),
    /// A token that is exchanged for access tokens.
    Identity(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    auths: BTreeMap<String, Entry>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Returns the credentials for a registry from the first file that has some. A missing file has none.
pub(super) fn find(files: &[PathBuf], registry: &str) -> Result<Option<Credentials>> {
    for path in files {
        let Some(config) = read(path)? else { continue };
        if let Some(found) = of_config(&config, path, registry)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn read(path: &Path) -> Result<Option<Config>> {
    // Others may read it: registries do not demand more, and Docker does not either.
    let file = match trust::open(path, Secrecy::Public) {
        Ok(file) => file,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => {
            return Err(StoreError::Credentials { what: error.to_string(), remedy: error.remedy() });
        }
    };
    let mut text = Vec::new();
    file.take(MAX_CONFIG).read_to_end(&mut text).map_err(io("read", path))?;
    // The parser's message could contain a secret.
    serde_json::from_slice(&text).map(Some).map_err(|error| StoreError::Credentials {
        what: format!("{} is not a configuration of Docker (line {})", path.display(), error.line()),
        remedy: "correct it, or log in again with `docker login`".to_owned(),
    })
}

fn of_config(config: &Config, path: &Path, registry: &str) -> Result<Option<Credentials>> {
    let key = if registry == DOCKER_HUB { HUB_KEY } else { registry };
    let helper = config.cred_helpers.iter().find(|(name, _)| host(name) == registry).map(|(_, helper)| helper);
    if let Some(helper) = helper.or(config.creds_store.as_ref())
        && let Some(found) = ask(helper, key)?
    {
        return Ok(Some(found));
    }
    let Some((_, entry)) = config.auths.iter().find(|(name, _)| host(name) == registry) else { return Ok(None) };
    let invalid = || StoreError::Credentials {
        what: format!("the credentials for {registry} in {} cannot be decoded", path.display()),
        remedy: "log in again with `docker login`".to_owned(),
    };
    if let Some(token) = entry.identitytoken.as_ref().filter(|token| !token.is_empty()) {
        return Ok(Some(Credentials::Identity(token.clone())));
    }
    if let Some(auth) = entry.auth.as_ref().filter(|auth| !auth.is_empty()) {
        let bytes = STANDARD.decode(auth.trim()).map_err(|_| invalid())?;
        let text = String::from_utf8(bytes).map_err(|_| invalid())?;
        let (user, password) = text.split_once(':').ok_or_else(invalid)?;
        return Ok(Some(Credentials::Basic(user.to_owned(), password.trim_end_matches('\0').to_owned())));
    }
    match (&entry.username, &entry.password) {
        (Some(user), Some(password)) => Ok(Some(Credentials::Basic(user.clone(), password.clone()))),
        _ => Ok(None),
    }
}

/// Returns the registry of a key, which may be a URL.
fn host(key: &str) -> &str {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let host = rest.split('/').next().unwrap_or_default();
    if matches!(host, "index.docker.io" | "registry-1.docker.io") { DOCKER_HUB } else { host }
}

/// Asks a credential helper, `docker-credential-NAME get`.
fn ask(helper: &str, key: &str) -> Result<Option<Credentials>> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let failed = |what: String| StoreError::Credentials {
        what,
        remedy: "correct `credsStore` and `credHelpers` in Docker's configuration".to_owned(),
    };
    if helper.is_empty() || !helper.bytes().all(is_plain) {
        return Err(failed(format!("'{}' is not a name of a credential helper", helper.escape_debug())));
    }
    let program = format!("docker-credential-{helper}");
    let memory =
        || rustix::fs::memfd_create("credentials", MemfdFlags::CLOEXEC).map_err(io("create", "a file in memory"));
    let (mut input, mut output) = (std::fs::File::from(memory()?), std::fs::File::from(memory()?));
    input.write_all(key.as_bytes()).map_err(io("write", &program))?;
    input.seek(SeekFrom::Start(0)).map_err(io("write", &program))?;
    let mut command = programs::command(&program).map_err(|error| failed(error.to_string()))?;
    let out = output.try_clone().map_err(io("copy a descriptor for", &program))?;
    command.arg("get").stdin(input).stdout(out).stderr(Stdio::null());
    let mut child = child::start(command, Start::default()).map_err(|error| match error.kind() {
        ErrorKind::NotFound => failed(format!("the credential helper {program} is not installed")),
        _ => io("start", &program)(error),
    })?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(io("wait for", &program))? {
            Some(status) => break status,
            None if begun.elapsed() < HELPER_TIMEOUT => std::thread::sleep(POLL_INTERVAL),
            None => {
                // It may have ended by now; then both calls fail, without harm.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("{program} did not answer in {HELPER_TIMEOUT:?}")));
            }
        }
    };
    let mut text = Vec::new();
    output.seek(SeekFrom::Start(0)).map_err(io("read", &program))?;
    output.take(MAX_ANSWER).read_to_end(&mut text).map_err(io("read", &program))?;
    if !status.success() {
        let has_none = String::from_utf8_lossy(&text).contains(NOT_FOUND);
        return if has_none { Ok(None) } else { Err(failed(format!("{program} failed ({status})"))) };
    }
    let answer: Answer =
        serde_json::from_slice(&text).map_err(|_| failed(format!("the answer of {program} cannot be parsed")))?;
    Ok(Some(match answer.username.as_str() {
        TOKEN_USER => Credentials::Identity(answer.secret),
        _ => Credentials::Basic(answer.username, answer.secret),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, registry: &str) -> Option<Credentials> {
        let config: Config = serde_json::from_str(text).unwrap();
        of_config(&config, Path::new("config.json"), registry).unwrap()
    }

    fn basic(user: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::Basic(user.to_owned(), password.to_owned()))
    }

    #[test]
    fn credentials_are_found_by_every_form_of_a_registry() {
        let text = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOnBhc3M6d29yZA=="},
            "localhost:5000": {"auth": "dTpw"},
            "https://a.example/v2/": {"username": "x", "password": "y"},
            "b.example": {"identitytoken": "token"},
            "c.example": {}
        }}"#;
        assert_eq!(found(text, "docker.io"), basic("hub", "pass:word"));
        assert_eq!(found(text, "localhost:5000"), basic("u", "p"));
        assert_eq!(found(text, "a.example"), basic("x", "y"));
        assert_eq!(found(text, "b.example"), Some(Credentials::Identity("token".to_owned())));
        for other in ["c.example", "example", "localhost:5001", "evil.a.example"] {
            assert_eq!(found(text, other), None, "{other}");
        }
    }

    #[test]
    fn secrets_are_in_no_message() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("config.json");
        for text in [
            r#"{"auths": {"a.b": {"auth": "hunter2!"}}}"#,
            r#"{"auths": "hunter2!"#,
            r#"{"auths": {"a.b": "hunter2!"}}"#,
        ] {
            std::fs::write(&path, text).unwrap();
            let error = find(std::slice::from_ref(&path), "a.b").unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        assert!(!format!("{:?}", Credentials::Basic("u".into(), "hunter2".into())).contains("hunter2"));
        assert_eq!(find(&[temp.path().join("none.json")], "a.b").unwrap(), None);
    }

    #[test]
    fn names_of_helpers_that_are_paths_are_refused() {
        for helper in ["", "../x", "/bin/sh", "a b", "x;y"] {
            let config = Config { creds_store: Some(helper.to_owned()), ..Config::default() };
            assert!(of_config(&config, Path::new("config.json"), "a.b").is_err(), "{helper:?}");
        }
    }
}
