//! The inventory of a cache: named images, and entries without a name.

use super::error::Result;
use super::names::{self, Named};
use super::transfer::IMPORTED;
use super::{Image, Images, image, joint};

/// Maximum number of pairs of kernel and root file system that are searched for an image without a name.
const MAX_PAIRS: usize = 10_000;

/// A named image, as its manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Description of its source.
    pub about: String,
    /// Key of its content.
    pub key: String,
    /// Output of `uname -r` in its VMs; empty if unknown.
    pub release: String,
    /// Bytes of kernel, initramfs and disk; `None` if a file is missing, or its agent speaks another protocol version.
    pub bytes: Option<u64>,
}

/// A pair of kernel and root file system in the cache that no name refers to. An archive of a snapshot may still need
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unnamed {
    /// Key of the pair, by which archives refer to it.
    pub key: String,
    /// Key of the kernel; for an imported image, that of the image.
    pub kernel: String,
    /// Key of the root file system; for an imported image, that of the image.
    pub root: String,
    /// Output of `uname -r` in its VMs; empty if unknown.
    pub release: String,
    /// Bytes of both.
    pub bytes: u64,
}

/// The contents of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    /// Named images.
    pub named: Vec<Listed>,
    /// Possible images of which at least one part has no name.
    pub unnamed: Vec<Unnamed>,
    /// Kind, key and size of entries without a name: kernels, and disks with root file systems.
    pub nameless: Vec<(String, String, u64)>,
}

impl Images {
    /// Returns the image with this key, named or not: any kernel in the cache with any root file system.
    ///
    /// # Errors
    ///
    /// Those of the cache.
    pub fn by_key(&self, key: &str) -> Result<Option<Image>> {
        self.store.tidy();
        for (kernel, root) in self.pairs() {
            if joint(&kernel, &root) == key
                && let (Some(kernel), Some(root)) =
                    (self.store.open("kernel", &kernel)?, self.store.open("root", &root)?)
            {
                return Ok(Some(image(&kernel, &root)));
            }
        }
        self.imported(key)
    }

    /// Returns the description of the source of the image with this name; `None` if it does not exist.
    pub fn about(&self, name: &str) -> Option<String> {
        names::read(&self.store, name).ok().map(|named| named.about)
    }

    /// Returns the key of the image with this name. Reads nothing but the name.
    pub fn key_of(&self, name: &str) -> Option<String> {
        names::read(&self.store, name).ok().map(|named| named.key())
    }

    /// Returns the keys of all kernels in the cache, each with those of all root file systems; at most [`MAX_PAIRS`].
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let (kernels, roots): (Vec<_>, Vec<_>) =
            self.store.entries().into_iter().partition(|(kind, _)| kind == "kernel");
        let roots: Vec<String> = roots.into_iter().filter(|(kind, _)| kind == "root").map(|(_, key)| key).collect();
        let with_all = |(_, kernel): (String, String)| roots.iter().map(move |root| (kernel.clone(), root.clone()));
        kernels.into_iter().flat_map(with_all).take(MAX_PAIRS).collect()
    }

    /// Returns the contents, by manifests alone: no file is read or verified.
    pub fn inventory(&self) -> Inventory {
        let named: Vec<_> = names::all(&self.store);
        let used: Vec<&String> = named.iter().flat_map(|(_, named)| [&named.kernel, &named.root]).collect();
        let nameless = self.store.entries().into_iter().filter(|(_, key)| !used.contains(&key));
        let size = |kind: &str, key: &str| self.store.glance(kind, key).map_or(0, |(bytes, _)| bytes);
        let is_nameless = |(kernel, root): &(String, String)| !used.contains(&kernel) || !used.contains(&root);
        let pairs = self.pairs().into_iter().filter(is_nameless);
        let pairs = pairs.filter_map(|(kernel, root)| self.unnamed(kernel, root));
        let entries = self.store.entries().into_iter();
        let imported = entries.filter(|(kind, key)| kind == IMPORTED && !used.contains(&key));
        let imported = imported.filter_map(|(_, key)| {
            let (bytes, release) = self.store.glance(IMPORTED, &key)?;
            Some(Unnamed { kernel: key.clone(), root: key.clone(), key, release, bytes })
        });
        Inventory {
            unnamed: pairs.chain(imported).collect(),
            nameless: nameless.map(|(kind, key)| (kind.clone(), key.clone(), size(&kind, &key))).collect(),
            named: named.into_iter().map(|(name, named)| self.listed(name, named)).collect(),
        }
    }

    fn unnamed(&self, kernel: String, root: String) -> Option<Unnamed> {
        let ((kernel_bytes, release), (root_bytes, _)) =
            self.store.glance("kernel", &kernel).zip(self.store.glance("root", &root))?;
        Some(Unnamed { key: joint(&kernel, &root), release, bytes: kernel_bytes + root_bytes, kernel, root })
    }

    fn listed(&self, name: String, named: Named) -> Listed {
        let (compatible, key) = (named.is_compatible(), named.key());
        let glance = |kind: &str, key: &str| self.store.glance(kind, key);
        let (bytes, release) = if named.imported {
            glance(IMPORTED, &named.kernel).map_or((None, None), |(bytes, note)| (Some(bytes), Some(note)))
        } else {
            let (kernel, root) = (glance("kernel", &named.kernel), glance("root", &named.root));
            let release = kernel.as_ref().map(|(_, note)| note.clone());
            (kernel.zip(root).map(|((kernel, _), (root, _))| kernel + root), release)
        };
        Listed {
            name,
            about: named.about,
            key,
            release: release.unwrap_or_default(),
            bytes: bytes.filter(|_| compatible),
        }
    }
}
