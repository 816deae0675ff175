//! Images from root file systems: a directory, or a tar.

use std::io::Read;

use cofferdam_linux::named::Directory;
use serde_json::json;

use super::add::now;
use super::error::{Result, io};
use super::load::{copy, manifest, unpack};
use super::record::{ImageConfig, ImageRecord, LayerInfo};
use super::reference::Reference;
use super::{Added, ImageStore, Progress};
use crate::layer::layout::architecture;
use crate::layer::pack::pack;
use crate::layer::stream::{Compression, Sha, unpacked};

impl ImageStore {
    /// Adds an image of a directory with a root file system. Sockets, FIFOs and devices are left out.
    ///
    /// # Errors
    ///
    /// [`super::StoreError::QuotaExceeded`], and those of the operating system.
    pub fn import_directory(
        &self,
        directory: &Directory,
        config: &ImageConfig,
        name: &Reference,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Added> {
        self.import(config, name, progress, |out, _| Ok(pack(directory, out)?))
    }

    /// Adds an image of a tar with a root file system, which may be compressed with gzip or Zstandard.
    ///
    /// # Errors
    ///
    /// [`super::StoreError::QuotaExceeded`], those of reading the tar, and those of a hostile tar.
    pub fn import_tar(
        &self,
        tar: impl Read,
        config: &ImageConfig,
        name: &Reference,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Added> {
        self.import(config, name, progress, |out, progress| {
            let tar = unpacked(Box::new(tar)).map_err(io("read", "the tar"))?;
            copy(tar, out, progress).map_err(io("read", "the tar"))
        })
    }

    fn import(
        &self,
        settings: &ImageConfig,
        name: &Reference,
        progress: &mut dyn FnMut(Progress),
        write: impl FnOnce(&mut dyn std::io::Write, &mut dyn FnMut(Progress)) -> Result<()>,
    ) -> Result<Added> {
        let name = name.clone().without_digest()?;
        let session = self.session(0)?;
        let Some(mut writer) = session.blob(None, progress)? else { unreachable!("no digest is expected") };
        write(&mut writer, progress).map_err(|error| writer.cause(error))?;
        let (blob, size) = writer.finish(None)?;
        let layers = vec![LayerInfo { contents: blob.clone(), blob, size }];
        let text = document(settings, &layers[0].contents);
        let config = session.document(&text)?;
        let manifest_text = manifest(&config, text.len(), &layers, &[Compression::None]);
        let manifest = session.document(&manifest_text)?;
        unpack(&session, &layers, progress)?;
        let documents = (text.len() + manifest_text.len()) as u64;
        let record = ImageRecord { manifest, config, settings: settings.clone(), layers, documents, stored: now() };
        session.commit(&record, std::slice::from_ref(&name))?;
        Ok(Added { dropped: self.dropped(&record.layers), manifest: record.manifest, names: vec![name] })
    }
}

/// Returns an OCI configuration. It has no time, so that the same files give the same image.
fn document(settings: &ImageConfig, contents: &Sha) -> Vec<u8> {
    let env: Vec<String> = settings.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut config = json!({"Env": env});
    for (name, text) in [("User", &settings.user), ("WorkingDir", &settings.working_dir)] {
        if !text.is_empty() {
            config[name] = json!(text);
        }
    }
    for (name, words) in [("Entrypoint", &settings.entrypoint), ("Cmd", &settings.cmd)] {
        if !words.is_empty() {
            config[name] = json!(words);
        }
    }
    if !settings.labels.is_empty() {
        config["Labels"] = json!(settings.labels);
    }
    let document = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [contents.to_string()]},
    });
    document.to_string().into_bytes()
}
