//! Which interpreter waits, and what it has done by then.

use std::time::Duration;

use cofferdam_contract::{ByteSize, ExecRequest, Result};

use crate::error::ConfigError;
use crate::plan::Plan;

/// The most modules that one interpreter imports beforehand.
const MAX_MODULES: usize = 256;
/// The longest that an interpreter may live: 30 days.
const MAX_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The most output that may be kept for one request.
const MAX_OUTPUT: ByteSize = ByteSize::from_mebibytes(256);

/// A kind of interpreter that can wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// CPython 3.10 or newer.
    Python,
    /// Node.js, 20 or newer.
    Node,
}

/// How an interpreter is started and warmed. The defaults start it as the command line starts a script from cold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpreterConfig {
    /// What kind of interpreter `command` is.
    pub runtime: Runtime,
    /// The interpreter and its options. Only requests with exactly these words are served.
    pub command: Vec<String>,
    /// Modules that are imported beforehand, by name. One that is missing is an error of the warm-up.
    pub modules: Vec<String>,
    /// Code of the caller's own, trusted, that runs before any request, in a namespace that is thrown away.
    pub warm_up: String,
    /// Variables that the modules read when they are imported: a request that changes one has to start cold. A name, or
    /// the beginning of names and `*`.
    pub startup_variables: Vec<String>,
    /// Real time for starting and warming. Default 60 s.
    pub warm_limit: Duration,
    /// Real time from its start after which the interpreter is killed, waiting or running. Default 1 h.
    pub lifetime: Duration,
    /// The largest `max_output` of a request that is served; as much memory can be in use for output that is on its
    /// way. Default 8 MiB.
    pub most_output: ByteSize,
}

impl InterpreterConfig {
    /// `python3 -u`, without modules.
    pub fn python() -> Self {
        Self::new(Runtime::Python, &["python3", "-u"])
    }

    /// `node --v8-pool-size=2`, without modules.
    pub fn node() -> Self {
        Self::new(Runtime::Node, &["node", "--v8-pool-size=2"])
    }

    fn new(runtime: Runtime, command: &[&str]) -> Self {
        Self {
            runtime,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            modules: Vec::new(),
            warm_up: String::new(),
            startup_variables: Vec::new(),
            warm_limit: Duration::from_secs(60),
            lifetime: Duration::from_secs(3600),
            most_output: ByteSize::from_mebibytes(8),
        }
    }

    /// The same with these modules imported beforehand.
    #[must_use]
    pub fn with_modules<S: Into<String>>(mut self, modules: impl IntoIterator<Item = S>) -> Self {
        self.modules = modules.into_iter().map(Into::into).collect();
        self
    }

    /// Whether an interpreter of this configuration would run `request` as a run from cold does. Pure: ask it before
    /// taking an interpreter. The answer is `Unsupported` for what has to start cold.
    pub fn accepts(&self, request: &ExecRequest) -> Result<()> {
        request.validate()?;
        Plan::new(self, request)?;
        Ok(())
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(ConfigError::NoCommand);
        }
        if self.modules.len() > MAX_MODULES {
            return Err(ConfigError::TooManyModules { most: MAX_MODULES });
        }
        if let Some(name) = self.modules.iter().find(|name| name.is_empty() || name.starts_with('-')) {
            return Err(ConfigError::BadModule { name: name.clone() });
        }
        if self.warm_limit.is_zero() || self.lifetime <= self.warm_limit || self.lifetime > MAX_LIFE {
            return Err(ConfigError::BadTime { most: MAX_LIFE });
        }
        if self.most_output > MAX_OUTPUT {
            return Err(ConfigError::TooMuchOutput { most: MAX_OUTPUT });
        }
        Ok(())
    }
}
