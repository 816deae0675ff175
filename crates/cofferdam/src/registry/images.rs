//! Images of the container engine: listing, pulling, importing and building.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_container::{ContainerBackend, ContainerSettings, DEFAULT_IMAGE, PullEvent, PullProgress};
use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_image::{Cache, DebianError, Plan, Recipe};
use serde::Serialize;

use super::{ImageProgress, ImageStep, cache_directory};

/// The default name of the image of [`Images::build_base`], which is also the image of specs that name none.
pub const BASE_IMAGE: &str = DEFAULT_IMAGE;
/// Time after which unused packages are removed.
const KEEP_PACKAGES: Duration = Duration::from_secs(30 * 24 * 3600);

/// An image of the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageInfo {
    /// Its id: `sha256:…`.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// Its digests in registries.
    pub digests: Vec<String>,
    /// Size in bytes.
    pub size: u64,
    /// True if it was created from files of this host.
    pub imported: bool,
}

/// An image that was created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MadeImage {
    /// Its name.
    pub name: String,
    /// Its id: `sha256:…`.
    pub id: String,
    /// Notes for the user: files and packages that were left out.
    pub notes: Vec<String>,
}

/// The packages of a base image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BaseImage {
    /// True for only a shell and Python, instead of the usual tools and Node.
    pub tiny: bool,
    /// Additional packages.
    pub packages: Vec<String>,
}

/// The images of an engine. The engine is not contacted before the first call.
#[derive(Debug)]
pub struct Images {
    backend: ContainerBackend,
}

impl Images {
    /// Creates a client for the images of the container backend's engine.
    pub fn new(containers: &ContainerSettings) -> Result<Self> {
        Ok(Self { backend: ContainerBackend::new(&containers.config())? })
    }

    /// Lists all images of the engine.
    pub async fn list(&self) -> Result<Vec<ImageInfo>> {
        let mut images: Vec<ImageInfo> = self.backend.images().await?.into_iter().map(ImageInfo::from).collect();
        images.sort_by(|one, other| (&one.names, &one.id).cmp(&(&other.names, &other.id)));
        Ok(images)
    }

    /// Pulls an image from its registry.
    pub async fn pull(&self, name: &str, progress: ImageProgress) -> Result<()> {
        self.backend.pull_image(name, &pulling(progress)).await
    }

    /// Creates an image from a directory with a root file system, or from a tar of one.
    pub async fn import(&self, source: &Path, name: &str) -> Result<MadeImage> {
        let imported = self.backend.import_image(source, name).await?;
        let mut notes: Vec<String> = Vec::new();
        if imported.left_out_in_all > 0 {
            let named: Vec<String> = imported.left_out.iter().map(|path| path.display().to_string()).collect();
            let more = imported.left_out_in_all.saturating_sub(named.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            notes.push(format!("left out sockets, FIFOs and devices: {}{more}", named.join(", ")));
        }
        Ok(MadeImage { name: name.to_owned(), id: imported.id, notes })
    }

    /// Creates an image from Debian packages, without a registry and without root.
    pub async fn build_base(&self, base: &BaseImage, name: &str, progress: ImageProgress) -> Result<MadeImage> {
        // Checks that the engine is available before spending minutes on packages.
        self.backend.images().await?;
        let mut recipe = if base.tiny { Recipe::tiny() } else { Recipe::base() };
        recipe.packages.extend(base.packages.iter().cloned());
        let directory = cache_directory("debian").ok_or_else(no_cache)?;
        let on_step = Arc::clone(&progress);
        let (plan, tar) = tokio::task::spawn_blocking(move || pack(&recipe, &directory, &on_step))
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, OPERATION, "packing failed").with_source(error))??;
        progress(ImageStep { what: "importing the image into the engine".to_owned(), bytes: None });
        let created = self.import(&tar.0, name).await;
        drop(tar);
        let mut created = created?;
        created.notes.splice(0..0, plan.notes().iter().cloned());
        Ok(created)
    }
}

const OPERATION: &str = "build image";

fn no_cache() -> Error {
    Error::new(ErrorKind::Unavailable, OPERATION, "this user has no cache directory")
        .with_remedy("set HOME or XDG_CACHE_HOME")
}

/// A temporary file that is removed on drop.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // The file may not exist.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pack(recipe: &Recipe, directory: &Path, progress: &ImageProgress) -> Result<(Plan, Temporary)> {
    let cache = Cache::new(directory);
    let mut on_step =
        |step: cofferdam_image::debian::Progress| progress(ImageStep { what: step.to_string(), bytes: step.bytes() });
    let plan = cofferdam_image::resolve(recipe, &cache, &mut on_step).map_err(failed)?;
    let tar = Temporary(directory.join(format!("root-{}-{}.tar", &plan.key()[..16], std::process::id())));
    plan.write_file(&tar.0, &mut on_step).map_err(failed)?;
    // Failing to remove old packages does not affect this image.
    let _ = cache.prune(KEEP_PACKAGES);
    Ok((plan, tar))
}

/// Converts an error. The second line of its text is the remedy.
fn failed(error: DebianError) -> Error {
    let text = error.to_string();
    let (what, remedy) = text.split_once('\n').unwrap_or((&text, ""));
    let kind = match &error {
        DebianError::InvalidName { .. } | DebianError::Unresolvable { .. } => ErrorKind::InvalidInput,
        DebianError::NoSpace { .. } => ErrorKind::ResourceExhausted,
        DebianError::UntrustedTool { .. } => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let converted = Error::new(kind, OPERATION, what.to_owned());
    if remedy.is_empty() { converted } else { converted.with_remedy(remedy.to_owned()) }
}

/// Reports a pull as one step, with the progress of all its concurrent layers.
pub(super) fn pulling(progress: ImageProgress) -> PullProgress {
    let layers = parking_lot::Mutex::new(std::collections::BTreeMap::<String, (u64, u64)>::new());
    PullProgress::new(move |event: &PullEvent| {
        let mut layers = layers.lock();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_apt_have_one_line_and_a_remedy() {
        let reason = || "W: no signature; E: Failed to fetch".to_owned();
        for error in [
            DebianError::NoArchive { reason: reason() },
            DebianError::UntrustedArchive { reason: reason() },
            DebianError::Unresolvable { reason: reason() },
            DebianError::FetchFailed { reason: reason() },
        ] {
            let converted = failed(error);
            let remedy = converted.remedy().expect("a remedy");
            assert!(converted.message().ends_with("E: Failed to fetch"), "{converted}");
            for text in [converted.message(), remedy] {
                assert!(!text.is_empty() && !text.contains('\n') && !text.contains("\\n"), "{text:?}");
            }
        }
    }
}
