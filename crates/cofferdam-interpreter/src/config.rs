//! The configuration of a prepared interpreter.

use std::time::Duration;

use cofferdam_contract::{ByteSize, ExecRequest, Result};

use crate::error::ConfigError;
use crate::plan::Plan;

/// The most modules that one interpreter imports in advance.
const MAX_MODULES: usize = 256;
/// The longest lifetime of an interpreter: 30 days.
const MAX_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The most output that may be buffered for one request.
const MAX_OUTPUT: ByteSize = ByteSize::from_mebibytes(256);

/// A kind of interpreter that can be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Runtime {
    /// CPython 3.10 or newer.
    Python,
    /// Node.js, 20 or newer.
    Node,
}

/// The start and warm-up of an interpreter. The defaults use the same command as a cold start of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpreterConfig {
    /// The kind of interpreter that `command` starts.
    pub runtime: Runtime,
    /// The interpreter and its options. Only requests with exactly this command are served.
    pub command: Vec<String>,
    /// Names of modules to import in advance. A missing module is an error of the warm-up. Default: none.
    pub modules: Vec<String>,
    /// Trusted code of the caller that runs before any request, in a namespace that is then discarded. Default: none.
    pub warm_up: String,
    /// Variables that the modules read when they are imported. A request that changes one of them needs a cold start.
    /// Each is a name, or a prefix followed by `*`. Default: none.
    pub startup_variables: Vec<String>,
    /// Timeout for start and warm-up. Default: 60 s.
    pub warm_limit: Duration,
    /// Lifetime after which the interpreter is killed, whether it is idle or running. Default: 1 h.
    pub lifetime: Duration,
    /// The greatest `max_output` of a request that is served. As much memory can be in use for output in transit.
    /// Default: 8 MiB.
    pub max_output: ByteSize,
}

impl InterpreterConfig {
    /// Returns the configuration of `python3 -u` without modules.
    pub fn python() -> Self {
        Self::new(Runtime::Python, &["python3", "-u"])
    }

    /// Returns the configuration of `node --v8-pool-size=2` without modules.
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
            max_output: ByteSize::from_mebibytes(8),
        }
    }

    /// Sets the modules to import in advance.
    #[must_use]
    pub fn with_modules<S: Into<String>>(mut self, modules: impl IntoIterator<Item = S>) -> Self {
        self.modules = modules.into_iter().map(Into::into).collect();
        self
    }

    /// Checks that an interpreter with this configuration would run `request` like a cold start does. Pure; call it
    /// before taking an interpreter.
    ///
    /// # Errors
    /// - `Unsupported` if the request needs a cold start.
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
            return Err(ConfigError::TooManyModules { max: MAX_MODULES });
        }
        if let Some(name) = self.modules.iter().find(|name| name.is_empty() || name.starts_with('-')) {
            return Err(ConfigError::BadModule { name: name.clone() });
        }
        if self.warm_limit.is_zero() || self.lifetime <= self.warm_limit || self.lifetime > MAX_LIFE {
            return Err(ConfigError::BadTime { max: MAX_LIFE });
        }
        if self.max_output > MAX_OUTPUT {
            return Err(ConfigError::TooMuchOutput { max: MAX_OUTPUT });
        }
        Ok(())
    }
}
