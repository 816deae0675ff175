//! Images of the container engine: listing, pulling, importing and building; and loading of those of the image store.

use std::path::Path;
use std::sync::Arc;

use cofferdam_container::{ContainerBackend, ContainerSettings, ImageSource, PullEvent, PullProgress};
use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_image::store::{Reference, StoreError};
use serde::Serialize;

pub use super::base::{BASE_IMAGE, BaseImage};
use super::base::{OPERATION, pack};
use super::{ImageProgress, ImageSettings, ImageStep, image_store};

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
pub struct CreatedImage {
    /// Its name.
    pub name: String,
    /// Its id: `sha256:…`.
    pub id: String,
    /// Notes for the user: files and packages that were left out.
    pub notes: Vec<String>,
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
    pub async fn import(&self, source: &Path, name: &str) -> Result<CreatedImage> {
        let imported = self.backend.import_image(source, name).await?;
        let mut notes: Vec<String> = Vec::new();
        if imported.left_out_in_all > 0 {
            let named: Vec<String> = imported.left_out.iter().map(|path| path.display().to_string()).collect();
            let more = imported.left_out_in_all.saturating_sub(named.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            notes.push(format!("left out sockets, FIFOs and devices: {}{more}", named.join(", ")));
        }
        Ok(CreatedImage { name: name.to_owned(), id: imported.id, notes })
    }

    /// Creates an image from Debian packages, without a registry and without root.
    pub async fn build_base(&self, base: &BaseImage, name: &str, progress: ImageProgress) -> Result<CreatedImage> {
        // Checks that the engine is available before spending minutes on packages.
        self.backend.images().await?;
        let (base, on_step) = (base.clone(), Arc::clone(&progress));
        let (plan, tar) = tokio::task::spawn_blocking(move || pack(&base, &on_step))
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, OPERATION, "packing failed").with_source(error))??;
        progress(ImageStep { what: "importing the image into the engine".to_owned(), bytes: None });
        let created = self.import(tar.path(), name).await;
        drop(tar);
        let mut created = created?;
        created.notes.splice(0..0, plan.notes().iter().cloned());
        Ok(created)
    }
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

/// The image store as a source of images that an engine does not have.
#[derive(Debug)]
pub(super) struct StoredImages(ImageSettings);

impl StoredImages {
    pub(super) fn new(settings: &ImageSettings) -> Self {
        Self(settings.clone())
    }
}

impl ImageSource for StoredImages {
    fn find(&self, name: &str) -> Result<Option<String>> {
        let Some(store) = image_store::existing(&self.0)? else { return Ok(None) };
        match store.inspect(name) {
            Ok(found) => Ok(Some(found.config.to_string())),
            Err(StoreError::NotFound { .. } | StoreError::InvalidReference { .. }) => Ok(None),
            Err(error) => Err(error.into_contract("load image")),
        }
    }

    fn save(&self, name: &str, out: &mut dyn std::io::Write) -> Result<()> {
        let failed = |error: StoreError| error.into_contract("load image");
        let as_name = name.parse::<Reference>().ok().filter(|name| name.digest().is_none());
        image_store::open(&self.0)?.save(name, as_name.as_ref(), out).map_err(failed)
    }
}
