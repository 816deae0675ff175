//! Images of the container engine: what it has, and how it gets more, without a registry too.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_container::{DEFAULT_IMAGE, DockerBackend, PullEvent, PullProgress};
use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_debian::{Cache, DebianError, Plan, Recipe};
use serde::Serialize;

use super::{Containers, ImageProgress, ImageStep, cache_directory};

/// The name that [`Images::build_base`] gives its image unless told otherwise: that of the image where a spec names none.
pub const BASE_IMAGE: &str = DEFAULT_IMAGE;
/// How long packages are kept that no build has used.
const KEEP_PACKAGES: Duration = Duration::from_secs(30 * 24 * 3600);

/// An image that the engine has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageInfo {
    /// Its id: `sha256:…`.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// Its digests in registries.
    pub digests: Vec<String>,
    /// Bytes.
    pub size: u64,
    /// Whether it was made here from files.
    pub imported: bool,
}

/// An image that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MadeImage {
    /// Its name.
    pub name: String,
    /// Its id: `sha256:…`.
    pub id: String,
    /// What people should know: files and packages that were left out.
    pub notes: Vec<String>,
}

/// Which packages a base image is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BaseImage {
    /// The least that a shell and Python need, instead of the usual tools and Node.
    pub tiny: bool,
    /// Packages on top.
    pub packages: Vec<String>,
}

/// The images of an engine. Nobody is contacted before the first call.
#[derive(Debug)]
pub struct Images {
    backend: DockerBackend,
}

impl Images {
    /// Those of the engine that containers are made with.
    pub fn new(containers: &Containers) -> Result<Self> {
        Ok(Self { backend: DockerBackend::new(&containers.config())? })
    }

    /// All that it has.
    pub async fn list(&self) -> Result<Vec<ImageInfo>> {
        let mut images: Vec<ImageInfo> = self.backend.images().await?.into_iter().map(ImageInfo::from).collect();
        images.sort_by(|one, other| (&one.names, &one.id).cmp(&(&other.names, &other.id)));
        Ok(images)
    }

    /// Gets one from its registry.
    pub async fn pull(&self, name: &str, progress: ImageProgress) -> Result<()> {
        self.backend.pull_image(name, &pulling(progress)).await
    }

    /// Makes one from a directory with a root file system, or a tar of one.
    pub async fn import(&self, source: &Path, name: &str) -> Result<MadeImage> {
        let imported = self.backend.import_image(source, name).await?;
        let mut notes: Vec<String> = Vec::new();
        if imported.left_out_in_all > 0 {
            let named: Vec<String> = imported.left_out.iter().map(|path| path.display().to_string()).collect();
            let more = imported.left_out_in_all.saturating_sub(named.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            notes.push(format!("sockets, fifos and devices were left out: {}{more}", named.join(", ")));
        }
        Ok(MadeImage { name: name.to_owned(), id: imported.id, notes })
    }

    /// Makes one from Debian packages, which need no registry and no root.
    pub async fn build_base(&self, base: &BaseImage, name: &str, progress: ImageProgress) -> Result<MadeImage> {
        // Before minutes are spent on packages: is there an engine?
        self.backend.images().await?;
        let mut recipe = if base.tiny { Recipe::tiny() } else { Recipe::base() };
        recipe.packages.extend(base.packages.iter().cloned());
        let directory = cache_directory("debian").ok_or_else(no_cache)?;
        let told = Arc::clone(&progress);
        let (plan, tar) = tokio::task::spawn_blocking(move || pack(&recipe, &directory, &told))
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, OPERATION, "packing failed").with_source(error))??;
        progress(ImageStep { what: "handing it to the engine".to_owned(), bytes: None });
        let made = self.import(&tar.0, name).await;
        drop(tar);
        let mut made = made?;
        made.notes.splice(0..0, plan.notes().iter().cloned());
        Ok(made)
    }
}

const OPERATION: &str = "build image";

fn no_cache() -> Error {
    Error::new(ErrorKind::Unavailable, OPERATION, "this user has no cache directory")
        .with_remedy("set HOME or XDG_CACHE_HOME")
}

/// A file that is removed when it is of no use any more.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It may not have come to be.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pack(recipe: &Recipe, directory: &Path, progress: &ImageProgress) -> Result<(Plan, Temporary)> {
    let cache = Cache::new(directory);
    let mut tell =
        |step: cofferdam_debian::Progress| progress(ImageStep { what: step.to_string(), bytes: step.bytes() });
    let plan = cofferdam_debian::resolve(recipe, &cache, &mut tell).map_err(failed)?;
    let tar = Temporary(directory.join(format!("root-{}-{}.tar", &plan.key()[..16], std::process::id())));
    plan.write_file(&tar.0, &mut tell).map_err(failed)?;
    // Old packages are a matter of room, not of this image.
    let _ = cache.prune(KEEP_PACKAGES);
    Ok((plan, tar))
}

/// Those errors say in their second sentence what to do.
fn failed(error: DebianError) -> Error {
    let text = error.to_string();
    let (what, remedy) = text.split_once('\n').unwrap_or((&text, ""));
    let kind = match &error {
        DebianError::InvalidName { .. } | DebianError::Unresolvable { .. } => ErrorKind::InvalidInput,
        DebianError::NoSpace { .. } => ErrorKind::ResourceExhausted,
        DebianError::UntrustedTool { .. } => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let made = Error::new(kind, OPERATION, what.to_owned());
    if remedy.is_empty() { made } else { made.with_remedy(remedy.to_owned()) }
}

/// Tells of a pull as of one thing, whose layers come side by side.
pub(super) fn pulling(progress: ImageProgress) -> PullProgress {
    let layers = std::sync::Mutex::new(std::collections::BTreeMap::<String, (u64, u64)>::new());
    PullProgress::new(move |event: &PullEvent| {
        let mut layers = layers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let (Some(layer), Some(current), Some(total)) = (&event.layer, event.current, event.total)
            && event.status == "Downloading"
        {
            layers.insert(layer.clone(), (current, total));
        }
        let (done, total) = layers
            .values()
            .fold((0, 0), |sum: (u64, u64), layer| (sum.0.saturating_add(layer.0), sum.1.saturating_add(layer.1)));
        let what = if total > 0 { "pulling the image".to_owned() } else { event.status.clone() };
        progress(ImageStep { what, bytes: (total > 0).then_some((done, total)) });
    })
}

impl From<cofferdam_container::Image> for ImageInfo {
    fn from(image: cofferdam_container::Image) -> Self {
        let cofferdam_container::Image { id, names, digests, size, imported } = image;
        Self { id, names, digests, size, imported }
    }
}
