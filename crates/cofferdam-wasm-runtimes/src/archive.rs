//! Extraction of files from archives whose hash was verified. Paths in an archive are still untrusted.

use std::fs::{self, File};
use std::io::{self as stdio, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::{Result, RuntimesError, io};

/// The maximum unpacked size of one file of an archive.
const MAX_BYTES: u64 = 512 * 1024 * 1024;

fn refused(archive: &Path, reason: impl Into<String>) -> RuntimesError {
    let name = archive.file_name().unwrap_or(archive.as_os_str());
    RuntimesError::BadArchive { archive: name.to_string_lossy().into_owned(), reason: reason.into() }
}

/// Returns the path if it is relative and has only normal components.
fn plain(path: &Path) -> Option<PathBuf> {
    let parts: Option<PathBuf> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => Some(Path::new(name)),
            _ => None,
        })
        .collect();
    parts.filter(|path| !path.as_os_str().is_empty())
}

/// Writes the one regular file `name` of a `.tar.gz` to `target`.
///
/// # Errors
///
/// [`RuntimesError::BadArchive`] if the archive is truncated, if it does not contain that file exactly once as a regular
/// file, or if any entry has a path that is absolute or leads upwards, or is a link or device.
pub fn unpack_tgz_file(archive: &Path, name: &str, target: &Path) -> Result<()> {
    let file = File::open(archive).map_err(io("open", archive))?;
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let broken = |error: stdio::Error| refused(archive, error.to_string());
    let mut found = false;
    for entry in tar.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        let Some(path) = plain(&path) else {
            return Err(refused(archive, format!("entry {} leads out of the archive", path.display())));
        };
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            continue;
        }
        if !kind.is_file() {
            return Err(refused(archive, format!("entry {} is not a regular file", path.display())));
        }
        if path == Path::new(name) {
            if found {
                return Err(refused(archive, format!("it contains {name} twice")));
            }
            copy(archive, &mut entry, target)?;
            found = true;
        }
    }
    if found { Ok(()) } else { Err(refused(archive, format!("it does not contain {name}"))) }
}

/// Unpacks the zip entries whose path `wanted` accepts into the directory `target`. The entry named `executable` is
/// made executable.
///
/// # Errors
///
/// [`RuntimesError::BadArchive`] as for [`unpack_tgz_file`].
pub fn unpack_zip_under(archive: &Path, target: &Path, executable: &str, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let file = File::open(archive).map_err(io("open", archive))?;
    let mut zip =
        zip::ZipArchive::new(stdio::BufReader::new(file)).map_err(|error| refused(archive, error.to_string()))?;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|error| refused(archive, error.to_string()))?;
        let name = entry.name().to_owned();
        let Some(path) = plain(Path::new(&name)).filter(|_| !name.contains('\\')) else {
            return Err(refused(archive, format!("entry {name} leads out of the archive")));
        };
        if entry.is_symlink() {
            return Err(refused(archive, format!("entry {name} is a link")));
        }
        if entry.is_dir() || !wanted(&name) {
            continue;
        }
        let path = target.join(path);
        let parent = path.parent().unwrap_or(target);
        fs::create_dir_all(parent).map_err(io("create", parent))?;
        copy(archive, &mut entry, &path)?;
        if name == executable {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            fs::set_permissions(&path, mode).map_err(io("make executable", &path))?;
        }
    }
    Ok(())
}

/// Copies an entry into a new file. An existing file or link is neither followed nor overwritten.
fn copy(archive: &Path, entry: &mut impl Read, target: &Path) -> Result<()> {
    let mut file = File::create_new(target).map_err(io("create", target))?;
    let mut buffer = vec![0; 128 * 1024];
    let mut total = 0;
    loop {
        let count = entry.read(&mut buffer).map_err(|error| refused(archive, error.to_string()))?;
        if count == 0 {
            return Ok(());
        }
        total += count as u64;
        if total > MAX_BYTES {
            return Err(refused(archive, format!("a file in it is larger than the limit of {MAX_BYTES} bytes")));
        }
        stdio::Write::write_all(&mut file, &buffer[..count]).map_err(io("write", target))?;
    }
}
