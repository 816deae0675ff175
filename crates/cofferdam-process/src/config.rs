//! How a [`crate::ProcessBackend`] is set up.

use std::path::PathBuf;

pub use crate::forked::ForkedLauncher;

/// Whether control groups are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControlGroups {
    /// Where they can be had.
    #[default]
    Auto,
    /// Never: limits are kept by resource limits and the init's watch, as on a host without control groups.
    Never,
}

/// Where launchers come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LauncherStart {
    /// The running program is executed once more.
    #[default]
    Execute,
    /// Another program is executed: one linked with this crate. For a running program that is not (an interpreter that
    /// loaded a shared library, say).
    ExecuteProgram(PathBuf),
    /// The first launcher is one that was forked from this process earlier. Should it be gone or in use, and for every
    /// further one, the running program is executed.
    Forked(ForkedLauncher),
}

/// How a [`crate::ProcessBackend`] is set up. The default suits a laptop and a server alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Host directories or files that every sandbox sees read-only at the same path, besides the system's own.
    pub read_only: Vec<PathBuf>,
    /// Whether Python and Node are looked for on the caller's PATH, so that their prefixes are shown to sandboxes when
    /// they lie outside `/usr`.
    pub find_interpreters: bool,
    /// The caller's PATH, for that search. Default: the environment's.
    pub search_path: Option<String>,
    /// The caller's home directory, of which nothing but an interpreter's own prefix is ever shown. Default: the
    /// environment's.
    pub home: Option<PathBuf>,
    /// Whether control groups are used.
    pub control_groups: ControlGroups,
    /// Whether the launcher keeps a stock of what every sandbox needs and no spec has a say in: network and mount
    /// namespaces, a few at most. Switch it off for a single sandbox.
    pub prepare_ahead: bool,
    /// Where launchers come from.
    pub launcher: LauncherStart,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            read_only: Vec::new(),
            find_interpreters: true,
            search_path: std::env::var("PATH").ok(),
            home: std::env::var_os("HOME").map(PathBuf::from),
            control_groups: ControlGroups::Auto,
            prepare_ahead: true,
            launcher: LauncherStart::Execute,
        }
    }
}
