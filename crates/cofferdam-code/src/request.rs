//! The request of an execution.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{ByteSize, SandboxPath, serde_optional_duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The handling of the contents of changed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Contents {
    /// Return names, sizes and hashes. The default.
    #[default]
    Leave,
    /// Return contents as well, up to the configured bound.
    Carry,
}

/// A switch for an optional part of the result that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    /// Include it. The default.
    #[default]
    Yes,
    /// Leave it out.
    No,
}

/// A secret value. It is passed to the code as an environment variable and removed from artifacts.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the value.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Environment variables with secret values, by name.
pub type Secrets = BTreeMap<String, Secret>;

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Code to run, and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CodeRequest {
    /// The code.
    pub code: String,
    /// The language, one of the allowed ones.
    pub language: String,
    /// The file name of the code, as the code sees it in tracebacks. Default: that of the language.
    #[serde(default)]
    pub file_name: Option<String>,
    /// Arguments of the program. Default: none.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables in addition to the sandbox's minimal ones. Default: none.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Environment variables with secret values. Default: none.
    #[serde(default)]
    pub secrets: Secrets,
    /// Standard input. Default: empty.
    #[serde(default)]
    #[schemars(with = "Vec<u8>")]
    pub stdin: Bytes,
    /// The working directory, relative to the workspace. Default: the workspace itself.
    #[serde(default)]
    pub working_dir: SandboxPath,
    /// Wall-clock timeout, in seconds. Default: that of the sandbox.
    #[serde(default, with = "serde_optional_duration")]
    #[schemars(with = "Option<f64>")]
    pub timeout: Option<Duration>,
    /// Maximum size of the output. Default: the configured maximum.
    #[serde(default)]
    pub max_output: Option<ByteSize>,
    /// Results besides the output. Default: yes.
    #[serde(default)]
    pub results: Want,
    /// The list of files that the code creates or changes. Default: yes.
    #[serde(default)]
    pub files: Want,
    /// The contents of these files. Default: no.
    #[serde(default)]
    pub contents: Contents,
}

impl CodeRequest {
    /// Creates a request for code in a language, with default settings.
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

    /// Sets the wall-clock timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Requests the contents of changed files.
    #[must_use]
    pub fn with_contents(mut self) -> Self {
        self.contents = Contents::Carry;
        self
    }
}
