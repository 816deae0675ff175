//! Images from archives and directories, their use, and their removal.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use cofferdam_image::store::{ImageConfig, ImageStore, Options, PruneOptions, Sha, StoreError};
use cofferdam_linux::named::Directory;
use serde_json::json;

use super::support::*;

const ALL: PruneOptions = PruneOptions { unused_for: Some(Duration::ZERO) };

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn opaque(path: &Path) -> bool {
    let mut value = [0; 8];
    rustix::fs::getxattr(path, "user.overlay.opaque", &mut value).is_ok_and(|length| &value[..length] == b"y")
}

/// Promise (Images): A layer is unpacked once as a lower directory of overlayfs, and images share it.
#[test]
fn layers_are_unpacked_once_with_the_marks_of_overlayfs() {
    let fixture = Fixture::new();
    let below = layer(&[
        (DIRECTORY, "./", "", 0o755, b""),
        (DIRECTORY, "closed/", "", 0o555, b""),
        (FILE, "closed/tool", "", 0o4755, b"tool"),
        (FILE, "secret", "", 0o000, b"s"),
        (LINK, "link", "/etc/passwd", 0o777, b""),
        (SAME, "same", "closed/tool", 0o644, b""),
        (tar::EntryType::Char, "null", "", 0o666, b""),
        (tar::EntryType::Fifo, "fifo", "", 0o666, b""),
    ]);
    let above = layer(&[
        (FILE, ".wh.gone", "", 0o644, b""),
        (FILE, "emptied/new", "", 0o644, b"new"),
        (FILE, "emptied/.wh..wh..opq", "", 0o644, b""),
        // A directory that is removed and made again, in both orders.
        (FILE, ".wh.again", "", 0o644, b""),
        (DIRECTORY, "again/", "", 0o750, b""),
        (DIRECTORY, "before/", "", 0o755, b""),
        (FILE, ".wh.before", "", 0o644, b""),
        (FILE, ".wh.parent", "", 0o644, b""),
        (FILE, "parent/child", "", 0o644, b"c"),
        (FILE, "kept", "", 0o644, b"kept"),
        (FILE, ".wh.kept", "", 0o644, b""),
        (FILE, ".wh..wh.plnk", "", 0o644, b""),
        (FILE, ".wh...", "", 0o644, b""),
    ]);
    let from = layout(&[(below.clone(), gzip), (above, zstandard)]);
    let added = fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    assert_eq!(added[0].names[0].canonical(), "docker.io/library/test:1");
    let found = fixture.store.resolve("test:1").unwrap();
    let [low, high] = &found.layers[..] else { panic!("{:?}", found.layers) };
    assert_eq!(fs::read_to_string(low.join("closed/tool")).unwrap(), "tool");
    assert_eq!([mode(&low.join("closed")), mode(&low.join("closed/tool"))], [0o555, 0o755]);
    assert_eq!(mode(&low.join("secret")), 0o400);
    assert_eq!(fs::metadata(low.join("closed/tool")).unwrap().mtime(), 1_600_000_000);
    assert_eq!(fs::metadata(low.join("closed")).unwrap().mtime(), 1_600_000_000);
    assert_eq!(fs::metadata(low.join("same")).unwrap().nlink(), 2);
    assert!(fs::symlink_metadata(low.join("null")).is_err() && fs::symlink_metadata(low.join("fifo")).is_err());
    let whiteout = fs::symlink_metadata(high.join("gone")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    for name in ["emptied", "again", "before", "parent"] {
        assert!(high.join(name).is_dir() && opaque(&high.join(name)), "{name}");
    }
    assert_eq!(fs::read_to_string(high.join("kept")).unwrap(), "kept");
    assert_eq!(fs::read_dir(high).unwrap().count(), 6);
    assert_eq!(mode(&high.join("again")), 0o750);

    // Another image with the same lowest layer.
    let before = fixture.count("layers");
    let other = Layout::new();
    let digest = other.image(&serde_json::json!({}), &[(below, gzip)]);
    other.index(&[(&digest, "docker.io/library/other:1")]);
    fixture.store.load(other.path(), None, &mut |_| ()).unwrap();
    assert_eq!((fixture.count("layers"), fixture.count("work")), (before, 0));
    assert_eq!(fixture.store.resolve("other:1").unwrap().layers, std::slice::from_ref(low));
}

#[test]
fn a_layer_that_hides_all_below_is_used_without_them() {
    let fixture = Fixture::new();
    let below = layer(&[(FILE, "below", "", 0o644, b"x")]);
    let above = layer(&[(FILE, ".wh..wh..opq", "", 0o644, b""), (FILE, "above", "", 0o644, b"x")]);
    fixture.store.load(layout(&[(below, gzip), (above, gzip)]).path(), None, &mut |_| ()).unwrap();
    let found = fixture.store.resolve("test:1").unwrap();
    assert_eq!(found.layers.len(), 1);
    assert!(found.layers[0].join("above").exists());
}

/// Promise (Images): An image is found by its short name, its complete name, and the start of its digest.
#[test]
fn every_form_of_a_name_finds_the_same_image() {
    let fixture = Fixture::new();
    let from = layout(&[(layer(&[(FILE, "f", "", 0o644, b"x")]), gzip)]);
    let added = fixture.store.load(from.path(), None, &mut |_| ()).unwrap().remove(0);
    let digest = added.manifest.to_string();
    let config = fixture.store.inspect("test:1").unwrap().config;
    let names = [
        "test:1".to_owned(),
        "docker.io/test:1".to_owned(),
        "docker.io/library/test:1".to_owned(),
        digest.clone(),
        digest[..7 + 12].to_owned(),
        added.manifest.digits()[..12].to_owned(),
        config.to_string(),
        config.digits()[..12].to_owned(),
        format!("whatever@{digest}"),
    ];
    for name in &names {
        assert_eq!(fixture.store.resolve(name).unwrap().digest, added.manifest, "{name}");
        assert!(fixture.store.contains(name).unwrap());
    }
    for name in ["test", "test:2", "other/test:1", "sha256:0000000000", "000000000000"] {
        assert!(matches!(fixture.store.resolve(name), Err(StoreError::NotFound { .. })), "{name}");
        assert!(!fixture.store.contains(name).unwrap());
    }
    let config = fixture.store.resolve("test:1").unwrap().config;
    assert_eq!((config.env, config.cmd), (vec![("PATH".to_owned(), "/bin".to_owned())], vec!["sh".to_owned()]));
}

/// Promise (Images): An archive that arrives piece by piece is loaded from a file without a name.
#[test]
fn an_archive_is_loaded_from_a_spool() {
    let fixture = Fixture::new();
    let from = layout(&[(layer(&[(FILE, "f", "", 0o644, b"x")]), gzip)]);
    let spool = fixture.store.spool().unwrap();
    assert_eq!(fixture.count("work"), 0);
    let mut tar = tar::Builder::new(&spool);
    tar.append_dir_all(".", from.path()).unwrap();
    tar.finish().unwrap();
    drop(tar);
    let added = fixture.store.load_archive(spool, None, &mut |_| ()).unwrap();
    assert_eq!(fixture.store.resolve("test:1").unwrap().digest, added[0].manifest);
    let error = fixture.store.load_archive(fixture.store.spool().unwrap(), None, &mut |_| ()).unwrap_err().to_string();
    assert!(!error.contains(fixture.store.root().to_str().unwrap()), "{error}");
}

/// Promise (Images): An image that a sandbox uses is not removed.
#[test]
fn a_leased_image_stays_and_others_go() {
    let fixture = Fixture::new();
    let from = layout(&[(layer(&[(FILE, "f", "", 0o644, &[1; 50_000])]), gzip)]);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    let again = "other:2".parse().unwrap();
    fixture.store.load(from.path(), Some(&again), &mut |_| ()).unwrap();
    let found = fixture.store.resolve("other:2").unwrap();
    // A name goes, since the image has another.
    let removed = fixture.store.remove("test:1").unwrap();
    assert_eq!((removed.names.len(), removed.images.len()), (1, 0));
    assert!(matches!(fixture.store.remove("other:2"), Err(StoreError::InUse { .. })));
    let pruned = fixture.store.prune(ALL).unwrap();
    assert!(pruned.images.is_empty() && found.layers[0].join("f").exists());
    assert!(fixture.store.list().unwrap()[0].in_use);
    drop(found);
    let listed = fixture.store.list().unwrap();
    assert_eq!((listed.len(), listed[0].names.len(), listed[0].in_use), (1, 1, false));
    assert!(fixture.store.prune(PruneOptions { unused_for: None }).unwrap().images.is_empty());
    let removed = fixture.store.prune(ALL).unwrap();
    assert_eq!(removed.images.len(), 1);
    assert!(removed.freed >= 50_000, "{}", removed.freed);
    let left = ["blobs/sha256", "layers", "images", "names", "work"].map(|name| fixture.count(name));
    assert_eq!((left, fixture.store.size().unwrap()), ([0; 5], 0));
}

#[test]
fn files_of_a_process_that_adds_an_image_stay() {
    let fixture = Fixture::new();
    let from = layout(&[(layer(&[(FILE, "f", "", 0o644, b"x")]), gzip)]);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    let writer = fs::File::open(fixture.root().join("writers")).unwrap();
    rustix::fs::flock(&writer, rustix::fs::FlockOperation::LockShared).unwrap();
    let removed = fixture.store.remove("test:1").unwrap();
    assert!(removed.is_deferred && removed.freed == 0 && fixture.count("layers") == 1);
    drop(writer);
    assert!(fixture.store.prune(PruneOptions { unused_for: None }).unwrap().freed > 0);
    assert_eq!(fixture.count("layers"), 0);
}

#[test]
fn a_repeated_layer_is_mounted_once_where_it_is_last() {
    let fixture = Fixture::new();
    let file = |data: &[u8]| layer(&[(FILE, "f", "", 0o644, data)]);
    let from = layout(&[(file(b"1"), gzip), (file(b"2"), gzip), (file(b"1"), gzip)]);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    let read = |path: &std::path::PathBuf| fs::read(path.join("f")).unwrap();
    let layers = fixture.store.resolve("test:1").unwrap().layers;
    assert_eq!(layers.iter().map(read).collect::<Vec<_>>(), [b"2", b"1"]);
}

/// Promise (Images): Only a pull, which verifies it, gives an image a name with a digest.
#[test]
fn an_archive_takes_over_no_name_with_a_digest() {
    let fixture = Fixture::new();
    let pinned = format!("docker.io/library/python@{}", Sha::of(b"the real manifest"));
    let from = Layout::new();
    let digest = from.image(&json!({}), &[(layer(&[(FILE, "f", "", 0o644, b"x")]), gzip)]);
    from.index(&[(&digest, &pinned)]);
    let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("only a pull"), "{error}");
    let error = fixture.store.load(from.path(), Some(&pinned.parse().unwrap()), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("only a pull"), "{error}");
    assert!(!fixture.store.contains(&pinned).unwrap());
}

