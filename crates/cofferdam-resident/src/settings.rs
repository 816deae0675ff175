//! Settings of runs and of prepared sandboxes as one source has them: the table `[serve]`, or options.

use std::time::Duration;

use cofferdam_contract::configuration::{Bound, Human};
use cofferdam_engine::PoolConfig;
use serde::Deserialize;

use crate::config::ResidentConfig;

/// The settings that one source has; `None` or an empty list leaves a setting to the next source.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeSettings {
    /// Time without use after which the server exits.
    pub idle_exit: Option<Bound<Duration>>,
    /// Time that runs may continue after a stop request.
    pub drain: Option<Human<Duration>>,
    /// Maximum number of concurrent runs.
    pub max_runs: Option<usize>,
    /// Number of prepared sandboxes.
    pub warm: Option<usize>,
    /// Number of prepared Python interpreters.
    pub python: Option<usize>,
    /// Modules that prepared Python interpreters have imported.
    pub python_modules: Vec<String>,
    /// Number of prepared Node interpreters.
    pub node: Option<usize>,
    /// Modules that prepared Node interpreters have loaded.
    pub node_modules: Vec<String>,
}

impl ServeSettings {
    /// Returns these settings, and those of the next source where this one has none.
    pub fn or(self, next: Self) -> Self {
        let modules = |first: Vec<String>, next| if first.is_empty() { next } else { first };
        Self {
            idle_exit: self.idle_exit.or(next.idle_exit),
            drain: self.drain.or(next.drain),
            max_runs: self.max_runs.or(next.max_runs),
            warm: self.warm.or(next.warm),
            python: self.python.or(next.python),
            python_modules: modules(self.python_modules, next.python_modules),
            node: self.node.or(next.node),
            node_modules: modules(self.node_modules, next.node_modules),
        }
    }

    /// Returns the configuration with these settings.
    pub fn apply(&self, base: ResidentConfig) -> ResidentConfig {
        ResidentConfig {
            max_runs: self.max_runs.unwrap_or(base.max_runs),
            idle_exit: self.idle_exit.map_or(base.idle_exit, Bound::into_option),
            drain: self.drain.map_or(base.drain, |Human(time)| time),
            ..base
        }
    }

    /// Returns the configuration of the pool. It prepares sandboxes and bounds none: the server's own limits do.
    pub fn pool(&self) -> PoolConfig {
        let default = PoolConfig::default();
        let warm = self.warm.unwrap_or(default.min_warm);
        PoolConfig {
            min_warm: warm,
            max_warm: if warm == 0 { 0 } else { default.max_warm.max(warm) },
            max: PoolConfig::MAX_SANDBOXES,
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Surroundings;

    #[test]
    fn the_first_source_with_a_setting_wins() {
        let first: ServeSettings = serde_json::from_value(json!({"warm": 0, "idle_exit": "none"})).unwrap();
        let second = json!({"warm": 9, "idle_exit": "1h", "drain": 3, "python_modules": ["json"]});
        let merged = first.or(serde_json::from_value(second).unwrap());
        assert_eq!(merged.python_modules, ["json"]);
        let config = merged.apply(ResidentConfig::new("build", Surroundings::default()));
        assert_eq!((merged.pool().min_warm, merged.pool().max_warm), (0, 0));
        assert_eq!((config.idle_exit, config.drain, config.max_runs), (None, Duration::from_secs(3), 32));
        assert!(serde_json::from_value::<ServeSettings>(json!({"cold": 1})).is_err());
    }
}
