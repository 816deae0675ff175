//! The command to run inside a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::serde_optional_duration;
use crate::{ByteSize, Error, Result, SandboxPath};

/// The default of [`ExecRequest::max_output`]: 1 MiB.
pub const DEFAULT_MAX_OUTPUT: ByteSize = ByteSize::from_mebibytes(1);
/// The most bytes of arguments and environment in one request: 1 MiB.
pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;
/// The most bytes of code in one script: 16 MiB.
const MAX_SCRIPT_BYTES: usize = 16 << 20;
/// The most arguments and environment variables in one request.
const MAX_ARGUMENTS: usize = 65_536;

/// Code that is written to a private file inside the sandbox and run by an interpreter. It never appears on a command
/// line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The interpreter and its options, such as `["python3"]`. The interpreter is looked up in the sandbox's `PATH`.
    pub interpreter: Vec<String>,
    /// The name of the file, such as `main.py`: one path component.
    pub name: String,
    /// The code, at most 16 MiB.
    #[schemars(with = "Vec<u8>")]
    pub contents: Bytes,
    /// Arguments after the file name. Default: none.
    #[serde(default)]
    pub args: Vec<String>,
}

/// A command to run inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// A program and its arguments. A program without a slash is looked up in the sandbox's `PATH`.
    Argv(Vec<String>),
    /// A command line for `/bin/sh -c`.
    Shell(String),
    /// Code in a private, read-only file.
    Script(Script),
}

/// The source of standard input.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stdin {
    /// Immediate end-of-file. The default.
    #[default]
    Empty,
    /// These bytes, then end-of-file.
    Bytes(#[schemars(with = "Vec<u8>")] Bytes),
    /// A stream: the bytes written to [`crate::ExecHandle::stdin`], until that is closed.
    Stream,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TerminalSize {
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub columns: u16,
}

/// Changes to the sandbox's minimal environment (`PATH`, `HOME`, `LANG`). Nothing is inherited from the host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct EnvDelta(BTreeMap<String, Option<String>>);

impl EnvDelta {
    /// Iterates over the changes: `Some` sets a variable, `None` unsets it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_deref()))
    }

    /// Applies the changes to `base` and returns the resulting environment.
    pub fn apply<'a>(&'a self, base: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<&'a str, &'a str> {
        let mut result: BTreeMap<&str, &str> = base.into_iter().collect();
        for (key, value) in self.iter() {
            match value {
                Some(value) => result.insert(key, value),
                None => result.remove(key),
            };
        }
        result
    }
}

/// A command to run inside a sandbox and its settings. Immutable; created by [`ExecRequest::builder`] or deserialized
/// from JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    command: Command,
    #[serde(default)]
    env: EnvDelta,
    #[serde(default)]
    working_dir: SandboxPath,
    #[serde(default)]
    stdin: Stdin,
    #[serde(default)]
    terminal: Option<TerminalSize>,
    #[serde(default, with = "serde_optional_duration")]
    #[schemars(with = "Option<f64>")]
    timeout: Option<Duration>,
    #[serde(default = "default_max_output")]
    max_output: ByteSize,
    #[serde(default)]
    output_buffer: Option<ByteSize>,
}

fn default_max_output() -> ByteSize {
    DEFAULT_MAX_OUTPUT
}

impl ExecRequest {
    /// Creates a builder for `command` with default settings.
    pub fn builder(command: Command) -> ExecRequestBuilder {
        ExecRequestBuilder {
            request: Self {
                command,
                env: EnvDelta::default(),
                working_dir: SandboxPath::default(),
                stdin: Stdin::Empty,
                terminal: None,
                timeout: None,
                max_output: DEFAULT_MAX_OUTPUT,
                output_buffer: None,
            },
        }
    }

    /// Creates a builder for a program and its arguments with default settings.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> ExecRequestBuilder {
        Self::builder(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// Creates a builder for a shell command line with default settings.
    pub fn shell(line: impl Into<String>) -> ExecRequestBuilder {
        Self::builder(Command::Shell(line.into()))
    }

    /// Returns the command.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Returns the changes to the minimal environment. Default: none.
    pub fn env(&self) -> &EnvDelta {
        &self.env
    }

    /// Returns the working directory, relative to the workspace. Default: the workspace itself.
    pub fn working_dir(&self) -> &SandboxPath {
        &self.working_dir
    }

    /// Returns the source of standard input. Default: empty.
    pub fn stdin(&self) -> &Stdin {
        &self.stdin
    }

    /// Returns the size of the terminal, or `None` to run without a terminal. With a terminal, standard output and
    /// standard error are one stream. Default: no terminal.
    pub fn terminal(&self) -> Option<TerminalSize> {
        self.terminal
    }

    /// Returns the limit on wall-clock time. `None`, the default, means [`crate::Limits::wall_time`] of the spec.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns the most bytes of stdout and stderr together that are delivered. Output beyond it is read and discarded.
    /// Default: [`DEFAULT_MAX_OUTPUT`].
    pub fn max_output(&self) -> ByteSize {
        self.max_output
    }

    /// Returns the size of the ring buffer for subscribers that lag, in bytes. Default: `max_output`, but at most 8
    /// MiB.
    pub fn output_buffer(&self) -> ByteSize {
        self.output_buffer.unwrap_or(self.max_output.min(ByteSize::from_mebibytes(8)))
    }

    /// Creates a builder that starts with this request's values.
    pub fn to_builder(&self) -> ExecRequestBuilder {
        ExecRequestBuilder { request: self.clone() }
    }

    /// Checks everything that can be checked without a host. Backends call it first, because a request may come from
    /// JSON.
    ///
    /// # Errors
    /// - `InvalidInput` for an empty command, a NUL byte, a malformed script or variable name, arguments and
    ///   environment beyond [`MAX_ARGUMENT_BYTES`], or a timeout of 0.
    pub fn validate(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::invalid("start", message));
        let words: Vec<&str> = match &self.command {
            Command::Argv(argv) => argv.iter().map(String::as_str).collect(),
            Command::Shell(line) => vec![line],
            Command::Script(script) => {
                if script.contents.len() > MAX_SCRIPT_BYTES {
                    return bad("a script must be at most 16 MiB");
                }
                if script.interpreter.is_empty() {
                    return bad("a script needs an interpreter");
                }
                let name = &script.name;
                if name.is_empty() || name.len() > 255 || name.contains('/') || name == "." || name == ".." {
                    return bad("a script's name must be one file name");
                }
                script.interpreter.iter().chain(&script.args).chain([name]).map(String::as_str).collect()
            }
        };
        if words.first().is_none_or(|word| word.is_empty()) {
            return bad("the command is empty");
        }
        for (key, _) in self.env.iter() {
            if key.is_empty() || key.contains('=') {
                return bad("an environment variable's name must not be empty or contain '='");
            }
        }
        let env = self.env.iter().flat_map(|(key, value)| [Some(key), value]).flatten();
        let (mut bytes, mut count) = (0, 0);
        for text in words.into_iter().chain(env) {
            if text.contains('\0') {
                return bad("arguments and environment must not contain NUL bytes");
            }
            bytes += text.len() + 1;
            count += 1;
        }
        if bytes > MAX_ARGUMENT_BYTES || count > MAX_ARGUMENTS {
            return bad(
                "arguments and environment must be at most 1 MiB and 65536 items; pass more through a file or stdin",
            );
        }
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return bad("the timeout must be greater than 0");
        }
        Ok(())
    }
}

