//! What a keeper of zygotes tells about itself.

use serde::{Deserialize, Serialize};

/// How zygotes stand, and what happened to them so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ZygoteMetrics {
    /// Those that are alive, used up or not.
    pub live: usize,
    /// Those being made.
    pub making: usize,
    /// Those being closed.
    pub closing: usize,
    /// Requests that run.
    pub running: usize,
    /// Requests that a fork took.
    pub served: u64,
    /// Requests that had to start cold.
    pub unsupported: u64,
    /// Requests that found no place.
    pub refused: u64,
    /// Requests that a fork did not take for another reason.
    pub failed: u64,
    /// Zygotes that were made.
    pub made: u64,
    /// Those that could not be made.
    pub failures: u64,
    /// Why the last one could not be made; `None` once one was made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Those that were closed so that another one had a place.
    pub evicted: u64,
    /// Those that were closed because nobody used them any more, they were used up, or had died.
    pub ended: u64,
}
