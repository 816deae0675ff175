//! Creation of the VM backend and of VM images from [`VmSettings`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, ErrorKind, Result};
use cofferdam_image::{
    Cache, ImageError, Images as Store, Inventory, KernelSource, Listed, Progress, Recipe, RootSource, Source, Unnamed,
};
use cofferdam_vm::{HostPaths, VmBackend, VmConfig, VmSettings};
use serde::Serialize;

use crate::registry::{ImageProgress, ImageStep, cache, image_store};

/// Returns the configuration of the backend.
pub(in crate::registry) fn config(settings: &VmSettings) -> Result<VmConfig> {
    let search_path = std::env::var_os("PATH");
    settings.config(&HostPaths { cache: cache(), container_images: image_store::directory(), search_path })
}

/// Creates the backend. Nothing is examined or started before the first sandbox.
pub(in crate::registry) fn backend(settings: &VmSettings, progress: ImageProgress) -> Result<VmBackend> {
    VmBackend::with_progress(config(settings)?, Arc::new(move |step| progress(shown(&step))))
}

pub(super) fn shown(step: &Progress) -> ImageStep {
    let bytes = match step {
        Progress::Packages(step) => step.bytes(),
        _ => None,
    };
    ImageStep { what: step.to_string(), bytes }
}

/// Treatment of another image with the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep it.
    Keep,
    /// Take its name.
    Replace,
}

/// The sources of a VM image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipes {
    /// A directory or a tar with a root file system or with a container's image, instead of Debian packages.
    pub from: Option<PathBuf>,
    /// True for only a shell and a small Python from packages.
    pub tiny: bool,
    /// Additional packages.
    pub packages: Vec<String>,
    /// A Debian package with a kernel, instead of the default one.
    pub kernel_package: Option<String>,
    /// A kernel file of this host.
    pub kernel: Option<PathBuf>,
    /// Modules of that kernel, in load order.
    pub modules: Vec<PathBuf>,
    /// Maximum size of the disk.
    pub max_size: Option<ByteSize>,
}

impl Recipes {
    fn source(&self) -> Result<(Source, String), ImageError> {
        let default = Source::default();
        let (root, root_shown) = match &self.from {
            Some(path) => {
                let root = RootSource::at(path)?;
                let kind = match root {
                    RootSource::Oci(_) => "the container image",
                    RootSource::Tar(_) => "the tar",
                    RootSource::Directory(_) | RootSource::Debian(_) | RootSource::Stored { .. } => "the directory",
                };
                (root, format!("{kind} {}", path.display()))
            }
            None => {
                let mut recipe = if self.tiny { Recipe::tiny() } else { Recipe::base() };
                recipe.packages.extend(self.packages.iter().cloned());
                let more = self.packages.iter().map(|name| format!(", {name}")).collect::<String>();
                (
                    RootSource::Debian(recipe),
                    format!("Debian packages ({}{more})", if self.tiny { "tiny" } else { "base" }),
                )
            }
        };
        let (kernel, kernel_shown) = match (&self.kernel, &self.kernel_package) {
            (Some(image), _) => {
                let kernel = KernelSource::Files { image: image.clone(), modules: self.modules.clone() };
                (kernel, format!("; the kernel {}", image.display()))
            }
            (None, Some(package)) => {
                (KernelSource::Debian { package: package.clone() }, format!("; kernel of {package}"))
            }
            (None, None) => (default.kernel, String::new()),
        };
        let source = Source { kernel, root, max_size: self.max_size.unwrap_or(default.max_size), recorded: None };
        Ok((source, format!("{root_shown}{kernel_shown}")))
    }
}

/// A named VM image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmImage {
    /// Its name.
    pub name: String,
    /// Description of its sources.
    pub about: String,
    /// The SHA-256 of its sources.
    pub key: String,
    /// The output of `uname -r` in its VMs; empty if unknown.
    pub kernel: String,
    /// Size of kernel, initramfs and disk in bytes; `None` if a part is missing.
    pub size: Option<u64>,
}

/// A kernel or a disk without a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamelessPart {
    /// `kernel` or `root`.
    pub kind: String,
    /// The SHA-256 of its sources.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
}

/// A kernel and a disk whose combination has no name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnnamedImage {
    /// The SHA-256 of the sources of both, which archives of snapshots name.
    pub key: String,
    /// The output of `uname -r` in its VMs; empty if unknown.
    pub kernel: String,
    /// Size of kernel, initramfs and disk in bytes.
    pub size: u64,
}

/// The contents of the image store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmImages {
    /// Directory of the store.
    pub directory: PathBuf,
    /// Images with names.
    pub images: Vec<VmImage>,
    /// Images that the stored parts form, of which some part has no name. Saved VMs resume with them.
    pub unnamed: Vec<UnnamedImage>,
    /// Other parts: built for a root file system that a run named, or replaced by newer ones.
    pub nameless: Vec<NamelessPart>,
}

/// The store of VM images.
#[derive(Debug, Clone)]
pub struct Images {
    pub(super) store: Store,
    directory: PathBuf,
}

