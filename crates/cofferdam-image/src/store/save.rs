//! Archives for container engines, as `docker load` and `podman load` read them.

use std::io::{self as std_io, Read, Write};

use serde_json::json;
use tar::{EntryType, Header};

use super::add::LAYER_RECORD;
use super::error::{Result, StoreError, io};
use super::files::{open_nofollow, read_record};
use super::record::{ImageRecord, LayerInfo, LayerRecord};
use super::{ImageStore, Reference};
use crate::layer::layout::MAX_TEXT;
use crate::layer::stream::{Hashed, unpacked, wrong_digest};

impl ImageStore {
    /// Writes an image as an archive for `docker load`, with the given name, or without one. Layers are written
    /// uncompressed, because older engines do not know Zstandard.
    ///
    /// # Errors
    ///
    /// Those of [`Self::resolve`], and those of writing.
    pub fn save(&self, name: &str, as_name: Option<&Reference>, out: impl Write) -> Result<()> {
        let resolved = self.resolve(name)?;
        let missing = || StoreError::NotFound { name: name.to_owned() };
        let record: ImageRecord = read_record(&self.files.image(&resolved.digest))?.ok_or_else(missing)?;
        let mut tar = tar::Builder::new(out);
        let path = self.files.blob(&record.config);
        let mut config = Vec::new();
        let file = open_nofollow(&path).map_err(io("open", &path))?;
        file.take(MAX_TEXT).read_to_end(&mut config).map_err(io("read", &path))?;
        let config_name = format!("{}.json", record.config.digits());
        append(&mut tar, &config_name, config.len() as u64, &*config)?;
        let mut written = std::collections::BTreeSet::new();
        for layer in &record.layers {
            if written.insert(&layer.contents) {
                self.append_layer(&mut tar, layer, name)?;
            }
        }
        let layers: Vec<String> = record.layers.iter().map(member).collect();
        let tags: Vec<String> = as_name.iter().map(|name| name.canonical()).collect();
        let list = json!([{"Config": config_name, "RepoTags": tags, "Layers": layers}]).to_string();
        append(&mut tar, "manifest.json", list.len() as u64, list.as_bytes())?;
        let mut out = tar.into_inner().map_err(io("write", "an archive of the image"))?;
        out.flush().map_err(io("write", "an archive of the image"))?;
        drop(resolved.lease);
        Ok(())
    }

    fn append_layer(&self, tar: &mut tar::Builder<impl Write>, layer: &LayerInfo, name: &str) -> Result<()> {
        let damaged = || StoreError::Damaged {
            name: name.to_owned(),
            what: format!("its layer {} is not unpacked", layer.contents),
        };
        let record: LayerRecord =
            read_record(&self.files.layer(&layer.contents).join(LAYER_RECORD))?.ok_or_else(damaged)?;
        let path = self.files.blob(&layer.blob);
        let file = open_nofollow(&path).map_err(io("open", &path))?;
        let mut left = record.tar;
        let mut reader = Hashed::new(unpacked(Box::new(file)).map_err(io("read", &path))?, &mut left);
        append(tar, &member(layer), record.tar, &mut reader)?;
        let found = reader.finish().map_err(io("read", &path))?;
        if found == layer.contents.digits() { Ok(()) } else { Err(wrong_digest(&layer.contents).into()) }
    }
}

fn member(layer: &LayerInfo) -> String {
    format!("{}/layer.tar", layer.contents.digits())
}

fn append(tar: &mut tar::Builder<impl Write>, name: &str, size: u64, from: impl Read) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(size);
    let from = std_io::BufReader::with_capacity(1 << 17, from);
    tar.append_data(&mut header, name, from).map_err(io("write", "an archive of the image"))
}
