//! Unpacking of an image's layer, compared with `tar -x` of the same file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cofferdam_image::store::{ImageStore, Options, Sha};
use cofferdam_process::{Images, RootImage};
use serde_json::json;

use super::bare;

/// Contents of the files, of sizes as in an image of an interpreter.
const SIZES: [usize; 8] = [300, 1_200, 2_500, 4_000, 9_000, 15_000, 40_000, 120_000];
const FILES: usize = 6000;

/// An image store for process sandboxes.
#[derive(Debug)]
struct Stored(ImageStore);

impl cofferdam_process::ImageStore for Stored {
    fn resolve(&self, reference: &str) -> cofferdam_contract::Result<RootImage> {
        let found = self.0.resolve(reference).map_err(|error| error.into_contract("create"))?;
        let lease = Arc::new(found.lease);
        Ok(RootImage { layers: found.layers, env: found.config.env, working_dir: None, user: None, lease })
    }
}

/// An image layout with one layer, which `tar` and the image store unpack.
#[derive(Debug)]
pub(super) struct Layer {
    root: PathBuf,
    digest: Sha,
}

impl Layer {
    /// Packs a directory of files with text, and a static program if there is one.
    pub(super) fn new(root: &Path, busybox: Option<&Path>) -> Result<Self> {
        let tree = root.join("files");
        for number in 0..FILES {
            let directory = tree.join((number / 50).to_string());
            fs::create_dir_all(&directory)?;
            let line = format!("def function_{number}(value): return value * {number} + {}\n", number * 7919);
            let size = SIZES[number % SIZES.len()];
            fs::write(directory.join(format!("{number}.py")), &line.repeat(size / line.len() + 1)[..size])?;
        }
        if let Some(busybox) = busybox {
            fs::create_dir(tree.join("bin"))?;
            fs::copy(busybox, tree.join("bin/busybox"))?;
            std::os::unix::fs::symlink("busybox", tree.join("bin/true"))?;
        }
        let blobs = root.join("layout/blobs/sha256");
        fs::create_dir_all(&blobs)?;
        bare(root, "tar -cf layer.tar -C files . && gzip -k layer.tar")?;
        let contents = Sha::of(&fs::read(root.join("layer.tar"))?);
        let put = |bytes: &[u8]| -> Result<(Sha, usize)> {
            let digest = Sha::of(bytes);
            fs::write(blobs.join(digest.digits()), bytes)?;
            Ok((digest, bytes.len()))
        };
        let (digest, size) = put(&fs::read(root.join("layer.tar.gz"))?)?;
        let config = json!({"rootfs": {"type": "layers", "diff_ids": [contents.to_string()]}}).to_string();
        let (config, _) = put(config.as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2, "config": {"digest": config.to_string()},
            "layers": [{"digest": digest.to_string(), "size": size}],
        });
        let (manifest, _) = put(manifest.to_string().as_bytes())?;
        let names = json!({"io.containerd.image.name": "docker.io/library/layer:1"});
        let index = json!({"manifests": [{"digest": manifest.to_string(), "annotations": names}]});
        fs::write(root.join("layout/index.json"), index.to_string())?;
        Ok(Self { root: root.to_owned(), digest: contents })
    }

    /// Loads the image into a store of its own. Returns the store for process sandboxes, and the image's name.
    pub(super) fn stored(&self) -> Result<(Images, &'static str)> {
        let store = ImageStore::open(&self.root.join("stored"), Options::default())?;
        store.load(&self.root.join("layout"), None, &mut |_| ())?;
        Ok((Images(Some(Arc::new(Stored(store)))), "layer:1"))
    }

    /// Measures `tar -x` until the files are on the disk.
    pub(super) fn by_tar(&self) -> Result<Duration> {
        fs::create_dir(self.root.join("out"))?;
        let time = bare(&self.root, "tar -xzf layer.tar.gz -C out && sync -f out")?;
        fs::remove_dir_all(self.root.join("out"))?;
        Ok(time)
    }

    /// Measures the image store until the image is usable: copied, verified, unpacked, and on the disk.
    pub(super) fn by_store(&self) -> Result<Duration> {
        let root = self.root.join("images");
        let store = ImageStore::open(&root, Options::default())?;
        let start = Instant::now();
        store.load(&self.root.join("layout"), None, &mut |_| ())?;
        let time = start.elapsed();
        let unpacked = root.join("layers").join(self.digest.digits()).join("fs/0/0.py");
        ensure!(File::open(unpacked)?.metadata()?.len() == SIZES[0] as u64, "a file is missing");
        store.remove("layer:1")?;
        Ok(time)
    }
}