impl Images {
    /// Opens the store of the VM backend.
    pub fn new(settings: &VmSettings) -> Result<Self> {
        let config = config(settings)?;
        Ok(Self { store: Store::new(&config.images, Cache::new(&config.packages)), directory: config.images })
    }

    /// Lists the contents of the store, without reading the images.
    pub fn list(&self) -> VmImages {
        let Inventory { named, unnamed, nameless } = self.store.inventory();
        let other = |found: Unnamed| UnnamedImage { key: found.key, kernel: found.release, size: found.bytes };
        let image = |listed: Listed| VmImage {
            name: listed.name,
            about: listed.about,
            key: listed.key,
            kernel: listed.release,
            size: listed.bytes,
        };
        VmImages {
            directory: self.directory.clone(),
            images: named.into_iter().map(image).collect(),
            unnamed: unnamed.into_iter().map(other).collect(),
            nameless: nameless.into_iter().map(|(kind, key, size)| NamelessPart { kind, key, size }).collect(),
        }
    }

    /// Returns the current key of the default image, if it exists.
    pub(in crate::registry) fn usual_key(settings: &VmSettings) -> Option<String> {
        Self::new(settings).ok()?.store.key_of(settings.default_image())
    }

    /// Builds an image under this name. With [`Existing::Keep`], refuses a name of an image that was built from other
    /// sources before building anything, and rebuilds an image that was built from the same sources.
    ///
    /// # Errors
    ///
    /// All errors have a remedy. After an error, an existing image keeps the name.
    pub async fn build(
        &self,
        name: &str,
        existing: Existing,
        recipes: &Recipes,
        progress: ImageProgress,
    ) -> Result<VmImage> {
        let (store, recipes, owned_name) = (self.store.clone(), recipes.clone(), name.to_owned());
        let make = move || {
            let (source, about) = recipes.source()?;
            if existing == Existing::Keep
                && let Some(other) = store.about(&owned_name).filter(|other| *other != about)
            {
                return Err(ImageError::NameTaken { name: owned_name.clone(), about: other, requested: about });
            }
            store.make_named(&owned_name, &about, &source, &mut |step| progress(shown(&step)))
        };
        blocking(OPERATION, make).await?;
        let found = self.list().images.into_iter().find(|image| image.name == name);
        found.ok_or_else(|| Error::new(ErrorKind::Internal, OPERATION, "the built image is missing in the store"))
    }

    /// Removes the given names, then removes unnamed parts that were not used within `unused`. Returns the freed bytes.
    ///
    /// # Errors
    ///
    /// Returns errors of the cache, and an error for an unknown name.
    pub async fn prune(&self, names: &[String], unused: Duration) -> Result<u64> {
        let (store, names) = (self.store.clone(), names.to_vec());
        blocking(OPERATION, move || {
            names.iter().try_for_each(|name| store.forget(name, &mut |_| ()))?;
            store.prune(unused, &mut |_| ())
        })
        .await
    }
}

const OPERATION: &str = "build image";

pub(super) async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    let done =
        done.map_err(|error| Error::new(ErrorKind::Internal, operation, "the task was aborted").with_source(error))?;
    done.map_err(|error| error.into_contract(operation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::vms::DEFAULT_IMAGE;
    use crate::registry::{Setup, VM_BACKEND, fingerprint};

    #[test]
    fn rebuilt_image_changes_the_identity_of_its_vms() {
        let directory = tempfile::tempdir().unwrap();
        let setup = |image: Option<&str>| Setup {
            vms: VmSettings {
                images: Some(directory.path().to_owned()),
                image: image.map(str::to_owned),
                ..VmSettings::default()
            },
            ..Setup::default()
        };
        let print = |image| fingerprint(VM_BACKEND, &setup(image)).unwrap().unwrap();
        let name = |name: &str, root: char| {
            let (kernel, root) = ("0".repeat(64), root.to_string().repeat(64));
            let text = format!(r#"{{"kernel":"{kernel}","root":"{root}","about":""}}"#);
            std::fs::write(directory.path().join(format!("name-{name}")), text).unwrap();
        };
        let none = print(None);
        name(DEFAULT_IMAGE, '1');
        let (first, mine) = (print(None), print(Some("mine")));
        assert!(first != none && first == print(None));
        name(DEFAULT_IMAGE, '2');
        assert_ne!(print(None), first);
        assert_eq!(print(Some("mine")), mine, "the default image does not affect another image");
        name("mine", '1');
        assert_ne!(print(Some("mine")), mine);
        name(DEFAULT_IMAGE, '1');
        assert_eq!(print(None), first);
    }

    #[test]
    fn image_source_is_described() {
        let about = |recipes: Recipes| recipes.source().map(|(_, about)| about);
        let packages = Recipes { tiny: true, packages: vec!["jq".to_owned()], ..Recipes::default() };
        assert_eq!(about(packages).unwrap(), "Debian packages (tiny, jq)");
        let kernel = Recipes { kernel: Some("/k".into()), ..Recipes::default() };
        assert_eq!(about(kernel).unwrap(), "Debian packages (base); the kernel /k");
        assert!(about(Recipes { from: Some("/no/such".into()), ..Recipes::default() }).is_err());
    }
}
