//! Tests of the image cache and its names.

use std::time::SystemTime;

use super::*;

fn quiet(_: Progress) {}

/// Puts an entry into the cache, built for an origin of the same name.
fn put(images: &Images, kind: &str, name: &str) -> String {
    let key = store::key(&[name.as_bytes()]);
    let lock = images.store.lock(&mut quiet).unwrap();
    let scratch = lock.scratch().unwrap();
    fs::create_dir(scratch.path().join("made")).unwrap();
    fs::write(scratch.path().join("made/file"), "1234567").unwrap();
    lock.keep(kind, &key, &scratch.path().join("made"), "").unwrap();
    lock.remember(name, &key).unwrap();
    key
}

fn name(images: &Images, name: &str, kernel: &str, root: &str) {
    let lock = images.store.lock(&mut quiet).unwrap();
    let named = Named {
        kernel: kernel.to_owned(),
        root: root.to_owned(),
        imported: false,
        about: String::new(),
        protocol: cofferdam_guest::PROTOCOL,
    };
    names::write(&images.store, &lock, name, &named).unwrap();
}

#[test]
fn image_of_another_version_is_reported_and_not_started() {
    let temp = tempfile::tempdir().unwrap();
    let images = Images::new(temp.path().join("cache"), Cache::new(temp.path().join("packages")));
    let (kernel, root) = (put(&images, "kernel", "k"), put(&images, "root", "r"));
    name(&images, "mine", &kernel, &root);
    assert!(images.inventory().named[0].bytes.is_some());
    // In the format from before protocol versions were recorded.
    let file = images.store.root().join("name-mine");
    fs::write(&file, format!(r#"{{"kernel":"{kernel}","root":"{root}","about":""}}"#)).unwrap();
    assert!(matches!(images.named("mine"), Err(ImageError::Incompatible { .. })));
    // The disk's file does not exist in this cache; the entry is found all the same.
    assert!(images.named_for_restore("mine").is_ok());
    assert_eq!(images.inventory().named[0].bytes, None);
    images.forget("mine", &mut quiet).unwrap();
}

#[test]
fn unnamed_image_is_found_by_its_key() {
    let temp = tempfile::tempdir().unwrap();
    let images = Images::new(temp.path().join("cache"), Cache::new(temp.path().join("packages")));
    let (kernel, root, other) = (put(&images, "kernel", "k"), put(&images, "root", "r"), put(&images, "root", "other"));
    name(&images, "one", &kernel, &root);
    assert_eq!(images.key_of("one"), Some(joint(&kernel, &root)));
    let before = images.key_of("one").unwrap();
    name(&images, "one", &kernel, &other);
    assert_eq!(images.key_of("one"), Some(joint(&kernel, &other)));
    assert_eq!(images.by_key(&before).unwrap().map(|image| image.key), Some(before.clone()));
    let unnamed = images.inventory().unnamed;
    assert_eq!(unnamed.iter().map(|found| &found.key).collect::<Vec<_>>(), [&before]);
    assert_eq!((unnamed[0].bytes, &unnamed[0].root), (14, &root));
    assert_eq!(images.by_key(&joint(&root, &kernel)).unwrap(), None);
    // A damaged entry counts as missing.
    fs::write(images.store.root().join(format!("root-{root}/manifest.json")), "{}").unwrap();
    assert_eq!(images.by_key(&before).unwrap(), None);
    assert_eq!(images.key_of("two"), None);
}

#[test]
fn image_without_a_name_is_removed_by_the_next_prune() {
    let temp = tempfile::tempdir().unwrap();
    let images = Images::new(temp.path().join("cache"), Cache::new(temp.path().join("packages")));
    let (kernel, root, other) = (put(&images, "kernel", "k"), put(&images, "root", "r"), put(&images, "root", "other"));
    name(&images, "one", &kernel, &root);
    name(&images, "two", &kernel, &other);
    images.forget("one", &mut quiet).unwrap();
    assert!(images.prune(Duration::from_secs(3600), &mut quiet).unwrap() >= 7);
    let exists = |kind, key: &str| images.store.glance(kind, key).is_some();
    assert!(!exists("root", &root) && exists("kernel", &kernel) && exists("root", &other));
    assert_eq!((images.store.peek("r"), images.store.peek("k")), (None, Some(kernel)));
    images.forget("two", &mut quiet).unwrap();
    images.prune(Duration::from_secs(3600), &mut quiet).unwrap();
    assert_eq!(images.store.entries(), []);
}

#[test]
fn listing_does_not_refresh_an_images_age() {
    let temp = tempfile::tempdir().unwrap();
    let images = Images::new(temp.path().join("cache"), Cache::new(temp.path().join("packages")));
    let source = Source {
        kernel: KernelSource::Files { image: "/k".into(), modules: Vec::new() },
        root: RootSource::Tar("/r".into()),
        max_size: ByteSize::from_bytes(1 << 20),
        recorded: None,
    };
    let before = SystemTime::now() - Duration::from_secs(1000);
    let mut paths = Vec::new();
    for (kind, origin) in [("kernel", origin_of_kernel(&source)), ("root", origin_of_root(&source))] {
        put(&images, kind, &origin);
        let path = images.store.root().join(format!("last-{origin}"));
        File::open(&path).unwrap().set_modified(before).unwrap();
        paths.push(path);
    }
    assert!(images.seems_built(&source));
    for path in paths {
        assert_eq!(fs::metadata(path).unwrap().modified().unwrap(), before);
    }
}

/// Promise (Virtual machines): A root directory that was replaced since the caller named it does not become an image.
#[test]
fn directory_that_is_not_the_recorded_one_is_not_packed() {
    let temp = tempfile::tempdir().unwrap();
    let images = Images::new(temp.path().join("cache"), Cache::new(temp.path().join("packages")));
    let path = temp.path().canonicalize().unwrap().join("root");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("init"), "").unwrap();
    let (device, inode) = Directory::open(&path).unwrap().identity();
    let pack = |recorded| {
        let source = Source { root: RootSource::Directory(path.clone()), recorded, ..Source::default() };
        images.root(&source, &mut quiet)
    };
    for other in [(device, inode + 1), (device + 1, inode)] {
        match pack(Some(other)) {
            Err(ImageError::DirectoryReplaced { path: named }) => assert_eq!(named, path),
            Err(ImageError::MissingTool { tool }) => {
                println!("SKIP directory_that_is_not_the_recorded_one_is_not_packed: no {tool}");
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(images.store.entries(), []);
    for same in [Some((device, inode)), None] {
        assert!(!matches!(pack(same), Err(ImageError::DirectoryReplaced { .. })));
    }
}
