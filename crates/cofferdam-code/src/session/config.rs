//! The bounds of sessions.

use std::time::Duration;

use cofferdam_contract::{Error, Result, serde_duration};
use serde::{Deserialize, Serialize};

/// The bounds of sessions: the table `[sessions]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionBounds {
    /// Maximum number of open sessions. Default: 16.
    pub max_open: usize,
    /// Time after which a session without calls is closed. Default: 10 min.
    #[serde(with = "serde_duration")]
    pub idle_timeout: Duration,
    /// Maximum lifetime of a session. Default: 1 h.
    #[serde(with = "serde_duration")]
    pub lifetime: Duration,
    /// Timeout for the start of an interpreter. Default: 60 s.
    #[serde(with = "serde_duration")]
    pub start_timeout: Duration,
}

impl Default for SessionBounds {
    fn default() -> Self {
        Self {
            max_open: 16,
            idle_timeout: Duration::from_secs(600),
            lifetime: Duration::from_secs(3600),
            start_timeout: Duration::from_secs(60),
        }
    }
}

impl SessionBounds {
    pub(crate) fn validate(&self) -> Result<()> {
        let none = [self.idle_timeout, self.lifetime, self.start_timeout].iter().any(Duration::is_zero);
        if none || self.max_open == 0 || self.max_open > 10_000 {
            let message = "sessions need an idle_timeout, a lifetime and a start_timeout greater than 0, and max_open from 1 to 10000";
            return Err(
                Error::invalid("configure", message).with_remedy("correct the table [sessions] of the configuration")
            );
        }
        Ok(())
    }
}
