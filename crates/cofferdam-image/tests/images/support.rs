//! Layers, images and stores for tests.

use std::io::Write;
use std::path::{Path, PathBuf};

use cofferdam_image::store::{ImageStore, Options, Sha};
use serde_json::{Value, json};
use tar::{EntryType, Header};

pub const FILE: EntryType = EntryType::Regular;
pub const DIRECTORY: EntryType = EntryType::Directory;
pub const LINK: EntryType = EntryType::Symlink;
pub const SAME: EntryType = EntryType::Link;

/// An entry of a layer: kind, path, link, mode, contents.
pub type Item<'a> = (EntryType, &'a str, &'a str, u32, &'a [u8]);

/// A layer, and its compression.
pub type Packed = (Vec<u8>, fn(&[u8]) -> Vec<u8>);

pub fn layer(items: &[Item<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (kind, path, link, mode, data) in items {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_mtime(1_600_000_000);
        header.set_size(data.len() as u64);
        // Written by hand, because the library would refuse hostile names.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, *data).unwrap();
    }
    tar.into_inner().unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

pub fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// Returns bytes that no compression makes smaller.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

/// An OCI image layout in a temporary directory.
pub struct Layout(pub tempfile::TempDir);

impl Layout {
    pub fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("blobs/sha256")).unwrap();
        std::fs::write(temp.path().join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
        Self(temp)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Adds a file, and returns its digest and size.
    pub fn put(&self, bytes: &[u8]) -> (String, usize) {
        let digest = Sha::of(bytes);
        std::fs::write(self.path().join("blobs/sha256").join(digest.digits()), bytes).unwrap();
        (digest.to_string(), bytes.len())
    }

    /// Adds an image, and returns the digest of its manifest.
    pub fn image(&self, config: &Value, layers: &[Packed]) -> String {
        let contents: Vec<String> = layers.iter().map(|(tar, _)| Sha::of(tar).to_string()).collect();
        let packed = layers.iter().map(|(tar, pack)| {
            let (digest, size) = self.put(&pack(tar));
            json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size})
        });
        let packed: Vec<Value> = packed.collect();
        let config = json!({"os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": contents}});
        let (config, size) = self.put(config.to_string().as_bytes());
        let config = json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": size});
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": packed});
        self.put(manifest.to_string().as_bytes()).0
    }

    /// Names images in the index.
    pub fn index(&self, images: &[(&str, &str)]) {
        let manifests: Vec<Value> = images
            .iter()
            .map(|(digest, name)| json!({"digest": digest, "annotations": {"io.containerd.image.name": name}}))
            .collect();
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        std::fs::write(self.path().join("index.json"), index.to_string()).unwrap();
    }
}

/// Returns a layout with one image of these layers, named `test:1`.
pub fn layout(layers: &[Packed]) -> Layout {
    let layout = Layout::new();
    let digest = layout.image(&json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]}), layers);
    layout.index(&[(&digest, "docker.io/library/test:1")]);
    layout
}

/// A store in a temporary directory.
pub struct Fixture {
    temp: tempfile::TempDir,
    pub store: ImageStore,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = ImageStore::open(&temp.path().join("images"), options).unwrap();
        Self { temp, store }
    }

    pub fn root(&self) -> PathBuf {
        self.temp.path().join("images")
    }

    /// Returns the number of entries in a directory of the store.
    pub fn count(&self, name: &str) -> usize {
        std::fs::read_dir(self.root().join(name)).unwrap().count()
    }
}