/// A builder for an [`ExecRequest`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ExecRequestBuilder {
    request: ExecRequest,
}

impl ExecRequestBuilder {
    /// Sets an environment variable.
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.0.insert(key.into(), Some(value.into()));
        self
    }

    /// Unsets a variable of the minimal environment.
    pub fn unset_env(mut self, key: impl Into<String>) -> Self {
        self.request.env.0.insert(key.into(), None);
        self
    }

    /// Sets the working directory, relative to the workspace. Default: the workspace itself.
    pub fn working_dir(mut self, path: SandboxPath) -> Self {
        self.request.working_dir = path;
        self
    }

    /// Sets the source of standard input. Default: empty.
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.request.stdin = stdin;
        self
    }

    /// Runs the command in a terminal of this size. Default: no terminal.
    pub fn terminal(mut self, size: TerminalSize) -> Self {
        self.request.terminal = Some(size);
        self
    }

    /// Sets the limit on wall-clock time. Default: [`crate::Limits::wall_time`] of the spec.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = Some(timeout);
        self
    }

    /// Sets the most bytes of stdout and stderr together that are delivered. Default: [`DEFAULT_MAX_OUTPUT`].
    pub fn max_output(mut self, size: ByteSize) -> Self {
        self.request.max_output = size;
        self
    }

    /// Sets the size of the ring buffer for subscribers that lag. Default: `max_output`, but at most 8 MiB.
    pub fn output_buffer(mut self, size: ByteSize) -> Self {
        self.request.output_buffer = Some(size);
        self
    }

    /// Checks the request with [`ExecRequest::validate`] and returns it.
    pub fn build(self) -> Result<ExecRequest> {
        self.request.validate()?;
        Ok(self.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Contract): A request with values that no exec can have is refused.
    #[test]
    fn hostile_requests_are_refused() {
        let script = |name: &str| {
            ExecRequest::builder(Command::Script(Script {
                interpreter: vec!["sh".into()],
                name: name.into(),
                contents: Bytes::new(),
                args: vec![],
            }))
        };
        assert!(script("a.sh").build().is_ok());
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert!(script(name).build().is_err(), "{name:?}");
        }
        assert!(ExecRequest::argv(Vec::<String>::new()).build().is_err());
        assert!(ExecRequest::argv([""]).build().is_err());
        assert!(ExecRequest::argv(["a\0b"]).build().is_err());
        assert!(ExecRequest::argv(["a"]).env("A=B", "c").build().is_err());
        assert!(ExecRequest::argv(["a"]).env("A", "c\0").build().is_err());
        assert!(ExecRequest::argv(["a"]).timeout(Duration::ZERO).build().is_err());
        assert!(ExecRequest::argv(["x".repeat(MAX_ARGUMENT_BYTES)]).build().is_err());
    }

    #[test]
    fn the_environment_is_a_delta() {
        let request = ExecRequest::argv(["a"]).env("X", "1").unset_env("LANG").build().unwrap();
        let env = request.env().apply([("PATH", "/bin"), ("LANG", "C")]);
        assert_eq!(env.into_iter().collect::<Vec<_>>(), [("PATH", "/bin"), ("X", "1")]);
    }

    /// Promise (Contract): An exec request is an immutable value that JSON represents without loss.
    #[test]
    fn a_request_round_trips_through_json() {
        let request = ExecRequest::shell("echo").env("A", "b").timeout(Duration::from_secs(2)).build().unwrap();
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<ExecRequest>(&text).unwrap(), request);
        let short: ExecRequest = serde_json::from_str(r#"{"command":{"argv":["true"]},"timeout":"5s"}"#).unwrap();
        assert_eq!(short.timeout(), Some(Duration::from_secs(5)));
        assert_eq!(short.max_output(), DEFAULT_MAX_OUTPUT);
    }
}