/// Promise (Images): A layer that is in the store is given to no image without its file.
#[test]
fn a_file_that_claims_the_contents_of_another_layer_is_refused() {
    let fixture = Fixture::new();
    let private = layer(&[(FILE, "secret", "", 0o644, b"s")]);
    fixture.store.load(layout(&[(private.clone(), gzip)]).path(), None, &mut |_| ()).unwrap();
    let from = Layout::new();
    let (file, size) = from.put(&gzip(&layer(&[(FILE, "f", "", 0o644, b"x")])));
    let config = json!({"rootfs": {"type": "layers", "diff_ids": [Sha::of(&private).to_string()]}});
    let (config, length) = from.put(config.to_string().as_bytes());
    let manifest = json!({"schemaVersion": 2, "config": {"digest": config, "size": length},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": file, "size": size}]});
    let (digest, _) = from.put(manifest.to_string().as_bytes());
    from.index(&[(&digest, "docker.io/library/other:1")]);
    let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("hashes to something else"), "{error}");
    // The same contents in another file are accepted.
    let again = layout(&[(private, zstandard)]);
    fixture.store.load(again.path(), Some(&"again:1".parse().unwrap()), &mut |_| ()).unwrap();
    assert_eq!(fixture.count("layers"), 1);
}

/// Promise (Images): A download reserves its space before it begins, and so do others at the same time.
#[test]
fn loads_at_once_stay_below_the_limit_together() {
    let fixture = Fixture::with(Options { max_bytes: 24 << 20, ..Options::default() });
    let one = |name: &str| (FILE, name.to_owned(), noise(9 << 20));
    let layouts: Vec<Layout> = ["a", "b"]
        .iter()
        .map(|name| {
            let (kind, name, data) = one(name);
            let from = Layout::new();
            let digest = from.image(&json!({}), &[(layer(&[(kind, &name, "", 0o644, &data)]), gzip)]);
            from.index(&[(&digest, &format!("docker.io/library/{name}:1"))]);
            from
        })
        .collect();
    let results: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = layouts
            .iter()
            .map(|from| scope.spawn(|| fixture.store.load(from.path(), None, &mut |_| ()).is_ok()))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.iter().filter(|done| **done).count() <= 1, "{results:?}");
    assert!(fixture.store.size().unwrap() <= 24 << 20);
    assert_eq!(fixture.count("work"), 0);
}

