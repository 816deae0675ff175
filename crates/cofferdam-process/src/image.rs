//! Images as root file systems.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contract::{Error, Result};
use cofferdam_linux::named::NamedPath;

use crate::error;
use crate::protocol::{LayerPlan, RootPlan};

/// The most layers of an image: their names must fit into one mount option of the kernel.
pub const MAX_LAYERS: usize = 80;

/// A store of images that were unpacked for overlayfs.
pub trait ImageStore: fmt::Debug + Send + Sync {
    /// Returns an image by its name.
    ///
    /// # Errors
    /// - `NotFound` for an image that the store does not have.
    fn resolve(&self, reference: &str) -> Result<RootImage>;
}

/// An image as the root of a sandbox.
pub struct RootImage {
    /// The directories of its layers, the lowest first. Deleted files are whiteout devices, opaque directories have the
    /// attribute `user.overlay.opaque`.
    pub layers: Vec<PathBuf>,
    /// The variables that it sets, PATH among them.
    pub env: Vec<(String, String)>,
    /// The directory in which its programs start, if it names one.
    pub working_dir: Option<String>,
    /// The user and group id of its user, unless that is root.
    pub user: Option<(u32, u32)>,
    /// Keeps the layers in the store.
    pub lease: Lease,
}

impl fmt::Debug for RootImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootImage").field("layers", &self.layers).finish_non_exhaustive()
    }
}

/// The image store of a configuration. Two of them are equal if they are the same store.
#[derive(Debug, Clone, Default)]
pub struct Images(pub Option<Arc<dyn ImageStore>>);

impl PartialEq for Images {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for Images {}

/// Plans the root of an image. Opens each layer, so that the launcher mounts the same directories.
pub fn plan(image: &RootImage) -> Result<RootPlan> {
    if image.layers.is_empty() || image.layers.len() > MAX_LAYERS {
        let message =
            format!("the image has {} layers; at this level it may have 1 to {MAX_LAYERS}", image.layers.len());
        return Err(Error::unsupported("create", message)
            .with_remedy("build it with fewer layers, or use level container or vm"));
    }
    let open = |path: &PathBuf| -> Result<LayerPlan> {
        let opened = NamedPath::open(path).map_err(|error| error::directory("image layer", path, error))?;
        let stat = opened.stat();
        Ok(LayerPlan { path: opened.path().to_owned(), device: stat.st_dev, inode: stat.st_ino })
    };
    Ok(RootPlan::Layers(image.layers.iter().map(open).collect::<Result<_>>()?))
}

/// A value that keeps the layers of an image in their store.
pub type Lease = Arc<dyn Any + Send + Sync>;

/// The surroundings of each exec, by the root of its sandbox.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The value of PATH.
    pub path: String,
    /// Further variables.
    pub variables: Vec<(String, String)>,
    /// The working directory of commands that name none, instead of the workspace.
    pub directory: Option<String>,
    /// Keeps the layers of an image in the store while the sandbox exists. A launcher that waits for later sandboxes
    /// keeps none: if they are removed, it fits no later image, because its mounts keep their inodes from being reused.
    #[expect(dead_code, reason = "keeps the layers of the image in the store")]
    pub lease: Option<Lease>,
}

impl Surroundings {
    /// Returns the surroundings in an image. `default_path` is for images that set no PATH.
    pub fn of_image(image: &RootImage, default_path: &str) -> Self {
        let path = image.env.iter().rfind(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let variables = image.env.iter().filter(|(name, _)| name != "PATH").cloned().collect();
        let directory = image.working_dir.clone().filter(|directory| Path::new(directory).is_absolute());
        Self {
            path: path.unwrap_or_else(|| default_path.to_owned()),
            variables,
            directory: directory.filter(|directory| directory != "/"),
            lease: Some(Arc::clone(&image.lease)),
        }
    }
}
