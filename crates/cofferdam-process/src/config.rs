//! Configuration of a [`crate::ProcessBackend`].

use std::path::PathBuf;

pub use crate::forked::ForkedLauncher;
pub use crate::image::{ImageStore, Images, RootImage};

/// The use of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControlGroups {
    /// Use them if they are available.
    #[default]
    Auto,
    /// Never use them: resource limits and the init enforce limits, as on a host without control groups.
    Never,
}

/// The origin of launchers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LauncherStart {
    /// Execute the running program again.
    #[default]
    Execute,
    /// Execute another program that is linked with this crate. Use it if the running program is not, for example an
    /// interpreter that loaded a shared library.
    ExecuteProgram(PathBuf),
    /// Use a launcher that was forked from this process earlier as the first one. If it has ended or is in use, and for
    /// every further one, execute the running program.
    Forked(ForkedLauncher),
}

/// The configuration of a [`crate::ProcessBackend`]. The default suits a laptop and a server alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessConfig {
    /// Host directories or files that every sandbox sees read-only at the same path, besides the system's own.
    pub read_only: Vec<PathBuf>,
    /// True to search Python and Node on the caller's PATH, so that sandboxes see their prefixes if these are outside
    /// `/usr`.
    pub find_interpreters: bool,
    /// The caller's PATH, for that search. Default: the environment's.
    pub search_path: Option<String>,
    /// The caller's home directory. Sandboxes see nothing of it except an interpreter's own prefix. Default: the
    /// environment's.
    pub home: Option<PathBuf>,
    /// The use of control groups.
    pub control_groups: ControlGroups,
    /// True if the launcher keeps a few prepared namespaces: what every sandbox needs, independent of its spec. Set it
    /// to false for a single sandbox.
    pub prepare_ahead: bool,
    /// The origin of launchers.
    pub launcher: LauncherStart,
    /// The store of images. Without one, [`cofferdam_contract::RootFs::Image`] is refused.
    pub images: Images,
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
            images: Images::default(),
        }
    }
}