/// Promise (Images): The image store does not exceed its limit.
#[test]
fn a_full_store_refuses_and_says_how_to_make_room() {
    let fixture = Fixture::with(Options { max_bytes: 1 << 20, ..Options::default() });
    let data = noise(700_000);
    let from = layout(&[(layer(&[(FILE, "f", "", 0o644, &data)]), gzip)]);
    let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err();
    assert!(matches!(error, StoreError::QuotaExceeded { .. }), "{error}");
    assert!(error.remedy().unwrap().contains("image prune"));
    assert!(fixture.store.list().unwrap().is_empty());
    assert_eq!(fixture.count("work"), 0);
    let small = layout(&[(layer(&[(FILE, "f", "", 0o644, b"x")]), gzip)]);
    fixture.store.load(small.path(), None, &mut |_| ()).unwrap();
    assert!(fixture.store.size().unwrap() < 1 << 20);
}

#[test]
fn a_directory_and_a_tar_become_the_same_image() {
    let fixture = Fixture::new();
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("bin")).unwrap();
    fs::write(temp.path().join("bin/tool"), "tool").unwrap();
    let config = ImageConfig { cmd: vec!["tool".to_owned()], user: "1000".to_owned(), ..ImageConfig::default() };
    let directory = Directory::open(temp.path()).unwrap();
    let (one, other) = ("one:1".parse().unwrap(), "other:1".parse().unwrap());
    let first = fixture.store.import_directory(&directory, &config, &one, &mut |_| ()).unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o644);
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_data(&mut header, "bin/tool", &b"tool"[..]).unwrap();
    let bytes = tar.into_inner().unwrap();
    fixture.store.import_tar(&*gzip(&bytes), &config, &other, &mut |_| ()).unwrap();
    for name in ["one:1", "other:1"] {
        let found = fixture.store.resolve(name).unwrap();
        assert_eq!((&found.config, found.layers.len()), (&config, 1), "{name}");
        assert_eq!(fs::read_to_string(found.layers[0].join("bin/tool")).unwrap(), "tool");
    }
    let again = fixture.store.import_directory(&directory, &config, &one, &mut |_| ()).unwrap();
    assert_eq!(again.manifest, first.manifest);
}

