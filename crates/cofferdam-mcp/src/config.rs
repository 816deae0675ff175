//! What the server may do. It comes from options and configuration when the server starts; nothing that a client sends
//! changes it.

use std::time::Duration;

use cofferdam_code::CodeConfig;
use cofferdam_contract::{ByteSize, Error, Result, Spec};

/// The largest file or message that can be configured: each is held in memory, some of them twice.
const MAX_BYTES: ByteSize = ByteSize::from_mebibytes(256);
/// The most of anything that is counted.
const MOST: usize = 100_000;

/// How the server is set up.
#[derive(Debug, Clone, Default)]
pub struct McpConfig {
    /// What every sandbox is made from. A call can ask for less than its limits, never for more.
    pub spec: Spec,
    /// How code and shell lines run: the languages that may, how much they may give, screening, the audit log.
    pub code: CodeConfig,
    /// Upper bounds of the server itself.
    pub bounds: Bounds,
}

impl McpConfig {
    /// Refuses what could not work.
    pub fn validate(&self) -> Result<()> {
        self.spec.validate()?;
        self.bounds.validate()
    }
}

/// How much the server holds at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Sandboxes at once. Default 32.
    pub sandboxes: usize,
    /// Sandboxes of one client session. Default 8.
    pub sandboxes_of_client: usize,
    /// Snapshots at once. Default 16.
    pub snapshots: usize,
    /// Snapshots of one client session. Default 4.
    pub snapshots_of_client: usize,
    /// Live interpreters of one client session; how many there are in all, and for how long, is in
    /// [`CodeConfig::sessions`]. Default 4.
    pub interpreters_of_client: usize,
    /// How long a sandbox or a snapshot lives that no call uses. Default 15 min.
    pub idle: Duration,
    /// Calls of tools at once. Default 16.
    pub calls: usize,
    /// Requests of one connection that have no answer yet; beyond them nothing is read. Default 256.
    pub requests: usize,
    /// The largest file that is read, written, edited or given as a resource. Default 8 MiB.
    pub file: ByteSize,
    /// Entries that are listed at once. Default 2000.
    pub entries: usize,
    /// The largest message from a client. Default 16 MiB.
    pub message: ByteSize,
    /// Client sessions over HTTP at once. Default 64.
    pub clients: usize,
    /// Connections over HTTP at once. Default 128.
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
            Err(Error::invalid("configure", what).with_remedy("correct it in the options, or in the table [mcp]"))
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
            if count == 0 || count > MOST {
                return bad(format!("{name} must be 1 to {MOST}"));
            }
        }
        if self.snapshots > MOST || self.snapshots_of_client > MOST {
            return bad(format!("snapshots must be at most {MOST}"));
        }
        for (name, size) in [("file", self.file), ("message", self.message)] {
            if size > MAX_BYTES || size.as_bytes() < 1024 {
                return bad(format!("{name} must be 1 KiB to {MAX_BYTES}"));
            }
        }
        if self.idle.is_zero() {
            return bad("a sandbox that is closed after no time serves nobody".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_serve_nobody_or_bound_nothing_are_refused() {
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
