//! Images: reproducible, and complete or rebuilt.
#![forbid(unsafe_code)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cofferdam_contract::ByteSize;
use cofferdam_image::store::{ImageConfig, ImageStore, Options};
use cofferdam_image::{Cache, ImageError, Images, KernelSource, Progress, RootSource, Source};
use cofferdam_linux::named::Directory;

fn has_mkfs(test: &str) -> bool {
    let exists = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().any(|path| Path::new(path).exists());
    if !exists {
        println!("SKIP {test}: no mkfs.ext4 here (package e2fsprogs)");
    }
    exists
}

/// Returns a source of files that needs no packages. No VM could boot from it.
fn sample(temp: &Path) -> Source {
    let root = temp.join("root");
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::write(root.join("usr/bin/program"), vec![1; 20_000]).unwrap();
    std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
    let (image, module) = (temp.join("kernel"), temp.join("virtio.ko"));
    fs::write(&image, "a kernel").unwrap();
    fs::write(&module, "a module").unwrap();
    let kernel = KernelSource::Files { image, modules: vec![module] };
    Source { kernel, root: RootSource::Directory(root), ..Source::default() }
}

fn images(temp: &Path, name: &str) -> Images {
    Images::new(temp.join(name), Cache::new(temp.join("packages")))
}

/// Promise (Virtual machines): The same sources give the same image in every cache.
#[test]
fn the_same_sources_give_the_same_bytes_in_every_cache() {
    if !has_mkfs("the_same_sources_give_the_same_bytes_in_every_cache") {
        return;
    }
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let make = |temp: &Path, source: &Source| images(temp, "cache").make(source, &mut |_| ()).unwrap();
    let source = sample(two.path());
    let (first, second) = (make(one.path(), &sample(one.path())), make(two.path(), &source));
    assert_eq!(first.key, second.key);
    for (one, two) in
        [(&first.kernel, &second.kernel), (&first.initramfs, &second.initramfs), (&first.root, &second.root)]
    {
        assert!(fs::read(one).unwrap() == fs::read(two).unwrap(), "{} differs", one.display());
    }
    // A directory is read each time.
    fs::write(two.path().join("root/usr/bin/program"), "changed").unwrap();
    let changed = images(two.path(), "cache").find(&source, &mut |_| ()).unwrap();
    assert_ne!(changed.key, second.key);
}

/// Promise (Virtual machines): A damaged image is recreated.
#[test]
fn a_damaged_image_is_made_again_and_only_then() {
    if !has_mkfs("a_damaged_image_is_made_again_and_only_then") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let (images, source) = (images(temp.path(), "cache"), sample(temp.path()));
    let image = images.make(&source, &mut |_| ()).unwrap();
    let whole = fs::read(&image.root).unwrap();
    let written = || {
        let mut written = false;
        let again = images.make(&source, &mut |step| written |= step == Progress::Disk).unwrap();
        assert_eq!(again, image);
        assert!(fs::read(&image.root).unwrap() == whole);
        written
    };
    assert!(!written());
    fs::set_permissions(&image.root, Permissions::from_mode(0o644)).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&image.root, damaged).unwrap();
    assert!(written());
    fs::remove_file(&image.root).unwrap();
    assert!(written());
    assert!(!written());
}

/// Promise (Virtual machines): An image of the image store becomes the root file system of a VM, and stays in the store
/// while it does.
#[test]
fn an_image_of_the_store_becomes_a_disk() {
    if !has_mkfs("an_image_of_the_store_becomes_a_disk") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let source = sample(temp.path());
    let directory = Directory::open(&temp.path().join("root")).unwrap();
    let store = ImageStore::open(&temp.path().join("images"), Options::default()).unwrap();
    let name = "my/root:1".parse().unwrap();
    store.import_directory(&directory, &ImageConfig::default(), &name, &mut |_| ()).unwrap();
    let stored = |image: &str| {
        let root = RootSource::Stored { store: temp.path().join("images"), image: image.to_owned() };
        images(temp.path(), "cache").find(&Source { root, ..source.clone() }, &mut |_| ())
    };
    let created = stored("my/root:1").unwrap();
    let digest = store.inspect("my/root:1").unwrap().listed.manifest.to_string();
    assert_eq!(stored(&digest).unwrap(), created);
    let find = std::process::Command::new("debugfs").args(["-R", "cat /usr/bin/program"]).arg(&created.root).output();
    if let Ok(found) = find {
        assert_eq!(found.stdout, vec![1; 20_000]);
    }
    let error = stored("my/other:1").unwrap_err();
    assert!(error.to_string().contains("has no image 'my/other:1'"), "{error}");
}

#[test]
fn several_at_once_make_one() {
    if !has_mkfs("several_at_once_make_one") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let (images, source) = (images(temp.path(), "cache"), sample(temp.path()));
    let written = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut count = |step| {
                    if step == Progress::Disk {
                        written.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                };
                images.make(&source, &mut count).unwrap();
            });
        }
    });
    assert_eq!(written.into_inner(), 1);
    let names = fs::read_dir(temp.path().join("cache")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("work.")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn oversized_or_missing_sources_are_refused() {
    if !has_mkfs("oversized_or_missing_sources_are_refused") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let source = Source { max_size: ByteSize::from_bytes(1 << 20), ..sample(temp.path()) };
    let refused = |source: &Source| images(temp.path(), "cache").make(source, &mut |_| ()).unwrap_err();
    assert!(matches!(refused(&source), ImageError::TooLarge { .. }));
    let missing = Source { root: RootSource::Tar(temp.path().join("none")), ..source.clone() };
    assert!(matches!(refused(&missing), ImageError::Io { .. }));
    let none = images(temp.path(), "empty").find(&Source::default(), &mut |_| ());
    assert!(matches!(none, Err(ImageError::NotBuilt)));
}