/// Promise (Images): A saved image can be loaded again, with the same layers and settings.
#[test]
fn a_saved_image_is_loaded_again() {
    let fixture = Fixture::new();
    let repeated = layer(&[(FILE, "f", "", 0o644, b"x")]);
    let from =
        layout(&[(repeated.clone(), gzip), (layer(&[(FILE, "g", "", 0o644, b"y")]), zstandard), (repeated, gzip)]);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("saved.tar");
    let name = "saved/image:2".parse().unwrap();
    fixture.store.save("test:1", Some(&name), fs::File::create(&path).unwrap()).unwrap();
    let other = Fixture::new();
    let added = other.store.load(&path, None, &mut |_| ()).unwrap();
    assert_eq!(added[0].names, [name]);
    let (one, two) = (fixture.store.inspect("test:1").unwrap(), other.store.inspect("saved/image:2").unwrap());
    assert_eq!((one.config, one.settings), (two.config, two.settings));
    let contents = |layers: &[cofferdam_image::store::LayerInfo]| -> Vec<String> {
        layers.iter().map(|layer| layer.contents.to_string()).collect()
    };
    assert_eq!(contents(&one.layers), contents(&two.layers));
}

#[test]
fn a_store_that_others_can_change_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("images");
    ImageStore::open(&root, Options::default()).unwrap();
    fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert!(matches!(ImageStore::open(&root, Options::default()), Err(StoreError::Exposed { .. })));
}

