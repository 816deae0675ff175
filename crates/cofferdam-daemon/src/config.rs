//! How a daemon is set up.

use std::time::Duration;

use cofferdam_contract::{Error, Result, Spec};
use cofferdam_engine::{InterpretersConfig, PoolConfig};
use serde::{Deserialize, Serialize};

/// The most connections that a daemon may be asked to serve at once.
const MAX_CONNECTIONS: usize = 1024;

/// What of a process's surroundings decides what its sandboxes see: interpreters are found by these. A daemon serves
/// only who has the same.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Surroundings {
    /// `PATH`.
    pub search_path: Option<String>,
    /// `HOME`.
    pub home: Option<String>,
    /// How containers are made, in one line, where the backend makes any.
    pub containers: Option<String>,
}

/// How a [`crate::Server`] is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Names the build: a client of another one is not served.
    pub build: String,
    /// What the backend was made with.
    pub surroundings: Surroundings,
    /// What sandboxes and interpreters are made ahead for.
    pub template: Spec,
    /// The pool; its `max` is raised to what connections and interpreters can need.
    pub pool: PoolConfig,
    /// Interpreters that wait.
    pub interpreters: InterpretersConfig,
    /// Runs at once. Who comes beyond that is told so. Default 32.
    pub connections: usize,
    /// How long the daemon lives without a run; `None` for ever.
    pub idle_exit: Option<Duration>,
    /// How long runs may go on once the daemon is told to end. Default 10 s.
    pub drain: Duration,
}

impl DaemonConfig {
    /// The defaults, without waiting interpreters.
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

    /// The pool's configuration with a place for every connection, so that none that was accepted has to queue: a
    /// sandbox that is closing and one that is taking its place, and as much for the interpreters.
    pub(crate) fn pool(&self) -> Result<PoolConfig> {
        if self.connections == 0 || self.connections > MAX_CONNECTIONS {
            return Err(Error::invalid("configure", "a daemon serves 1 to 1024 connections"));
        }
        if self.idle_exit.is_some_and(|time| time.is_zero()) {
            return Err(Error::invalid("configure", "an idle_exit of 0 would end the daemon at once"));
        }
        let needed = 2 * (self.connections + self.interpreters.ready()) + self.pool.max_warm;
        Ok(PoolConfig { max: self.pool.max.max(needed), ..self.pool.clone() })
    }
}
