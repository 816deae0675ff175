//! What is in a cache: images with names, and what no name stands for.

use super::carry::IMPORTED;
use super::names::{self, Named};
use super::{Image, Images, image, joint};
use crate::error::Result;

/// The most kernels with root file systems that are looked through for an image without a name.
const MAX_PAIRS: usize = 10_000;

/// An image that has a name, as far as its manifest tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it was made from.
    pub about: String,
    /// The key of its content.
    pub key: String,
    /// What `uname -r` says in such a machine; empty where nobody knows.
    pub release: String,
    /// Bytes of kernel, initramfs and disk; `None` where some of it is missing, or its agent speaks another version's protocol.
    pub bytes: Option<u64>,
}

/// A kernel and a root file system that are kept and that no name stands for together: what an archive of a snapshot may
/// need all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unnamed {
    /// The key of both, as archives name it.
    pub key: String,
    /// The kernel's own key; for an image that was imported, the image's.
    pub kernel: String,
    /// The root file system's own key; for an image that was imported, the image's.
    pub root: String,
    /// What `uname -r` says in such a machine; empty where nobody knows.
    pub release: String,
    /// Bytes of both.
    pub bytes: u64,
}

/// What is in a cache.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    /// Images with names.
    pub named: Vec<Listed>,
    /// Images that can be put together of what is there, of which some part has no name.
    pub unnamed: Vec<Unnamed>,
    /// Kinds, keys and bytes of what no name stands for: kernels, and disks with root file systems.
    pub nameless: Vec<(String, String, u64)>,
}

impl Images {
    /// The image with this key, whether it has a name or not: of what is kept, any kernel with any root file system.
    ///
    /// # Errors
    ///
    /// Those of the cache.
    pub fn kept(&self, key: &str) -> Result<Option<Image>> {
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

    /// Returns what the image of this name was made from, as it was described; `None` where there is none.
    pub fn about(&self, name: &str) -> Option<String> {
        names::read(&self.store, name).ok().map(|named| named.about)
    }

    /// The key of what has this name now: nothing but the name is read.
    pub fn key_of(&self, name: &str) -> Option<String> {
        names::read(&self.store, name).ok().map(|named| named.key())
    }

    /// Keys of all kernels that are kept, each with those of all root file systems; at most [`MAX_PAIRS`].
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let (kernels, roots): (Vec<_>, Vec<_>) =
            self.store.entries().into_iter().partition(|(kind, _)| kind == "kernel");
        let roots: Vec<String> = roots.into_iter().filter(|(kind, _)| kind == "root").map(|(_, key)| key).collect();
        let with_all = |(_, kernel): (String, String)| roots.iter().map(move |root| (kernel.clone(), root.clone()));
        kernels.into_iter().flat_map(with_all).take(MAX_PAIRS).collect()
    }

    /// What is there, by manifests alone: nothing is read or compared.
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
        let (understood, key) = (named.is_understood(), named.key());
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
            bytes: bytes.filter(|_| understood),
        }
    }
}
