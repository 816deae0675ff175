//! The resolved packages of a recipe, and the root file system from them.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cofferdam_util::sha256;

use super::apt::Apt;
use super::cache::{Cache, Lock};
use super::error::{DebianError, Result, io};
use super::merge::{self, FORMAT};
use super::package::Package;
use super::progress::Progress;
use super::recipe::Recipe;
use super::{reader, uris};

/// The packages of a root file system, each pinned by its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    packages: Vec<Package>,
    notes: Vec<String>,
    source: Source,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Archive {
        cache: Cache,
        lists: PathBuf,
        architecture: String,
    },
    /// Files in the order of the packages.
    Files(Vec<PathBuf>),
}

/// Resolves the packages of a recipe and all their dependencies against the archives of the host's sources. Downloads
/// package lists only.
///
/// If no archive can be reached, uses the previous lists or the host's, if they are less than a week old. A note
/// reports that.
///
/// # Errors
///
/// [`DebianError::MissingTool`] without apt, [`DebianError::NoArchive`], [`DebianError::UntrustedArchive`],
/// [`DebianError::Unresolvable`], and those of the cache.
pub fn resolve(recipe: &Recipe, cache: &Cache, progress: &mut dyn FnMut(Progress)) -> Result<Plan> {
    recipe.check()?;
    let lock = cache.lock(progress)?;
    let apt = Apt::new(&lock, recipe.architecture.as_deref())?;
    let lists = apt.update(progress)?;
    progress(Progress::Resolving);
    let mut notes: Vec<String> = lists.note.into_iter().collect();
    let mut packages = closure(&apt, &lists.directory, recipe, &mut notes)?;
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    let architecture = apt.architecture().to_owned();
    Ok(Plan { packages, notes, source: Source::Archive { cache: cache.clone(), lists: lists.directory, architecture } })
}

