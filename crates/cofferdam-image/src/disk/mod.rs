//! Images: a kernel, its initial file system, and a root file system on a disk.
//!
//! ```text
//! Debian's packages, files, a directory or a tar --Images::make--> cache: kernel-KEY/, root-KEY/ --> Image
//! ```
//!
//! An image is built as an ordinary user, from inputs that determine its key, and the build is reproducible. It is
//! built once for all VMs, which only read it. Nothing in it is executed here.

mod cpio;
mod error;
mod initramfs;
mod inventory;
mod kernel;
mod names;
mod oci;
mod root;
mod store;
mod transfer;
#[cfg(test)]
mod transfer_tests;

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_contract::ByteSize;
use cofferdam_linux::named::{self, Directory, UntrustedLink};
use cofferdam_util::sha256;

use crate::debian::{self, Cache, Plan, Recipe, resolve};
use crate::layer::pack::pack;
use crate::layer::stream::Hashed;
use crate::layer::tree::Needs;
pub use cofferdam_tree::{TreeError, ext4, tool};
pub use error::{ImageError, archive_kind, io_kind, io_remedy};
use error::{Result, io};
pub use inventory::{Inventory, Listed, Unnamed};
use kernel::Kernel;
use names::Named;
pub use names::is_name;
use oci::Layout;
use store::{Entry, Lock, Store};
pub use transfer::{ExportOptions, Exported, IMAGE_DOCUMENT, ImportOptions, Imported, SNAPSHOT_DOCUMENT, Taken};

/// Format version. Incremented when the same inputs give other bytes.
const FORMAT: &[u8] = b"3";
const KERNEL: &str = "vmlinuz";
const INITRAMFS: &str = "initramfs";
const ROOT: &str = "root.ext4";
/// Debian's smallest kernel for VMs.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Prefix of the names of packages that contain a kernel.
const PACKAGES: &str = "linux-image-";

/// The source of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelSource {
    /// A Debian package, such as `linux-image-cloud-amd64`.
    Debian {
        /// Its name.
        package: String,
    },
    /// Files of this host.
    Files {
        /// The kernel.
        image: PathBuf,
        /// Modules that it needs for virtio and ext4, in loading order.
        modules: Vec<PathBuf>,
    },
}

impl Default for KernelSource {
    fn default() -> Self {
        Self::Debian { package: PACKAGE.to_owned() }
    }
}

/// The source of a root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// Debian packages.
    Debian(Recipe),
    /// A directory of this host. Links are copied as links; sockets, fifos and devices are omitted.
    Directory(PathBuf),
    /// An uncompressed tar.
    Tar(PathBuf),
    /// A container image: a directory or an uncompressed tar with an OCI image layout, or the output of `docker save`.
    /// It contains one image for this architecture.
    Oci(PathBuf),
    /// An image of a store of container images.
    Stored {
        /// The directory of the store.
        store: PathBuf,
        /// The image: a name or a digest.
        image: String,
    },
}

impl RootSource {
    /// Detects the kind of a path on this host: a directory or tar with an image layout is an image, whatever else it
    /// contains.
    ///
    /// # Errors
    ///
    /// Those of the operating system, and [`ImageError::InvalidSource`] for a device or a pipe, which may be endless.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let file = named::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput if UntrustedLink::of(&error).is_none() => {
                ImageError::InvalidSource { what: format!("{path:?} is neither a directory nor a regular file") }
            }
            _ => io("open", &path)(error),
        })?;
        let found = file.metadata().map_err(io("inspect", &path))?;
        Ok(match (oci::is_layout(file, &path), found.is_dir()) {
            (true, _) => Self::Oci(path),
            (false, true) => Self::Directory(path),
            (false, false) => Self::Tar(path),
        })
    }
}

impl Default for RootSource {
    fn default() -> Self {
        Self::Debian(Recipe::base())
    }
}

/// The source of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The kernel.
    pub kernel: KernelSource,
    /// The root file system.
    pub root: RootSource,
    /// Maximum size of the disk.
    pub max_size: ByteSize,
    /// Device and inode of the root's directory when the caller named it; another directory is refused.
    pub recorded: Option<(u64, u64)>,
}

impl Default for Source {
    fn default() -> Self {
        let max_size = ByteSize::from_mebibytes(8192);
        Self { kernel: KernelSource::default(), root: RootSource::default(), max_size, recorded: None }
    }
}

