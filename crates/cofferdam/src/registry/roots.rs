//! Images of the image store as root file systems of process sandboxes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_image::store::StoreError;
use cofferdam_linux::beneath;
use cofferdam_process::RootImage;

use super::{ImageSettings, image_store};

/// The maximum size of an image's list of users.
const MAX_USERS: u64 = 1 << 20;

/// The image store of this user.
#[derive(Debug)]
pub(super) struct StoredRoots(pub ImageSettings);

impl cofferdam_process::ImageStore for StoredRoots {
    fn resolve(&self, reference: &str) -> Result<RootImage> {
        let missing = || StoreError::NotFound { name: reference.escape_debug().to_string() };
        let store = image_store::existing(&self.0)?.ok_or_else(|| failed(reference, missing()))?;
        let found = store.resolve(reference).map_err(|error| failed(reference, error))?;
        let user = user(&found.config.user, &found.layers)?;
        let working_dir = Some(found.config.working_dir).filter(|directory| !directory.is_empty());
        Ok(RootImage { layers: found.layers, env: found.config.env, working_dir, user, lease: Arc::new(found.lease) })
    }
}

/// Converts an error of the image store.
fn failed(reference: &str, error: StoreError) -> Error {
    error.into_contract("create").with_context("image", reference.escape_debug().to_string())
}

/// Returns user and group of an image, from numbers or the image's own lists. `None` for root, which no sandbox is.
fn user(text: &str, layers: &[PathBuf]) -> Result<Option<(u32, u32)>> {
    let (name, group) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
    let unknown = |what: &str, name: &str| {
        Error::new(ErrorKind::NotFound, "create", format!("the image has no {what} '{}'", name.escape_debug()))
            .with_remedy("its configuration names one that its /etc does not list: build the image again")
    };
    let (uid, own_group) = match (name, name.parse::<u32>()) {
        ("" | "root", _) => return Ok(None),
        (_, Ok(uid)) => (uid, None),
        (name, Err(_)) => {
            let line = entry(layers, "etc/passwd", name)?.ok_or_else(|| unknown("user", name))?;
            (number(&line, 2).ok_or_else(|| unknown("user", name))?, number(&line, 3))
        }
    };
    let gid = match group.map(|group| (group, group.parse::<u32>())) {
        None => own_group.unwrap_or(uid),
        Some((_, Ok(gid))) => gid,
        Some((group, Err(_))) => {
            let line = entry(layers, "etc/group", group)?.ok_or_else(|| unknown("group", group))?;
            number(&line, 2).ok_or_else(|| unknown("group", group))?
        }
    };
    let is_usable = |id: u32| id != 0 && id < u32::MAX;
    Ok(is_usable(uid).then_some((uid, if is_usable(gid) { gid } else { uid })))
}

fn number(line: &str, field: usize) -> Option<u32> {
    line.split(':').nth(field)?.parse().ok()
}

/// Returns the line of a name in a list of the uppermost layer that has it. Follows no link out of a layer.
fn entry(layers: &[PathBuf], list: &str, name: &str) -> Result<Option<String>> {
    for layer in layers.iter().rev() {
        let opened = cofferdam_linux::named::Directory::open(layer).and_then(|layer| {
            use std::os::fd::AsFd;
            beneath::open_plain(layer.as_fd(), Path::new(list))
        });
        let file = match opened {
            Ok(Ok(file)) => File::from(file),
            Ok(Err(_)) => return Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(Error::new(ErrorKind::Io, "create", "cannot read the image's users").with_source(error));
            }
        };
        let mut text = Vec::new();
        let read = file.take(MAX_USERS).read_to_end(&mut text);
        read.map_err(|error| Error::new(ErrorKind::Io, "create", "cannot read the image's users").with_source(error))?;
        let text = String::from_utf8_lossy(&text);
        let found = text.lines().find(|line| line.split(':').next() == Some(name));
        return Ok(found.map(str::to_owned));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_or_names_of_the_image() {
        let [low, high] = [0, 1].map(|_| tempfile::tempdir().unwrap());
        for layer in [&low, &high] {
            std::fs::create_dir(layer.path().join("etc")).unwrap();
        }
        std::fs::write(low.path().join("etc/passwd"), "root:x:0:0::/:/bin/sh\nold:x:7:8::/:/bin/sh\n").unwrap();
        std::fs::write(high.path().join("etc/passwd"), "root:x:0:0\napp:x:1001:1002::/:/bin/sh\nbad\n").unwrap();
        std::fs::write(low.path().join("etc/group"), "staff:x:50:\n").unwrap();
        let layers = [low.path().canonicalize().unwrap(), high.path().canonicalize().unwrap()];
        let user = |text| super::user(text, &layers).map_err(|error| error.kind());
        for (text, expected) in [
            ("", None),
            ("root", None),
            ("0:0", None),
            ("12", Some((12, 12))),
            ("12:0", Some((12, 12))),
            ("12:13", Some((12, 13))),
            ("app", Some((1001, 1002))),
            ("app:staff", Some((1001, 50))),
        ] {
            assert_eq!(user(text), Ok(expected), "{text}");
        }
        for text in ["old", "bad", "app:none", "4294967296"] {
            assert_eq!(user(text), Err(ErrorKind::NotFound), "{text}");
        }
        std::fs::remove_file(layers[1].join("etc/passwd")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", layers[1].join("etc/passwd")).unwrap();
        assert!(user("app").is_err(), "a link leads out of the layer");
    }
}
