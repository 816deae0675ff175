//! The state that all sandboxes of a backend share, and the images that it finds for them.

use std::fmt;
use std::sync::Arc;

use cofferdam_contract::{Result, RootFs, Spec};
use cofferdam_image::store::{ImageStore, Options, StoreError};
use cofferdam_image::{Cache, Image, ImageError, Images, Progress, RootSource, Source};
use cofferdam_util::text::excerpt;
use tokio::sync::{OnceCell, Semaphore};

use crate::budget::{Budget, Lease};
use crate::choice::Chooser;
use crate::config::{MakePolicy, RootChoice, VmConfig};
use crate::error::VmError;
use crate::snapshot::SnapshotManifest;
use crate::task::blocking;
use crate::templates::{MAX_TEMPLATES, TEMPLATE_IDLE_TIMEOUT, Templates};
use crate::vmm::Vmm;

/// A callback for the steps of building an image.
pub type BuildProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// The state that all sandboxes of a backend share.
pub(crate) struct BackendState {
    pub config: VmConfig,
    pub vmm: Chooser,
    images: Images,
    /// The default image, once it was found or built.
    image: OnceCell<Image>,
    pub boots: Semaphore,
    /// The memory that is left for snapshots.
    pub budget: Budget,
    /// Template snapshots for prepared VMs.
    pub templates: Templates,
    progress: BuildProgress,
    /// The boot ID of this host's kernel.
    pub boot: String,
}

impl BackendState {
    pub(crate) fn new(config: VmConfig, progress: BuildProgress) -> Result<Arc<Self>> {
        config.check()?;
        let vmm = Chooser::new(&config).map_err(|error| error.into_error("configure"))?;
        let images = Images::new(&config.images, Cache::new(&config.packages));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let boots = Semaphore::new(config.boots);
        let (budget, templates) = (Budget::new(config.snapshots), Templates::new(MAX_TEMPLATES, TEMPLATE_IDLE_TIMEOUT));
        let image = OnceCell::new();
        Ok(Arc::new(Self { config, vmm, images, image, boots, budget, templates, progress, boot }))
    }

    pub(crate) fn vmm(&self) -> &dyn Vmm {
        &self.vmm
    }

    pub(crate) async fn image_of(&self, spec: &Spec) -> Result<Image, VmError> {
        match spec.root() {
            RootFs::Directory { path } => {
                let root = RootSource::Directory(path.clone());
                let recorded = spec.directories().get(path).map(|id| (id.device, id.inode));
                self.found(Source { root, recorded, ..self.config.source.clone() }).await
            }
            RootFs::Image { reference } => self.named(reference).await,
            RootFs::Default => self.image.get_or_try_init(|| self.default_image()).await.cloned(),
        }
    }

    /// Returns the default image, for a spec that names none.
    async fn default_image(&self) -> Result<Image, VmError> {
        let source = || self.found(self.config.source.clone());
        match &self.config.root {
            RootChoice::Source => source().await,
            RootChoice::Built(name) => self.named(name).await,
            RootChoice::BuiltOrSource(name) => match self.named(name).await {
                Err(VmError::Image(ImageError::UnknownName { .. } | ImageError::Incompatible { .. })) => source().await,
                found => found,
            },
        }
    }

    async fn named(&self, name: &str) -> Result<Image, VmError> {
        if let Some(source) = self.stored(name).await? {
            return self.found(source).await;
        }
        let (images, name) = (self.images.clone(), name.to_owned());
        blocking(move || Ok(images.named(&name)?)).await
    }

    async fn named_for_restore(&self, name: &str) -> Result<Image, VmError> {
        if let Some(source) = self.stored(name).await? {
            return self.found(source).await;
        }
        let (images, name) = (self.images.clone(), name.to_owned());
        blocking(move || Ok(images.named_for_restore(&name)?)).await
    }

    /// Returns the source of an image that only the store of container images has.
    async fn stored(&self, name: &str) -> Result<Option<Source>, VmError> {
        let Some(store) = self.config.container_images.clone().filter(|store| store.is_dir()) else { return Ok(None) };
        let (images, image, source) = (self.images.clone(), name.to_owned(), self.config.source.clone());
        blocking(move || {
            if images.has_name(&image) {
                return Ok(None);
            }
            let is_stored = match ImageStore::open(&store, Options::default()).and_then(|all| all.contains(&image)) {
                Err(StoreError::InvalidReference { .. }) => false,
                found => found.map_err(ImageError::from)?,
            };
            Ok(is_stored.then_some(Source { root: RootSource::Stored { store, image }, ..source }))
        })
        .await
    }

    /// Reserves memory for a state that is still being written: nothing so far. It counts as memory for snapshots.
    pub(crate) fn open_lease(&self) -> Result<Lease, VmError> {
        self.budget.take(0)
    }

    /// Finds the image with this key, and the way in which a spec names it: by its name if it has one, else as the
    /// default image.
    pub(crate) async fn image_with(&self, key: &str) -> Result<(RootFs, Image), VmError> {
        let (images, wanted) = (self.images.clone(), key.to_owned());
        let listed = blocking(move || Ok(images.inventory().named.into_iter().find(|listed| listed.key == wanted)));
        if let Some(listed) = listed.await? {
            let image = self.named_for_restore(&listed.name).await?;
            if image.key == key {
                return Ok((RootFs::Image { reference: listed.name }, image));
            }
        }
        // An unnamed image: built for a root of a single run, or its name was given to a newer one.
        let (images, wanted) = (self.images.clone(), key.to_owned());
        if let Some(image) = blocking(move || Ok(images.by_key(&wanted)?)).await? {
            return Ok((RootFs::Default, image));
        }
        // None is built for this: an image that is built now hardly equals the one from then.
        let (images, source) = (self.images.clone(), self.config.source.clone());
        let default = blocking(move || Ok(images.find(&source, &mut |_| ())?)).await;
        match default {
            Ok(image) if image.key == key => Ok((RootFs::Default, image)),
            Ok(_) | Err(VmError::Image(ImageError::NotBuilt)) => Err(VmError::MissingImage { key: excerpt(key) }),
            Err(error) => Err(error),
        }
    }

    /// Refuses a snapshot that cannot resume here. Returns the image that it resumes with, which was looked up just
    /// once.
    pub(crate) async fn check(&self, manifest: &SnapshotManifest, spec: &Spec) -> Result<Image, VmError> {
        manifest.check_origin(&self.vmm.origin().await?)?;
        let image = match spec.root() {
            RootFs::Image { reference } => self.named_for_restore(reference).await?,
            RootFs::Default | RootFs::Directory { .. } => self.image_of(spec).await?,
        };
        if image.key == manifest.image() {
            return Ok(image);
        }
        let found = excerpt(manifest.image());
        Err(VmError::OriginMismatch { what: "the image", found, current: image.key })
    }

    async fn found(&self, source: Source) -> Result<Image, VmError> {
        let (images, policy, progress) = (self.images.clone(), self.config.make, Arc::clone(&self.progress));
        let mut report = move |step| progress(step);
        blocking(move || match policy {
            MakePolicy::Never => Ok(images.find(&source, &mut report)?),
            MakePolicy::Missing => Ok(images.find_or_make(&source, &mut report)?),
        })
        .await
    }
}

impl fmt::Debug for BackendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendState").field("config", &self.config).field("vmm", &self.vmm).finish_non_exhaustive()
    }
}
