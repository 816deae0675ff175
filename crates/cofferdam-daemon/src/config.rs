//! Configuration of a daemon.

use std::time::Duration;

use cofferdam_contract::{Error, Result, Spec};
use cofferdam_engine::{InterpretersConfig, PoolConfig};
use serde::{Deserialize, Serialize};

/// The maximum number of connections that a daemon can be configured to serve at once.
const MAX_CONNECTIONS: usize = 1024;

/// The parts of a process's environment by which interpreters are found, and which so determine the content of its
/// sandboxes. A daemon serves only clients with the same values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Surroundings {
    /// `PATH`.
    pub search_path: Option<String>,
    /// `HOME`.
    pub home: Option<String>,
    /// The container settings, in one line, if the backend creates containers.
    pub containers: Option<String>,
}

/// Configuration of a [`crate::Server`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonConfig {
    /// The build. Clients of another build are not served.
    pub build: String,
    /// The environment from which the backend was created.
    pub surroundings: Surroundings,
    /// The template of prepared sandboxes and interpreters.
    pub template: Spec,
    /// The pool. Its `max` is raised to the number that connections and interpreters can need.
    pub pool: PoolConfig,
    /// The prepared interpreters.
    pub interpreters: InterpretersConfig,
    /// The maximum number of concurrent runs. Further clients are refused. Default 32.
    pub connections: usize,
    /// The time without a run after which the daemon exits. `None` for never.
    pub idle_exit: Option<Duration>,
    /// The time that runs have to end once the daemon is stopping. Default 10 s.
    pub drain: Duration,
}

impl DaemonConfig {
    /// Returns the defaults, without prepared interpreters.
    pub fn new(build: impl Into<String>, surroundings: Surroundings) -> Self {
        Self {
            build: build.into(),
            surroundings,
            template: Spec::default(),
            pool: PoolConfig::default(),
            interpreters: InterpretersConfig::new([]),
            connections: 32,
            idle_exit: None,
            drain: Duration::from_secs(10),
        }
    }

    /// Returns the pool's configuration with capacity for every connection, so that no accepted run has to queue. Each
    /// connection may need two sandboxes, one that is closing and its replacement, and the interpreters need the same.
    pub(crate) fn pool(&self) -> Result<PoolConfig> {
        if self.connections == 0 || self.connections > MAX_CONNECTIONS {
            return Err(Error::invalid("configure", "connections must be 1 to 1024"));
        }
        if self.idle_exit.is_some_and(|time| time.is_zero()) {
            return Err(Error::invalid("configure", "idle_exit must not be 0: the daemon would exit at once"));
        }
        let needed = 2 * (self.connections + self.interpreters.ready()) + self.pool.max_warm;
        Ok(PoolConfig { max: self.pool.max.max(needed), ..self.pool.clone() })
    }
}
