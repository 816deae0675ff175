//! Settings of the server. They come from options and configuration when the server starts. Clients cannot change them.

use std::time::Duration;

use cofferdam_code::CodeConfig;
use cofferdam_contract::{ByteSize, Error, Result, Spec};

/// Maximum configurable size of a file or message. Each is kept in memory, some of them twice.
const MAX_BYTES: ByteSize = ByteSize::from_mebibytes(256);
/// Maximum of all configurable counts.
const MAX_COUNT: usize = 100_000;

/// Configuration of the server.
#[derive(Debug, Clone, Default)]
pub struct McpConfig {
    /// The spec of every sandbox. A call can tighten its limits, never exceed them.
    pub spec: Spec,
    /// Settings of code and shell lines: languages, bounds on results, screening, audit log.
    pub code: CodeConfig,
    /// Upper bounds of the server itself.
    pub bounds: Bounds,
}

impl McpConfig {
    /// Validates the configuration.
    pub fn validate(&self) -> Result<()> {
        self.spec.validate()?;
        self.bounds.validate()
    }
}

/// Upper bounds of the server's resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of sandboxes. Default 32.
    pub sandboxes: usize,
    /// Maximum number of sandboxes of one client session. Default 8.
    pub sandboxes_of_client: usize,
    /// Maximum number of snapshots. Default 16.
    pub snapshots: usize,
    /// Maximum number of snapshots of one client session. Default 4.
    pub snapshots_of_client: usize,
    /// Maximum number of live interpreters of one client session. [`CodeConfig::sessions`] bounds their total number
    /// and lifetime. Default 4.
    pub interpreters_of_client: usize,
    /// Idle time after which a sandbox or a snapshot is closed. Default 15 min.
    pub idle: Duration,
    /// Maximum number of concurrent tool calls. Default 16.
    pub calls: usize,
    /// Maximum number of unanswered requests of one connection. Beyond it the server stops reading. Default 256.
    pub requests: usize,
    /// Maximum size of a file that is read, written, edited or returned as a resource. Default 8 MiB.
    pub file: ByteSize,
    /// Maximum number of entries in a listing. Default 2000.
    pub entries: usize,
    /// Maximum size of a client's message. Default 16 MiB.
    pub message: ByteSize,
    /// Maximum number of client sessions over HTTP. Default 64.
    pub clients: usize,
    /// Maximum number of HTTP connections. Default 128.
    pub connections: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            sandboxes: 32,
            sandboxes_of_client: 8,
            snapshots: 16,
            snapshots_of_client: 4,
            interpreters_of_client: 4,
            idle: Duration::from_secs(15 * 60),
            calls: 16,
            requests: 256,
            file: ByteSize::from_mebibytes(8),
            entries: 2000,
            message: ByteSize::from_mebibytes(16),
            clients: 64,
            connections: 128,
        }
    }
}

impl Bounds {
    fn validate(&self) -> Result<()> {
        let bad = |what: String| {
            Err(Error::invalid("configure", what)
                .with_remedy("correct the options, or [mcp] in the configuration file"))
        };
        let counts = [
            ("sandboxes", self.sandboxes),
            ("sandboxes_of_client", self.sandboxes_of_client),
            ("interpreters_of_client", self.interpreters_of_client),
            ("calls", self.calls),
            ("requests", self.requests),
            ("entries", self.entries),
            ("clients", self.clients),
            ("connections", self.connections),
        ];
        for (name, count) in counts {
            if count == 0 || count > MAX_COUNT {
                return bad(format!("{name} must be 1 to {MAX_COUNT}"));
            }
        }
        if self.snapshots > MAX_COUNT || self.snapshots_of_client > MAX_COUNT {
            return bad(format!("snapshots must be at most {MAX_COUNT}"));
        }
        for (name, size) in [("file", self.file), ("message", self.message)] {
            if size > MAX_BYTES || size.as_bytes() < 1024 {
                return bad(format!("{name} must be 1 KiB to {MAX_BYTES}"));
            }
        }
        if self.idle.is_zero() {
            return bad("idle must be greater than 0".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_bounds_are_refused_with_a_remedy() {
        Bounds::default().validate().unwrap();
        for bounds in [
            Bounds { sandboxes: 0, ..Bounds::default() },
            Bounds { calls: usize::MAX, ..Bounds::default() },
            Bounds { idle: Duration::ZERO, ..Bounds::default() },
            Bounds { file: ByteSize::from_mebibytes(1 << 20), ..Bounds::default() },
        ] {
            assert!(bounds.validate().unwrap_err().remedy().is_some());
        }
    }
}
