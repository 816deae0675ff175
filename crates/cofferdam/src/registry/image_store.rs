//! The image store of this user, for every isolation level.

use std::path::{Path, PathBuf};

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_image::store::ImageStore;
#[cfg(feature = "images")]
pub use cofferdam_image::store::{
    Added, ImageConfig, Inspected, LayerInfo, Listed, PruneOptions, Reference, RegistryOptions, Removed, StoreError,
};
use cofferdam_image::store::{MAX_STORE_BYTES, Options};

use super::ImageSettings;
#[cfg(feature = "images")]
pub use super::base::BASE_IMAGE;
#[cfg(feature = "images")]
use super::base::{BaseImage, pack};
#[cfg(feature = "images")]
use super::{ImageProgress, ImageStep};

const OPERATION: &str = "open image store";

/// Returns the directory of this user's store, or `None` for a user without a home.
#[must_use]
pub fn directory() -> Option<PathBuf> {
    ImageStore::default_root(|name| std::env::var_os(name), rustix::process::geteuid().is_root())
}

/// Opens this user's store, and creates it if it is missing.
///
/// # Errors
///
/// `Unavailable` for a user without a home, and those of the store.
pub fn open(settings: &ImageSettings) -> Result<ImageStore> {
    let directory = directory().ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, OPERATION, "this user has no directory for images")
            .with_remedy("set HOME or XDG_STATE_HOME")
    })?;
    open_at(&directory, settings)
}

/// Opens this user's store, if it exists.
///
/// # Errors
///
/// Those of the store.
pub fn existing(settings: &ImageSettings) -> Result<Option<ImageStore>> {
    match directory() {
        Some(directory) if directory.is_dir() => open_at(&directory, settings).map(Some),
        _ => Ok(None),
    }
}

fn open_at(directory: &Path, settings: &ImageSettings) -> Result<ImageStore> {
    let max_bytes = settings.max_size.map_or(MAX_STORE_BYTES, |size| size.0.as_bytes());
    let options = Options { max_bytes, ..Options::default() };
    ImageStore::open(directory, options).map_err(|error| error.into_contract(OPERATION))
}

/// Returns access to the registry of an image, as Docker and Podman have it for this user.
///
/// # Errors
///
/// An error for a certificate that another user could change.
#[cfg(feature = "images")]
pub fn registry_options(settings: &ImageSettings, reference: &Reference) -> Result<RegistryOptions> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let docker = path("DOCKER_CONFIG").or_else(|| path("HOME").map(|home| home.join(".docker")));
    let podman = path("REGISTRY_AUTH_FILE")
        .or_else(|| path("XDG_RUNTIME_DIR").map(|directory| directory.join("containers/auth.json")));
    let mut options = RegistryOptions {
        credentials: docker.map(|directory| directory.join("config.json")).into_iter().chain(podman).collect(),
        certificates: Vec::new(),
        insecure: settings.insecure_registries.clone().unwrap_or_default(),
    };
    let own = path("HOME").map(|home| home.join(".config/containers/certs.d"));
    let directories: Vec<PathBuf> =
        ["/etc/docker/certs.d", "/etc/containers/certs.d"].map(PathBuf::from).into_iter().chain(own).collect();
    options.add_certificates(&directories, reference.registry()).map_err(|error| error.into_contract("pull image"))?;
    Ok(options)
}

/// Builds an image from Debian packages, without a registry and without root. Returns notes for the user: packages that
/// were left out.
///
/// # Errors
///
/// Those of apt, and those of the store.
#[cfg(feature = "images")]
pub fn build(
    store: &ImageStore,
    base: &BaseImage,
    name: &Reference,
    progress: &ImageProgress,
) -> Result<(Added, Vec<String>)> {
    let (plan, tar) = pack(base, progress)?;
    let file = cofferdam_linux::named::read(tar.path())
        .map_err(|error| Error::new(ErrorKind::Io, "build image", "cannot open the packed files").with_source(error))?;
    let env = vec![("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned())];
    let config = ImageConfig { env, cmd: vec!["sh".to_owned()], ..ImageConfig::default() };
    let added = store
        .import_tar(file, &config, name, &mut |step| progress(shown(&step)))
        .map_err(|error| error.into_contract("build image"))?;
    Ok((added, plan.notes().to_vec()))
}

/// Returns a step for a display.
#[cfg(feature = "images")]
#[must_use]
pub fn shown(step: &cofferdam_image::store::Progress) -> ImageStep {
    use cofferdam_image::store::Progress;
    match step {
        Progress::Waiting => {
            ImageStep { what: "waiting for another process that adds the same image".to_owned(), bytes: None }
        }
        Progress::Reading { done, total: Some(total) } => {
            ImageStep { what: "downloading the image".to_owned(), bytes: Some((*done, *total)) }
        }
        Progress::Unpacking { layer, layers } => {
            ImageStep { what: format!("unpacking layer {layer} of {layers}"), bytes: None }
        }
        _ => ImageStep { what: "reading the image".to_owned(), bytes: None },
    }
}
