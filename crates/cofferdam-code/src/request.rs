//! What is asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{ByteSize, SandboxPath, serde_optional_duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the contents of files that changed are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Contents {
    /// Names, sizes and hashes.
    #[default]
    Leave,
    /// Contents as well, as far as they are allowed to be carried.
    Carry,
}

/// Whether something is wanted that costs time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    /// Yes.
    #[default]
    Yes,
    /// No.
    No,
}

/// A value that must not be told. It reaches the code as an environment variable, and is taken out of artifacts.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Keeps a value from being shown.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for where it is handed over.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Environment variables whose values must not be told, by name.
pub type Secrets = BTreeMap<String, Secret>;

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Code to run, and how.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeRequest {
    /// The code.
    pub code: String,
    /// Its language, one of those that are allowed.
    pub language: String,
    /// The name of its file, which the code sees in tracebacks and as its own; `None` takes the language's.
    #[serde(default)]
    pub file_name: Option<String>,
    /// Arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables, besides the sandbox's minimal ones.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Environment variables whose values must not be told.
    #[serde(default)]
    pub secrets: Secrets,
    /// Standard input.
    #[serde(default)]
    #[schemars(with = "Vec<u8>")]
    pub stdin: Bytes,
    /// Where to start, relative to the workspace.
    #[serde(default)]
    pub working_dir: SandboxPath,
    /// Real time allowed, in seconds; `None` takes the sandbox's.
    #[serde(default, with = "serde_optional_duration")]
    #[schemars(with = "Option<f64>")]
    pub timeout: Option<Duration>,
    /// Bytes of output that are kept; `None` takes what is configured.
    #[serde(default)]
    pub max_output: Option<ByteSize>,
    /// Whether results are wanted besides the output.
    #[serde(default)]
    pub results: Want,
    /// Whether files are wanted that the code makes or changes.
    #[serde(default)]
    pub files: Want,
    /// Whether their contents are.
    #[serde(default)]
    pub contents: Contents,
}

impl CodeRequest {
    /// Code in a language, all else default.
    pub fn new(language: impl Into<String>, code: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            language: language.into(),
            file_name: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            stdin: Bytes::new(),
            working_dir: SandboxPath::default(),
            timeout: None,
            max_output: None,
            results: Want::Yes,
            files: Want::Yes,
            contents: Contents::Leave,
        }
    }

    /// The same with a time-out.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same with the contents of files that changed.
    #[must_use]
    pub fn with_contents(mut self) -> Self {
        self.contents = Contents::Carry;
        self
    }
}
