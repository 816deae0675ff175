//! Configuration of the resident half of a server.

use std::time::Duration;

use cofferdam_contract::{Error, Result};
use serde::{Deserialize, Serialize};

/// The maximum number of runs that a server can be configured to serve at once.
const MAX_RUNS: usize = 1024;

/// The parts of a process's environment by which interpreters are found, and which so determine the content of its
/// sandboxes. A server runs commands only for clients with the same values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Surroundings {
    /// `PATH`.
    pub search_path: Option<String>,
    /// `HOME`.
    pub home: Option<String>,
    /// The container settings, in one line, if the backend creates containers.
    pub containers: Option<String>,
}

/// Configuration of a [`crate::ResidentServer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentConfig {
    /// The build. Runs of other builds are refused.
    pub build: String,
    /// The environment from which the backend was created.
    pub surroundings: Surroundings,
    /// The maximum number of concurrent runs. Further clients are refused. Default 32.
    pub max_runs: usize,
    /// The time without use after which the server exits. `None` for never.
    pub idle_exit: Option<Duration>,
    /// The time that runs have to end once the server is stopping. Default 10 s.
    pub drain: Duration,
}

impl ResidentConfig {
    /// Returns the defaults.
    pub fn new(build: impl Into<String>, surroundings: Surroundings) -> Self {
        Self { build: build.into(), surroundings, max_runs: 32, idle_exit: None, drain: Duration::from_secs(10) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.max_runs == 0 || self.max_runs > MAX_RUNS {
            return Err(Error::invalid("configure", format!("max_runs must be 1 to {MAX_RUNS}")));
        }
        if self.idle_exit.is_some_and(|time| time.is_zero()) {
            return Err(Error::invalid("configure", "idle_exit must not be 0: the server would exit at once"));
        }
        Ok(())
    }
}
