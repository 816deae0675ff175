//! Root file systems from Debian packages, for images.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_image::{Cache, DebianError, Plan, Recipe};

use super::{ImageProgress, ImageStep, cache_directory};

/// The default name of an image from Debian packages, which is also the image of containers whose specs name none.
pub const BASE_IMAGE: &str = "cofferdam/base:latest";
/// Time after which unused packages are removed.
const KEEP_PACKAGES: Duration = Duration::from_secs(30 * 24 * 3600);

/// The packages of a base image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BaseImage {
    /// True for only a shell and Python, instead of the usual tools and Node.
    pub tiny: bool,
    /// Additional packages.
    pub packages: Vec<String>,
}

pub(super) const OPERATION: &str = "build image";

fn no_cache() -> Error {
    Error::new(ErrorKind::Unavailable, OPERATION, "this user has no cache directory")
        .with_remedy("set HOME or XDG_CACHE_HOME")
}

/// A temporary file that is removed on drop.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // The file may not exist.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes a root file system as a tar.
pub(super) fn pack(base: &BaseImage, progress: &ImageProgress) -> Result<(Plan, Temporary)> {
    let mut recipe = if base.tiny { Recipe::tiny() } else { Recipe::base() };
    recipe.packages.extend(base.packages.iter().cloned());
    let directory = cache_directory("debian").ok_or_else(no_cache)?;
    let cache = Cache::new(&directory);
    let mut on_step =
        |step: cofferdam_image::debian::Progress| progress(ImageStep { what: step.to_string(), bytes: step.bytes() });
    let plan = cofferdam_image::resolve(&recipe, &cache, &mut on_step).map_err(failed)?;
    let tar = Temporary(directory.join(format!("root-{}-{}.tar", &plan.key()[..16], std::process::id())));
    plan.write_file(&tar.0, &mut on_step).map_err(failed)?;
    // Failing to remove old packages does not affect this image.
    let _ = cache.prune(KEEP_PACKAGES);
    Ok((plan, tar))
}

/// Converts an error. The second line of its text is the remedy.
fn failed(error: DebianError) -> Error {
    let text = error.to_string();
    let (what, remedy) = text.split_once('\n').unwrap_or((&text, ""));
    let kind = match &error {
        DebianError::InvalidName { .. } | DebianError::Unresolvable { .. } => ErrorKind::InvalidInput,
        DebianError::NoSpace { .. } => ErrorKind::ResourceExhausted,
        DebianError::UntrustedTool { .. } => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let converted = Error::new(kind, OPERATION, what.to_owned());
    if remedy.is_empty() { converted } else { converted.with_remedy(remedy.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "container")]
    #[test]
    fn containers_use_the_image_that_is_built_by_default() {
        assert_eq!(BASE_IMAGE, cofferdam_container::DEFAULT_IMAGE);
    }

    #[test]
    fn errors_of_apt_have_one_line_and_a_remedy() {
        let reason = || "W: no signature; E: Failed to fetch".to_owned();
        for error in [
            DebianError::NoArchive { reason: reason() },
            DebianError::UntrustedArchive { reason: reason() },
            DebianError::Unresolvable { reason: reason() },
            DebianError::FetchFailed { reason: reason() },
        ] {
            let converted = failed(error);
            let remedy = converted.remedy().expect("a remedy");
            assert!(converted.message().ends_with("E: Failed to fetch"), "{converted}");
            for text in [converted.message(), remedy] {
                assert!(!text.is_empty() && !text.contains('\n') && !text.contains("\\n"), "{text:?}");
            }
        }
    }
}
