//! A builder of images, killed at each of its steps: the next start has the complete image, or builds it, and nothing
//! else is left.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cofferdam_image::{Cache, Images, KernelSource, Progress, RootSource, Source};

use super::{Fixture, Supervisor, at, census, directory_of, millis, moments};

const PART: &str = "builder";
const TEST: &str = "kill::images::builder";
const NAME: &str = "mine";

fn images(temp: &Path) -> Images {
    Images::new(temp.join("images"), Cache::new(temp.join("packages")))
}

fn source(temp: &Path, root: &str) -> Source {
    let kernel = KernelSource::Files { image: temp.join("kernel"), modules: Vec::new() };
    Source { kernel, root: RootSource::Directory(temp.join(root)), ..Source::default() }
}

/// The process that [`image_of_a_killed_build_is_complete_or_missing`] kills; not a test of its own.
#[test]
fn builder() {
    let Some(temp) = directory_of(PART) else { return };
    let mut count = 0;
    let mut report = |step: Progress| {
        count += usize::from(counts(&step));
        at(&count.to_string());
        println!("{step}");
    };
    images(&temp).make_named(NAME, "a test", &source(&temp, "root"), &mut report).unwrap();
    at("end");
    // The kill may be late.
    std::thread::sleep(Duration::from_secs(3600));
}

/// Returns true for a step of each build. A build also waits for the store's lock if a process that another test starts
/// has inherited it and does not run its program yet.
fn counts(step: &Progress) -> bool {
    !matches!(step, Progress::Waiting)
}

/// Creates files of some size, and a directory without write permission.
fn sample(root: &Path) {
    std::fs::create_dir_all(root.join("closed")).unwrap();
    for number in 0..400 {
        std::fs::write(root.join(format!("file{number}")), vec![number as u8; 20_000]).unwrap();
    }
    std::fs::write(root.join("closed/file"), "x").unwrap();
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o500);
    std::fs::set_permissions(root.join("closed"), closed).unwrap();
}

/// Returns the cache's files after an undisturbed build, and its number of steps.
fn undisturbed(temp: &Fixture) -> (BTreeSet<PathBuf>, usize) {
    let mut steps = 0;
    let built = images(temp.path()).make_named(NAME, "a test", &source(temp.path(), "root"), &mut |step| {
        steps += usize::from(counts(&step));
    });
    built.unwrap();
    (census::files(&temp.path().join("images")), steps)
}

/// Promise (Virtual machines): An image whose build is killed is complete or absent.
#[test]
fn image_of_a_killed_build_is_complete_or_missing() {
    let test = "image_of_a_killed_build_is_complete_or_missing";
    if Command::new("mkfs.ext4").arg("-V").output().is_err() && !Path::new("/usr/sbin/mkfs.ext4").exists() {
        println!("SKIP {test}: no mkfs.ext4 (package e2fsprogs)");
        return;
    }
    let mut random = moments(test);
    let temp = Fixture::new();
    std::fs::write(temp.path().join("kernel"), "no kernel").unwrap();
    sample(&temp.path().join("root"));
    std::fs::create_dir(temp.path().join("other")).unwrap();
    let cache = temp.path().join("images");
    let (whole, steps) = undisturbed(&temp);
    for step in 1..=steps {
        for within in [1, 40] {
            std::fs::remove_dir_all(&cache).unwrap();
            let mut builder = Supervisor::start(TEST, PART, temp.path(), "");
            builder.reach(&step.to_string());
            let after = millis(&mut random, within);
            println!("at step {step}, after {after:?}");
            builder.kill(after);
            let names = census::files(&cache);
            match images(temp.path()).named(NAME) {
                Ok(_) => assert_eq!(names, whole),
                Err(error) => assert!(error.to_string().contains(NAME), "{error}"),
            }
            // The next start removes all temporary files, whether it builds an image or not.
            let names = census::files(&cache);
            let more: Vec<_> = names.difference(&whole).collect();
            assert!(more.is_empty(), "{} files are left: {:?}", more.len(), more[0]);
            assert_eq!(census::files(&temp.path().join("tmp")), BTreeSet::new());
            images(temp.path()).make_named(NAME, "a test", &source(temp.path(), "root"), &mut |_| ()).unwrap();
            assert_eq!(census::files(&cache), whole);
        }
    }
    // A completed image needs no build, and temporary files of another are removed all the same.
    let mut builder = Supervisor::start(TEST, PART, temp.path(), "");
    builder.reach("end");
    builder.kill(Duration::ZERO);
    let found = images(temp.path()).find(&source(temp.path(), "root"), &mut |_| ()).unwrap();
    assert_eq!(found, images(temp.path()).named(NAME).unwrap());
    assert_eq!(census::files(&cache), whole);
}