/// Returns all dependencies, with every optional package that is available.
fn closure(apt: &Apt<'_>, lists: &Path, recipe: &Recipe, notes: &mut Vec<String>) -> Result<Vec<Package>> {
    let mut requested = recipe.packages.clone();
    requested.extend_from_slice(&recipe.optional);
    match apt.closure(lists, &requested) {
        Err(DebianError::Unresolvable { .. }) if !recipe.optional.is_empty() => {}
        other => return other,
    }
    requested.truncate(recipe.packages.len());
    let mut found = apt.closure(lists, &requested)?;
    for name in &recipe.optional {
        requested.push(name.clone());
        match apt.closure(lists, &requested) {
            Ok(more) => found = more,
            Err(DebianError::Unresolvable { reason }) => {
                notes.push(format!("{name} was left out: {reason}"));
                requested.pop();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl Plan {
    /// Creates a plan from package files on this host. Dependencies are not resolved, and the caller vouches for the
    /// packages.
    ///
    /// # Errors
    ///
    /// [`DebianError::BadPackage`] if a file is not a package.
    pub fn from_files(files: &[PathBuf]) -> Result<Self> {
        let described: Result<Vec<_>> = files.iter().map(|path| Ok((described(path)?, path.clone()))).collect();
        let mut described = described?;
        described.sort_by(|(one, _), (other, _)| (&one.name, &one.sha256).cmp(&(&other.name, &other.sha256)));
        let (packages, files) = described.into_iter().unzip();
        Ok(Self { packages, notes: Vec::new(), source: Source::Files(files) })
    }

    /// Returns the plan with only some of its packages. Their dependencies may be missing from the result.
    #[must_use]
    pub fn only(mut self, mut keep: impl FnMut(&Package) -> bool) -> Self {
        let keeps: Vec<bool> = self.packages.iter().map(&mut keep).collect();
        let mut flags = keeps.iter();
        self.packages.retain(|_| flags.next().copied().unwrap_or(false));
        if let Source::Files(files) = &mut self.source {
            let mut flags = keeps.iter();
            files.retain(|_| flags.next().copied().unwrap_or(false));
        }
        self
    }

    /// Returns the packages, sorted by name.
    pub fn packages(&self) -> &[Package] {
        &self.packages
    }

    /// Returns notes for display: packages that were left out, and package lists that are not new.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the download size of all packages, in bytes.
    pub fn bytes(&self) -> u64 {
        self.packages.iter().map(|package| package.size).sum()
    }

    /// Returns an identifier of the content: the same key gives the same tar, byte by byte. Hexadecimal SHA-256.
    pub fn key(&self) -> String {
        let mut text = format!("cofferdam debian root {FORMAT}\n");
        for Package { name, version, architecture, sha256, .. } in &self.packages {
            text.push_str(&format!("{name} {version} {architecture} {sha256}\n"));
        }
        sha256::of(text)
    }

    /// Writes the root file system as a tar, downloading what is not in the cache. After an error, the output is
    /// unusable: it lacks the end of a tar.
    ///
    /// # Errors
    ///
    /// [`DebianError::FetchFailed`], [`DebianError::WrongHash`], [`DebianError::BadPackage`], those of the cache, and
    /// [`DebianError::Io`] and [`DebianError::NoSpace`] from writing.
    pub fn write_tar(&self, out: impl Write, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let files = self.open(progress)?;
        let packages: Vec<(&Package, File)> = self.packages.iter().zip(files).collect();
        merge::merge(&packages, out, progress)
    }

    /// Writes the tar to a file, which appears complete and atomically, or not at all.
    ///
    /// # Errors
    ///
    /// As [`Self::write_tar`].
    pub fn write_file(&self, path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The temporary name is constant, so that killed runs leave at most one file.
        let making = path.with_file_name(format!(".{name}.making"));
        let file = sole(&making)?;
        let created = file.set_len(0).map_err(io("write", &making)).and_then(|()| {
            let mut out = BufWriter::with_capacity(1 << 20, &file);
            self.write_tar(&mut out, progress)?;
            out.flush().and_then(|()| file.sync_all()).map_err(io("write", &making))?;
            fs::rename(&making, path).map_err(io("move into place", path))
        });
        if created.is_err() {
            // The file is unusable, and the original error is the one to report.
            let _ = fs::remove_file(&making);
        }
        created
    }

    /// Opens every package and verifies its hash.
    fn open(&self, progress: &mut dyn FnMut(Progress)) -> Result<Vec<File>> {
        match &self.source {
            Source::Files(files) => {
                self.packages.iter().zip(files).map(|(package, path)| open_file(package, path)).collect()
            }
            Source::Archive { cache, lists, architecture } => {
                let lock = cache.lock(progress)?;
                let mut files = self.cached(&lock, progress)?;
                if files.iter().any(Option::is_none) {
                    self.fetch(&lock, lists, architecture, &files, progress)?;
                    files = self.cached(&lock, progress)?;
                }
                lock.prune_old();
                let missing = |package: &Package| DebianError::FetchFailed {
                    reason: format!("{} vanished from the cache again: check its disk", package.name),
                };
                self.packages.iter().zip(files).map(|(package, file)| file.ok_or_else(|| missing(package))).collect()
            }
        }
    }

    fn cached(&self, lock: &Lock, progress: &mut dyn FnMut(Progress)) -> Result<Vec<Option<File>>> {
        let (mut done, total) = (0, self.bytes());
        let mut open = |package| {
            lock.open(package, |bytes| {
                done += bytes;
                progress(Progress::Checking { done: done.min(total), total });
            })
        };
        self.packages.iter().map(&mut open).collect()
    }

    /// Fetches missing packages, from the host's own apt or from the archive.
    fn fetch(
        &self,
        lock: &Lock,
        lists: &Path,
        architecture: &str,
        files: &[Option<File>],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let apt = Apt::new(lock, Some(architecture))?;
        let archives = apt.archives();
        let (present, missing): (Vec<_>, Vec<_>) =
            self.packages.iter().zip(files).partition(|(_, file)| file.is_some());
        for (package, _) in &present {
            lock.link_into(package, &archives)?;
        }
        let mut fetched: Vec<&Package> = Vec::new();
        for (package, _) in missing {
            if take(lock, package, &apt.host().archives().join(&package.file), &archives).is_ok() {
                lock.link_into(package, &archives)?;
            } else {
                fetched.push(package);
            }
        }
        if fetched.is_empty() {
            return Ok(());
        }
        let total = fetched.iter().map(|package| package.size).sum();
        progress(Progress::Fetching { done: 0, total });
        let result = apt.download(lists, &self.packages, |done| {
            progress(Progress::Fetching { done: done.min(total), total });
        });
        let mut wrong = Ok(());
        for package in fetched {
            let came = archives.join(&package.file);
            // apt does not copy packages from local archives.
            let local = package.uri.strip_prefix("file:").and_then(uris::unescape).map(PathBuf::from);
            let stored = match local {
                _ if came.exists() => lock.keep(package, &came),
                Some(local) => take(lock, package, &local, &archives),
                None => continue,
            };
            // All valid packages are stored before an error is reported.
            wrong = wrong.and(stored);
        }
        wrong.and(result)
    }
}

/// Opens the file exclusively. A file that was moved into place in the meantime is not touched.
fn sole(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let file = options.open(path).map_err(io("create", path))?;
    let busy = || io("lock", path)(std::io::Error::other("another process writes the same file; wait for it"));
    file.try_lock().map_err(|_| busy())?;
    let ours = file.metadata().map_err(io("inspect", path))?;
    let found = fs::symlink_metadata(path).map_err(|_| busy())?;
    if (ours.dev(), ours.ino()) == (found.dev(), found.ino()) { Ok(file) } else { Err(busy()) }
}

/// Copies a package from this host into the cache, if its hash is right.
fn take(lock: &Lock, package: &Package, from: &Path, archives: &Path) -> Result<()> {
    let copy = archives.join(format!("{}.copy", package.sha256));
    fs::copy(from, &copy).map_err(io("copy", from))?;
    lock.keep(package, &copy)
}

fn described(path: &Path) -> Result<Package> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(io("open", path))?;
    let mut size = 0;
    let sha256 = sha256::of_pieces(&file, |piece| {
        size += piece.len() as u64;
        Ok(())
    });
    let sha256 = sha256.map_err(io("read", path))?;
    let control = reader::control(&shown, &file)?;
    let field = |name| control.field(name).unwrap_or_default().to_owned();
    let (name, version, architecture) = (field("Package"), field("Version"), field("Architecture"));
    Ok(Package { name, version, architecture, size, sha256, file: String::new(), uri: String::new() })
}

fn open_file(package: &Package, path: &Path) -> Result<File> {
    let file = File::open(path).map_err(io("open", path))?;
    let found = sha256::of_reader(&file).map_err(io("read", path))?;
    if found != package.sha256 {
        let expected = package.sha256.clone();
        return Err(DebianError::WrongHash { package: path.display().to_string(), expected, found });
    }
    Ok(file)
}