#[test]
fn leftovers_of_killed_processes_are_removed_and_those_of_living_ones_are_not() {
    let fixture = Fixture::new();
    let work = fixture.root().join("work");
    fs::create_dir_all(work.join("layer-dead/fs/closed")).unwrap();
    fs::write(work.join("layer-dead/fs/closed/f"), "x").unwrap();
    fs::set_permissions(work.join("layer-dead/fs/closed"), std::os::unix::fs::PermissionsExt::from_mode(0o500))
        .unwrap();
    fs::write(work.join("blob-living"), "x").unwrap();
    let living = fs::File::open(work.join("blob-living")).unwrap();
    rustix::fs::flock(&living, rustix::fs::FlockOperation::LockExclusive).unwrap();
    ImageStore::open(&fixture.root(), Options::default()).unwrap();
    assert_eq!(
        fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>(),
        ["blob-living"]
    );
}

/// Promise (Images): The store counts the files of an image of which it does not keep everything.
#[test]
fn dropped_metadata_of_an_image_is_counted() {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |kind: tar::EntryType, name: &str, mode: u32, (user, group): (u64, u64)| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(user);
        header.set_gid(group);
        header.set_size(0);
        if name == "capable" {
            tar.append_pax_extensions([("SCHILY.xattr.security.capability", &b"x"[..])]).unwrap();
        }
        tar.append_data(&mut header, name, &b""[..]).unwrap();
    };
    add(FILE, "plain", 0o644, (0, 0));
    add(FILE, "theirs", 0o644, (1000, 1000));
    add(DIRECTORY, "mail", 0o2775, (0, 8));
    add(FILE, "su", 0o4755, (0, 0));
    add(FILE, "capable", 0o755, (0, 0));
    add(FILE, ".wh.gone", 0o644, (1000, 1000));
    add(tar::EntryType::Char, "null", 0o666, (0, 0));
    add(tar::EntryType::Fifo, "fifo", 0o666, (0, 0));
    let below = tar.into_inner().unwrap();
    let above = layer(&[(FILE, "tool", "", 0o6755, b"x")]);
    let fixture = Fixture::new();
    let from = layout(&[(below.clone(), gzip), (above, gzip)]);
    let added = fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    let dropped = added[0].dropped.unwrap();
    assert_eq!((dropped.owners, dropped.set_id, dropped.attributes, dropped.special), (2, 3, 1, 2));
    assert_eq!(fixture.store.inspect("test:1").unwrap().dropped, Some(dropped));
    // A layer that an earlier build unpacked has no counts.
    let record = fixture.root().join("layers").join(Sha::of(&below).digits()).join("layer.json");
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    text.as_object_mut().unwrap().remove("dropped").unwrap();
    fs::write(&record, text.to_string()).unwrap();
    assert_eq!(fixture.store.inspect("test:1").unwrap().dropped, None);
}
