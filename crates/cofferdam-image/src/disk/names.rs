//! Names of images: one small file for each, with the keys of the image's kernel and root in the cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use cofferdam_util::sha256;
use serde::{Deserialize, Serialize};

use super::error::{ImageError, Result, io};
use super::joint;
use super::store::{Lock, Store, read_small};

/// Prefix of the files of names.
const PREFIX: &str = "name-";
const MAX_NAME: usize = 64;
/// Maximum length of a stored description.
const MAX_ABOUT: usize = 500;

/// The image that a name refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub kernel: String,
    /// For an imported image, the same as `kernel`: the key of the image.
    pub root: String,
    /// True if the image was imported from a file, and is one entry rather than two.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// Description of its source, for display.
    pub about: String,
    /// Protocol version of its agent; 0 if it was not recorded.
    #[serde(default)]
    pub protocol: u32,
}

impl Named {
    /// Creates the name of an imported image from its key.
    pub(crate) fn imported(key: &str, about: &str, protocol: u32) -> Self {
        let (kernel, root) = (key.to_owned(), key.to_owned());
        Self { kernel, root, imported: true, about: about.to_owned(), protocol }
    }

    /// Returns the key of the image.
    pub(crate) fn key(&self) -> String {
        if self.imported { self.kernel.clone() } else { joint(&self.kernel, &self.root) }
    }

    /// Returns true if this program speaks the protocol version of its agent.
    pub(crate) fn is_compatible(&self) -> bool {
        self.protocol == cofferdam_guest::PROTOCOL
    }
}

/// Returns true if a text is a valid image name: letters, digits, `.`, `_` and `-`, at most 64, starting with a letter
/// or digit.
pub fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    name.len() <= MAX_NAME && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain)
}

fn path_of(store: &Store, name: &str) -> Result<PathBuf> {
    if is_name(name) {
        return Ok(store.root().join(format!("{PREFIX}{name}")));
    }
    let what = format!("{name:?} is not a valid image name: use letters, digits, '.', '_' and '-', at most {MAX_NAME}");
    Err(ImageError::InvalidSource { what })
}

/// Reads the image that a name refers to.
pub(crate) fn read(store: &Store, name: &str) -> Result<Named> {
    let none = || ImageError::UnknownName { name: name.to_owned() };
    if !is_name(name) {
        return Err(none());
    }
    let text = read_small(&path_of(store, name)?).map_err(|_| none())?;
    let named: Named = serde_json::from_slice(&text).map_err(|_| none())?;
    if sha256::is_digest(&named.kernel) && sha256::is_digest(&named.root) { Ok(named) } else { Err(none()) }
}

/// Writes a name, and replaces an existing one.
pub(crate) fn write(store: &Store, lock: &Lock, name: &str, named: &Named) -> Result<()> {
    let about: String = named.about.chars().filter(|c| !c.is_control()).take(MAX_ABOUT).collect();
    let text = serde_json::to_vec(&Named { about, ..named.clone() }).unwrap_or_default();
    lock.replace(&path_of(store, name)?, &text)
}

/// Removes a name.
pub(crate) fn remove(store: &Store, _: &Lock, name: &str) -> Result<()> {
    read(store, name)?;
    let path = path_of(store, name)?;
    fs::remove_file(&path).map_err(io("remove", path))
}

/// Returns all names with their images, in order.
pub(crate) fn all(store: &Store) -> Vec<(String, Named)> {
    let entries = fs::read_dir(store.root()).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_prefix(PREFIX)?.to_owned());
    let names: BTreeSet<String> = entries.filter_map(name).collect();
    names.into_iter().filter_map(|name| read(store, &name).ok().map(|named| (name, named))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::store::key;
    use super::*;

    /// Promise (Virtual machines): Images have names, which can be set and removed.
    #[test]
    fn a_name_is_given_read_and_taken_away() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::new(temp.path().join("cache"));
        let named = Named {
            kernel: key(&[b"k"]),
            root: key(&[b"r"]),
            imported: false,
            about: "a\u{1b}b".to_owned(),
            protocol: 7,
        };
        let lock = store.lock(&mut |_| ()).unwrap();
        for name in ["default", "a.b-c_1"] {
            write(&store, &lock, name, &named).unwrap();
            assert_eq!(read(&store, name).unwrap(), Named { about: "ab".to_owned(), ..named.clone() });
        }
        assert_eq!(all(&store).len(), 2);
        remove(&store, &lock, "default").unwrap();
        assert!(matches!(read(&store, "default"), Err(ImageError::UnknownName { .. })));
        assert!(matches!(remove(&store, &lock, "default"), Err(ImageError::UnknownName { .. })));
        for bad in ["", "../x", "-a", "a/b", &"x".repeat(65), ".x"] {
            assert!(write(&store, &lock, bad, &named).is_err() && read(&store, bad).is_err(), "{bad}");
        }
        for rubbish in ["", "{}", "{\"kernel\":\"../x\",\"root\":\"y\",\"about\":\"\"}"] {
            fs::write(temp.path().join("cache/name-odd"), rubbish).unwrap();
            assert!(read(&store, "odd").is_err(), "{rubbish}");
        }
    }
}