/// The files that a VM boots from. They are never modified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The kernel's initial file system.
    pub initramfs: PathBuf,
    /// The disk with the root file system.
    pub root: PathBuf,
    /// Output of `uname -r` in its VMs; empty if unknown.
    pub release: String,
    /// Key of the content of all three.
    pub key: String,
}

/// A step of building an image.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Waits for another process that uses the same cache.
    Waiting,
    /// Verifies hashes in the cache.
    Checking,
    /// Downloads and packs packages.
    Packages(debian::Progress),
    /// Packs the kernel and its modules.
    Kernel,
    /// Unpacks the root file system.
    Unpacking,
    /// Writes the disk.
    Disk,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting for another process that uses the same cache",
            Self::Checking => "checking the image",
            Self::Packages(step) => return write!(f, "{step}"),
            Self::Kernel => "packing the kernel",
            Self::Unpacking => "unpacking the root file system",
            Self::Disk => "writing the disk",
        })
    }
}

/// The treatment of a part from packages that was not built yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refuse,
    Build,
}

/// A store of images in a directory of the caller. Several processes may share it.
#[derive(Debug, Clone)]
pub struct Images {
    store: Store,
    packages: Cache,
}

impl Images {
    /// Creates a store in `directory`, which is created when it is first needed, with a cache of packages.
    pub fn new(directory: impl Into<PathBuf>, packages: Cache) -> Self {
        Self { store: Store::new(directory), packages }
    }

    /// Returns the image that was built last for this source. Resolves no packages. A directory or a tar is read each
    /// time, and an image of it is built if it is missing.
    ///
    /// # Errors
    ///
    /// [`ImageError::NotBuilt`] if packages are needed, and the errors of [`Self::make`].
    pub fn find(&self, source: &Source, progress: &mut dyn FnMut(Progress)) -> Result<Image> {
        self.found(source, Missing::Refuse, progress)
    }

    /// Returns the image that was built last for this source, or builds it. Packages are resolved only for missing
    /// parts. A directory or a tar is read each time.
    ///
    /// # Errors
    ///
    /// Those of [`Self::make`].
    pub fn find_or_make(&self, source: &Source, progress: &mut dyn FnMut(Progress)) -> Result<Image> {
        self.found(source, Missing::Build, progress)
    }

    fn found(&self, source: &Source, missing: Missing, progress: &mut dyn FnMut(Progress)) -> Result<Image> {
        self.store.tidy();
        let root = match (&source.root, self.last("root", &origin_of_root(source))?) {
            (RootSource::Debian(_), Some(root)) => root,
            (RootSource::Debian(_), None) if missing == Missing::Refuse => return Err(ImageError::NotBuilt),
            _ => self.root(source, progress)?,
        };
        let kernel = match (&source.kernel, self.last("kernel", &origin_of_kernel(source))?) {
            (KernelSource::Debian { .. }, Some(kernel)) => kernel,
            (KernelSource::Debian { .. }, None) if missing == Missing::Refuse => return Err(ImageError::NotBuilt),
            _ => self.kernel(source, progress)?,
        };
        Ok(image(&kernel, &root))
    }

