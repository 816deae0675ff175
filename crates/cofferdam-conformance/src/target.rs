//! The target and the options of a run.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, ByteSize, Spec};

use crate::{CaseResult, Programs};

/// A function that lists everything on the host that a backend could leave behind: processes, mounts, control groups,
/// directories.
pub type Census = Arc<dyn Fn() -> BTreeSet<String> + Send + Sync>;

/// A callback that receives each case's result as soon as it is known.
pub type Progress = Arc<dyn Fn(&CaseResult) + Send + Sync>;

/// A backend under test, with the information that the suite needs.
#[derive(Clone)]
pub struct Target {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) programs: Arc<dyn Programs>,
    pub(crate) spec: Spec,
    pub(crate) census: Option<Census>,
    pub(crate) root: Option<PathBuf>,
    pub(crate) image: Option<TestImage>,
}

impl Target {
    /// Creates a target from a backend and programs that its guests can run.
    pub fn new(backend: Arc<dyn Backend>, programs: impl Programs + 'static) -> Self {
        Self { backend, programs: Arc::new(programs), spec: Spec::default(), census: None, root: None, image: None }
    }

    /// Sets the spec that every case begins with, for hosts that need `allow_weaker` or an attribute. Cases change its
    /// workspace and limits.
    #[must_use]
    pub fn with_spec(mut self, spec: Spec) -> Self {
        self.spec = spec;
        self
    }

    /// Sets a census of the host, compared before and after the run. It may list objects that the backend keeps for its
    /// lifetime, if they exist from its first sandbox on.
    #[must_use]
    pub fn with_census(mut self, census: impl Fn() -> BTreeSet<String> + Send + Sync + 'static) -> Self {
        self.census = Some(Arc::new(census));
        self
    }

    /// Sets a directory with a root file system in which the programs also run, for the case of
    /// [`RootDirectory`](cofferdam_contract::Capability::RootDirectory).
    #[must_use]
    pub fn with_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = Some(root.into());
        self
    }

    /// Sets an image that the host has and in which the programs also run, for the cases of
    /// [`Image`](cofferdam_contract::Capability::Image).
    #[must_use]
    pub fn with_image(mut self, image: TestImage) -> Self {
        self.image = Some(image);
        self
    }
}

/// An image that the host under test has, with what its sandboxes must show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestImage {
    /// The reference that specs name.
    pub reference: String,
    /// The path of a file that only this image has, and its contents.
    pub file: (String, String),
    /// The variables of its configuration that the backend sets.
    pub env: Vec<(String, String)>,
    /// The uid of its configuration, if the backend uses it.
    pub user: Option<u32>,
    /// The working directory of its configuration, if the backend uses it.
    pub working_dir: Option<String>,
}

impl TestImage {
    /// Creates the description of an image with this file, for a backend that uses no settings of images.
    pub fn new(reference: impl Into<String>, path: impl Into<String>, contents: impl Into<String>) -> Self {
        Self {
            reference: reference.into(),
            file: (path.into(), contents.into()),
            env: Vec::new(),
            user: None,
            working_dir: None,
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("backend", &self.backend)
            .field("programs", &self.programs)
            .field("spec", &self.spec)
            .field("census", &self.census.is_some())
            .finish()
    }
}

/// Options of a run.
#[derive(Clone)]
pub struct Options {
    /// A filter: runs only cases whose name contains this text, or whose requirement equals it.
    pub filter: Option<String>,
    /// The number of concurrent cases. Default 1.
    pub parallelism: usize,
    /// The wall time after which a case fails. Default 120 s.
    pub deadline: Duration,
    /// The size of the large file in the cases of the file API. Default 256 MiB.
    pub large_file: ByteSize,
    /// The callback for each case's result.
    pub progress: Option<Progress>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filter: None,
            parallelism: 1,
            deadline: Duration::from_secs(120),
            large_file: ByteSize::from_mebibytes(256),
            progress: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("filter", &self.filter)
            .field("parallelism", &self.parallelism)
            .field("deadline", &self.deadline)
            .field("large_file", &self.large_file)
            .finish_non_exhaustive()
    }
}
