//! Pulling images from registries.
//!
//! - The protocol: `client.rs`. Credentials: `credentials.rs`.

mod client;
mod credentials;

use std::io::Read;
use std::path::{Path, PathBuf};

use cofferdam_linux::trust::{self, Secrecy};
use tokio::runtime::Runtime;

use super::add::{AddSession, now};
use super::error::{Result, StoreError, io};
use super::load::unpack;
use super::record::{ImageConfig, ImageRecord, LayerInfo};
use super::reference::Reference;
use super::{Added, ImageStore, Progress};
use crate::layer::bad;
use crate::layer::layout;
use crate::layer::stream::{Sha, wrong_digest};
use client::Registry;

/// Maximum number of attempts to download a file whose connection breaks.
const MAX_ATTEMPTS: usize = 4;
/// Usual size of a compressed layer together with its files, as a multiple of its own.
const UNPACKED_SHARE: u64 = 4;
const MAX_CERTIFICATE: u64 = 1 << 20;
const MAX_CERTIFICATES: usize = 64;

/// Access to registries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryOptions {
    /// Configuration files of Docker or Podman with credentials. The first that has some for the registry is used.
    pub credentials: Vec<PathBuf>,
    /// Certificates of authorities that are trusted in addition to the host's, as PEM.
    pub certificates: Vec<Vec<u8>>,
    /// Registries that may be used without TLS, as in the names of images. Registries on this host always may.
    pub insecure: Vec<String>,
}

impl RegistryOptions {
    /// Adds the certificates (`*.crt`) for a registry from directories such as `/etc/docker/certs.d`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Credentials`] for a file that another user could change.
    pub fn add_certificates(&mut self, directories: &[PathBuf], registry: &str) -> Result<()> {
        for directory in directories {
            let entries = std::fs::read_dir(directory.join(registry)).into_iter().flatten().flatten();
            let paths =
                entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "crt"));
            for path in paths.take(MAX_CERTIFICATES) {
                self.certificates.push(read_certificate(&path)?);
            }
        }
        Ok(())
    }
}

fn read_certificate(path: &Path) -> Result<Vec<u8>> {
    let file = trust::open(path, Secrecy::Public)
        .map_err(|error| StoreError::Credentials { what: error.to_string(), remedy: error.remedy() })?;
    let mut text = Vec::new();
    file.take(MAX_CERTIFICATE).read_to_end(&mut text).map_err(io("read", path))?;
    Ok(text)
}

/// The description of an image in a registry.
struct Remote {
    manifest: Vec<u8>,
    config: Vec<u8>,
    layers: Vec<layout::RemoteLayer>,
}

impl ImageStore {
    /// Pulls an image for this architecture from its registry. Files that the store has are not downloaded again. Blocks
    /// until the image is unpacked: call it outside of async code.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`], [`StoreError::AccessDenied`], [`StoreError::NotInRegistry`],
    /// [`StoreError::QuotaExceeded`], and those of damaged or hostile images.
    pub fn pull(
        &self,
        reference: &Reference,
        options: &RegistryOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Added> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io("start", "a runtime for the network"))?;
        let credentials = credentials::find(&options.credentials, reference.registry())?;
        let mut registry = runtime.block_on(Registry::connect(reference, options, credentials))?;
        let remote = runtime.block_on(describe(&mut registry, reference))?;
        let settings = ImageConfig::parse(&remote.config)?;
        let total = remote.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
        if total > self.options.max_bytes {
            return Err(StoreError::QuotaExceeded { bytes: total, max: self.options.max_bytes });
        }
        // Unpacked files are larger than their layers.
        let session = self.session(total.saturating_mul(UNPACKED_SHARE))?;
        let mut done = 0;
        let mut layers = Vec::new();
        for layer in &remote.layers {
            download(&session, &runtime, &mut registry, layer, (&mut done, total), progress)?;
            layers.push(LayerInfo { blob: layer.blob.clone(), size: layer.size, contents: layer.contents.clone() });
        }
        let config = session.document(&remote.config)?;
        let manifest = session.document(&remote.manifest)?;
        unpack(&session, &layers, progress)?;
        let documents = (remote.manifest.len() + remote.config.len()) as u64;
        let record = ImageRecord { manifest, config, settings, layers, documents, stored: now() };
        session.commit(&record, std::slice::from_ref(reference))?;
        let dropped = self.dropped(&record.layers);
        Ok(Added { manifest: record.manifest, names: vec![reference.clone()], dropped })
    }
}

async fn describe(registry: &mut Registry, reference: &Reference) -> Result<Remote> {
    let version = reference.digest().map(ToString::to_string);
    let version = version.as_deref().or(reference.tag()).unwrap_or("latest");
    let mut manifest = registry.manifest(version).await?;
    if let Some(digest) = reference.digest()
        && Sha::of(&manifest) != *digest
    {
        return Err(wrong_digest(digest).into());
    }
    if let Some(index) = layout::parse_index(&manifest)? {
        let digest = layout::choose(&index)?;
        manifest = registry.manifest(&digest.to_string()).await?;
        if Sha::of(&manifest) != digest {
            return Err(wrong_digest(&digest).into());
        }
        if layout::parse_index(&manifest)?.is_some() {
            return Err(bad("the image's index leads to another index").into());
        }
    }
    let config = registry.document(&layout::config_digest(&manifest)?).await?;
    let layers = layout::remote_layers(&manifest, &config)?;
    Ok(Remote { manifest, config, layers })
}

/// Downloads a layer's file, unless the store has it. Restarts if the connection breaks.
fn download(
    session: &AddSession<'_>,
    runtime: &Runtime,
    registry: &mut Registry,
    layer: &layout::RemoteLayer,
    (done, total): (&mut u64, u64),
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let before = *done;
    let mut attempt = 1;
    loop {
        *done = before;
        let Some(mut writer) = session.blob(Some((&layer.blob, Some(layer.size))), progress)? else { break };
        let mut report = |bytes: u64| {
            *done += bytes;
            progress(Progress::Reading { done: *done, total: Some(total) });
        };
        match runtime.block_on(registry.blob(&layer.blob, &mut writer, &mut report)) {
            Ok(()) => {
                writer.finish(Some(&layer.blob))?;
                break;
            }
            Err(StoreError::Interrupted { .. }) if attempt < MAX_ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
    *done = before.saturating_add(layer.size);
    progress(Progress::Reading { done: *done, total: Some(total) });
    Ok(())
}