    /// Builds an image as [`Self::make`] does, and names it. An image that had the name loses it.
    ///
    /// # Errors
    ///
    /// As [`Self::make`]; [`ImageError::InvalidSource`] for an invalid name.
    pub fn make_named(
        &self,
        name: &str,
        about: &str,
        source: &Source,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Image> {
        if !is_name(name) {
            return Err(ImageError::InvalidSource { what: format!("{name:?} is not a valid image name") });
        }
        // The client's own files come first, because they may be invalid: the rest may take minutes.
        let (root, kernel) = (self.root(source, progress)?, self.kernel(source, progress)?);
        let lock = self.store.lock(progress)?;
        let protocol = cofferdam_guest::PROTOCOL;
        let about = about.to_owned();
        let named = Named { kernel: kernel.key.clone(), root: root.key.clone(), imported: false, about, protocol };
        names::write(&self.store, &lock, name, &named)?;
        Ok(image(&kernel, &root))
    }

    /// Returns true if an image has this name, without verifying it.
    pub fn has_name(&self, name: &str) -> bool {
        is_name(name) && names::read(&self.store, name).is_ok()
    }

    /// Returns the image with this name, verified by its hashes.
    ///
    /// # Errors
    ///
    /// [`ImageError::UnknownName`] if it does not exist or is damaged; [`ImageError::Incompatible`] if another version
    /// of this program built it, and its agent speaks another protocol version.
    pub fn named(&self, name: &str) -> Result<Image> {
        self.store.tidy();
        match names::read(&self.store, name)? {
            named if named.is_compatible() => self.opened(name, &named),
            _ => Err(ImageError::Incompatible { name: name.to_owned() }),
        }
    }

    /// Returns the image with this name for a VM whose agent already runs, so that the image's own agent does not
    /// matter.
    ///
    /// # Errors
    ///
    /// [`ImageError::UnknownName`] if it does not exist or is damaged.
    pub fn named_for_restore(&self, name: &str) -> Result<Image> {
        self.store.tidy();
        self.opened(name, &names::read(&self.store, name)?)
    }

    fn opened(&self, name: &str, named: &Named) -> Result<Image> {
        if named.imported {
            let image = self.imported(&named.kernel)?;
            return image.ok_or_else(|| ImageError::UnknownName { name: name.to_owned() });
        }
        let parts = (self.store.open("kernel", &named.kernel)?, self.store.open("root", &named.root)?);
        match parts {
            (Some(kernel), Some(root)) => Ok(image(&kernel, &root)),
            _ => Err(ImageError::UnknownName { name: name.to_owned() }),
        }
    }

    /// Returns true if an image was built for this source, by manifests alone.
    pub fn seems_built(&self, source: &Source) -> bool {
        let exists =
            |kind, origin: &str| self.store.peek(origin).is_some_and(|key| self.store.glance(kind, &key).is_some());
        exists("kernel", &origin_of_kernel(source)) && exists("root", &origin_of_root(source))
    }

    /// Removes a name. The next [`Self::prune`] removes its image, even if it was used recently, unless the image has
    /// another name.
    ///
    /// # Errors
    ///
    /// [`ImageError::UnknownName`], and those of the cache.
    pub fn forget(&self, name: &str, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let lock = self.store.lock(progress)?;
        let Named { kernel, root, .. } = names::read(&self.store, name)?;
        names::remove(&self.store, &lock, name)?;
        let others: Vec<String> =
            names::all(&self.store).into_iter().flat_map(|(_, named)| [named.kernel, named.root]).collect();
        let free: Vec<String> = [kernel, root].into_iter().filter(|key| !others.contains(key)).collect();
        lock.disown(&free)
    }

    /// Removes images without a name that were not used within `age`, and returns the bytes that this frees. Running
    /// VMs are not affected.
    ///
    /// # Errors
    ///
    /// Those of the cache.
    pub fn prune(&self, age: Duration, progress: &mut dyn FnMut(Progress)) -> Result<u64> {
        self.store.prune(age, progress)
    }

    /// Returns the entry that was built last for an origin, if it exists and is undamaged.
    fn last(&self, kind: &str, origin: &str) -> Result<Option<Entry>> {
        self.store.last(origin).map_or(Ok(None), |key| self.store.open(kind, &key))
    }

    /// Builds the missing parts of an image. Packages are resolved again, so that a newer kernel gives another image.
    ///
    /// # Errors
    ///
    /// [`ImageError`], each with a remedy. The cache is consistent after any error.
    pub fn make(&self, source: &Source, progress: &mut dyn FnMut(Progress)) -> Result<Image> {
        let kernel = self.kernel(source, progress)?;
        let root = self.root(source, progress)?;
        Ok(image(&kernel, &root))
    }

    fn kernel(&self, source: &Source, progress: &mut dyn FnMut(Progress)) -> Result<Entry> {
        let origin = origin_of_kernel(source);
        let own: [&[u8]; 3] = [FORMAT, initramfs::INIT, cofferdam_guest::AGENT];
        match &source.kernel {
            KernelSource::Files { image, modules } => {
                progress(Progress::Kernel);
                let kernel = kernel::from_files(image, modules)?;
                let mut parts = own.to_vec();
                parts.push(&kernel.image);
                parts.extend(kernel.modules.iter().flat_map(|module| [module.name.as_bytes(), &module.contents]));
                let key = store::key(&parts);
                self.entry("kernel", &key, &origin, progress, |_, _| Ok(kernel.clone()), put_kernel)
            }
            KernelSource::Debian { package } => {
                let recipe = Recipe::new([package.as_str()]);
                let plan = resolve(&recipe, &self.packages, &mut |step| progress(Progress::Packages(step)))?;
                let plan = plan.only(|found| found.name.starts_with(PACKAGES));
                let key = store::key(&[own[0], own[1], own[2], plan.key().as_bytes()]);
                let read = |lock: &Lock, progress: &mut dyn FnMut(Progress)| {
                    let (scratch, tar) = packages_tar(lock, &plan, progress)?;
                    progress(Progress::Kernel);
                    let kernel = kernel::from_tar(BufReader::new(tar));
                    drop(scratch);
                    kernel
                };
                self.entry("kernel", &key, &origin, progress, read, put_kernel)
            }
        }
    }

    fn root(&self, source: &Source, progress: &mut dyn FnMut(Progress)) -> Result<Entry> {
        let origin = origin_of_root(source);
        let (tool, max) = (ext4::version()?, source.max_size.as_bytes());
        let common = [FORMAT, tool.as_bytes()];
        let put = |tar: File, lock: &Lock, into: &Path, progress: &mut dyn FnMut(Progress)| {
            put_root(&tar, lock, into, max, progress).map(|()| String::new())
        };
        match &source.root {
            RootSource::Debian(recipe) => {
                let plan = resolve(recipe, &self.packages, &mut |step| progress(Progress::Packages(step)))?;
                let key = store::key(&[common[0], common[1], plan.key().as_bytes()]);
                let read = |lock: &Lock, progress: &mut dyn FnMut(Progress)| {
                    packages_tar(lock, &plan, progress).map(|(_, tar)| tar)
                };
                self.entry("root", &key, &origin, progress, read, put)
            }
            RootSource::Tar(path) => {
                progress(Progress::Checking);
                let mut file = named::read(path).map_err(io("open", path))?;
                let hash = sha256::of_reader(&file).map_err(io("read", path))?;
                file.seek(SeekFrom::Start(0)).map_err(io("read", path))?;
                let key = store::key(&[common[0], common[1], hash.as_bytes()]);
                let put = |tar: File, lock: &Lock, into: &Path, progress: &mut dyn FnMut(Progress)| {
                    put_hashed(&tar, &hash, lock, into, max, progress).map(|()| String::new())
                };
                self.entry("root", &key, &origin, progress, |_, _| Ok(file), put)
            }
            RootSource::Oci(path) => {
                progress(Progress::Checking);
                self.layers(oci::read(path)?, common, &origin, max, progress)
            }
            RootSource::Stored { store, image } => {
                progress(Progress::Checking);
                self.layers(oci::stored(store, image)?, common, &origin, max, progress)
            }
            RootSource::Directory(path) => {
                progress(Progress::Checking);
                let mut tar = tempfile::tempfile().map_err(io("create a temporary file in", std::env::temp_dir()))?;
                let mut out = BufWriter::with_capacity(1 << 20, &tar);
                let directory = Directory::open(path).map_err(io("open", path))?;
                if source.recorded.is_some_and(|recorded| recorded != directory.identity()) {
                    return Err(ImageError::DirectoryReplaced { path: path.clone() });
                }
                pack(&directory, &mut out)?;
                out.flush().map_err(io("write a tar of", path))?;
                drop(out);
                tar.seek(SeekFrom::Start(0)).map_err(io("read a tar of", path))?;
                let hash = sha256::of_reader(&tar).map_err(io("read a tar of", path))?;
                tar.seek(SeekFrom::Start(0)).map_err(io("read a tar of", path))?;
                let key = store::key(&[common[0], common[1], hash.as_bytes()]);
                let copy = |_: &Lock, _: &mut dyn FnMut(Progress)| tar.try_clone().map_err(io("copy a tar of", path));
                self.entry("root", &key, &origin, progress, copy, put)
            }
        }
    }

    /// Returns the root file system of a container image.
    fn layers(
        &self,
        layout: Layout,
        common: [&[u8]; 2],
        origin: &str,
        max: u64,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Entry> {
        let key = store::key(&[common[0], common[1], b"oci", layout.identity().as_bytes()]);
        let put = |layout: Layout, lock: &Lock, into: &Path, progress: &mut dyn FnMut(Progress)| {
            put_layers(&layout, lock, into, max, progress).map(|()| String::new())
        };
        self.entry("root", &key, origin, progress, |_, _| Ok(layout), put)
    }

    /// Returns the entry with this key, or creates it with `read` and `put`.
    fn entry<T>(
        &self,
        kind: &str,
        key: &str,
        origin: &str,
        progress: &mut dyn FnMut(Progress),
        read: impl FnOnce(&Lock, &mut dyn FnMut(Progress)) -> Result<T>,
        put: impl FnOnce(T, &Lock, &Path, &mut dyn FnMut(Progress)) -> Result<String>,
    ) -> Result<Entry> {
        let lock = self.store.lock(progress)?;
        progress(Progress::Checking);
        let entry = match self.store.open(kind, key)? {
            Some(entry) => entry,
            None => {
                let scratch = lock.scratch()?;
                let into = scratch.path().join("made");
                fs::create_dir(&into).map_err(io("create", &into))?;
                let found = read(&lock, progress)?;
                let note = put(found, &lock, &into, progress)?;
                lock.keep(kind, key, &into, &note)?
            }
        };
        lock.remember(origin, key)?;
        Ok(entry)
    }
}

fn image(kernel: &Entry, root: &Entry) -> Image {
    Image {
        kernel: kernel.directory.join(KERNEL),
        initramfs: kernel.directory.join(INITRAMFS),
        root: root.directory.join(ROOT),
        release: kernel.note.clone(),
        key: joint(&kernel.key, &root.key),
    }
}

/// Returns the key of an image with this kernel and this root file system.
fn joint(kernel: &str, root: &str) -> String {
    store::key(&[kernel.as_bytes(), root.as_bytes()])
}

/// Returns a key for the source of a kernel, and for the programs that are packed with it.
fn origin_of_kernel(source: &Source) -> String {
    let text = format!("{:?}", source.kernel);
    store::key(&[b"kernel", FORMAT, text.as_bytes(), initramfs::INIT, cofferdam_guest::AGENT])
}

fn origin_of_root(source: &Source) -> String {
    let text = format!("{:?} {}", source.root, source.max_size.as_bytes());
    store::key(&[b"root", FORMAT, text.as_bytes()])
}

/// Writes the contents of packages as a tar, which is removed with the returned directory.
fn packages_tar(lock: &Lock, plan: &Plan, progress: &mut dyn FnMut(Progress)) -> Result<(tempfile::TempDir, File)> {
    let scratch = lock.scratch()?;
    let path = scratch.path().join("packages.tar");
    plan.write_file(&path, &mut |step| progress(Progress::Packages(step)))?;
    let tar = File::open(&path).map_err(io("open", &path))?;
    Ok((scratch, tar))
}

fn put_kernel(kernel: Kernel, _: &Lock, into: &Path, _: &mut dyn FnMut(Progress)) -> Result<String> {
    let write = |name: &str, bytes: &[u8]| {
        let path = into.join(name);
        fs::write(&path, bytes).map_err(io("write", path))
    };
    write(KERNEL, &kernel.image)?;
    let packed = initramfs::pack(&kernel.modules).map_err(io("pack", into.join(INITRAMFS)))?;
    write(INITRAMFS, &packed)?;
    Ok(kernel.release)
}

fn put_root(tar: &File, lock: &Lock, into: &Path, max: u64, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    put_tree(lock, into, max, progress, |tree| root::unpack(BufReader::with_capacity(1 << 20, tar), tree, max))
}

/// Does the same as [`put_root`] for a tar that may change during the read: its contents must match the hash in the
/// entry's key.
fn put_hashed(
    tar: &File,
    hash: &str,
    lock: &Lock,
    into: &Path,
    max: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    put_tree(lock, into, max, progress, |tree| {
        let mut left = u64::MAX;
        let mut hashed = Hashed::new(tar, &mut left);
        let needs = root::unpack(BufReader::with_capacity(1 << 20, &mut hashed), tree, max)?;
        match hashed.finish() {
            Ok(found) if found == hash => Ok(needs),
            _ => Err(ImageError::InvalidSource { what: "the tar was changed while it was read".to_owned() }),
        }
    })
}

fn put_layers(layout: &Layout, lock: &Lock, into: &Path, max: u64, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    put_tree(lock, into, max, progress, |tree| layout.unpack(tree, max))
}

fn put_tree(
    lock: &Lock,
    into: &Path,
    max: u64,
    progress: &mut dyn FnMut(Progress),
    unpack: impl FnOnce(&Path) -> Result<Needs>,
) -> Result<()> {
    let scratch = lock.scratch()?;
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).map_err(io("create", &tree))?;
    progress(Progress::Unpacking);
    let unpacked = unpack(&tree).and_then(|needs| {
        progress(Progress::Disk);
        ext4::check_size(needs, max)?;
        Ok(ext4::make(&tree, &into.join(ROOT), needs)?)
    });
    // Otherwise directories without write permission could not be removed.
    store::make_removable(&tree);
    unpacked
}

#[cfg(test)]
mod tests;
