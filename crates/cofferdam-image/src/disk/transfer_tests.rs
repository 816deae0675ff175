//! Tests of images that are moved between stores, and of files that only look like images.

use std::os::unix::fs::PermissionsExt;

use super::*;
use cofferdam_archive::{Key, WriteOptions, Writer};
use serde_json::{Value, json};

const MAX_SIZE: ByteSize = ByteSize::from_mebibytes(4);

fn quiet(_: Progress) {}

fn on(_: cofferdam_archive::Progress) -> std::ops::ControlFlow<()> {
    std::ops::ControlFlow::Continue(())
}

fn images(temp: &Path) -> Images {
    Images::new(temp.join("cache"), Cache::new(temp.join("packages")))
}

/// Returns the contents of a disk with holes and repeated pages.
fn disk(byte: u8) -> Vec<u8> {
    [vec![0; 1 << 20], vec![byte; 8192], vec![0; 1 << 16]].concat()
}

/// Creates a named image as a build leaves it, with files of these contents. No VM could boot from it.
fn build(images: &Images, name: &str, byte: u8) -> String {
    let keys = ["kernel", "root"].map(|kind| {
        let key = store::key(&[kind.as_bytes(), &[byte]]);
        let lock = images.store.lock(&mut quiet).unwrap();
        let scratch = lock.scratch().unwrap();
        let prepared = scratch.path().join("made");
        fs::create_dir(&prepared).unwrap();
        if kind == "kernel" {
            fs::write(prepared.join(KERNEL), [byte; 5000]).unwrap();
            fs::write(prepared.join(INITRAMFS), [byte; 300]).unwrap();
        } else {
            fs::write(prepared.join(ROOT), disk(byte)).unwrap();
        }
        lock.keep(kind, &key, &prepared, "6.1-x").unwrap();
        key
    });
    let [kernel, root] = keys;
    let lock = images.store.lock(&mut quiet).unwrap();
    let protocol = cofferdam_guest::PROTOCOL;
    let named = Named { kernel, root, imported: false, about: "Debian packages (tiny)".to_owned(), protocol };
    names::write(&images.store, &lock, name, &named).unwrap();
    named.key()
}

fn exported(images: &Images, which: &str, key: Option<&Key>) -> Vec<u8> {
    let mut out = Vec::new();
    images.export(which, &mut out, ExportOptions { key, level: None }, &mut on).unwrap();
    out
}

fn options(name: Option<&str>) -> ImportOptions<'_> {
    ImportOptions { key: None, max_size: MAX_SIZE, name, taken: Taken::Refuse }
}

fn import(images: &Images, file: &[u8], options: ImportOptions<'_>) -> Result<Imported> {
    images.import(file, options, &mut quiet, &mut on)
}

/// Returns the names of everything in a store but its lock.
fn contents(images: &Images) -> Vec<String> {
    let all = fs::read_dir(images.store.root()).into_iter().flatten().flatten();
    let mut names: Vec<_> = all.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "lock");
    names.sort();
    names
}

/// Promise (Virtual machines): An imported image equals the exported one and can be exported again.
#[test]
fn an_image_is_the_same_in_another_store_and_travels_on() {
    let [one, two, three] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [source, target, third] = [&one, &two, &three].map(|temp| images(temp.path()));
    let key = build(&source, "mine", 7);
    let file = exported(&source, "mine", None);
    assert_eq!(exported(&source, &key, None), file);
    assert!(file.len() < 10_000, "{} bytes", file.len());

    let imported = import(&target, &file, options(None)).unwrap();
    let name = format!("imported-{}", &key[..12]);
    assert_eq!((&imported.name, &imported.image.key), (&name, &key));
    assert_eq!(contents(&target), [format!("imported-{key}"), format!("name-{name}")]);
    let image = target.named(&name).unwrap();
    assert_eq!((&image, image.release.as_str()), (&imported.image, "6.1-x"));
    assert_eq!(target.by_key(&key).unwrap().as_ref(), Some(&image));
    assert_eq!(target.key_of(&name), Some(key.clone()));
    assert_eq!(fs::read(&image.kernel).unwrap(), [7; 5000]);
    assert_eq!(fs::read(&image.initramfs).unwrap(), [7; 300]);
    assert_eq!(fs::read(&image.root).unwrap(), disk(7));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(image.root.parent().unwrap()), mode(target.store.root())), (0o700, 0o700));
    let listed = &target.inventory().named[0];
    assert_eq!((listed.about.as_str(), &listed.key), ("imported: Debian packages (tiny)", &key));
    assert_eq!(listed.bytes, Some(5300 + disk(7).len() as u64));

    // A second import finds the existing image, and adds the name that is given.
    assert_eq!(import(&target, &file, options(None)).unwrap().name, name);
    assert_eq!(import(&target, &file, options(Some("other"))).unwrap().name, "other");
    assert_eq!(import(&source, &file, options(None)).unwrap().name, "mine");
    assert_eq!(target.named("other").unwrap(), image);
    assert_eq!(exported(&target, "other", None), file);
    assert_eq!(import(&third, &exported(&target, &key, None), options(None)).unwrap().image.key, key);

    // Without a name, it is found by its key until it is pruned.
    for name in [name.as_str(), "other"] {
        target.forget(name, &mut quiet).unwrap();
    }
    assert_eq!(target.by_key(&key).unwrap(), Some(image));
    assert_eq!(target.inventory().unnamed.len(), 1);
    assert!(exported(&target, &key, None).len() < file.len());
    assert!(target.prune(Duration::from_secs(3600), &mut quiet).unwrap() > 5300);
    assert!(matches!(
        target.export(&key, std::io::sink(), ExportOptions::default(), &mut on),
        Err(ImageError::UnknownName { .. })
    ));
}

/// Promise (Virtual machines): An import takes no name from another image and does not change its contents.
#[test]
fn an_import_takes_neither_names_nor_contents_from_others() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (source, target) = (images(one.path()), images(two.path()));
    let key = build(&source, "mine", 7);
    let file = exported(&source, "mine", None);
    let other = build(&target, "mine", 8);
    let before = contents(&target);
    let error = import(&target, &file, options(Some("mine"))).unwrap_err();
    assert!(matches!(&error, ImageError::NameTaken { name, .. } if name == "mine"), "{error}");
    assert_eq!((contents(&target), target.key_of("mine")), (before, Some(other)));
    import(&target, &file, ImportOptions { taken: Taken::Replace, ..options(Some("mine")) }).unwrap();
    assert_eq!(target.key_of("mine"), Some(key.clone()));

    // The key of an existing image, with other contents.
    let mut document = document();
    document["key"] = key.clone().into();
    let forged = archive(&document, &[4; 5000], &[4; 300], &disk(4));
    for images in [&source, &target] {
        let before = contents(images);
        let error = import(images, &forged, options(Some("forged"))).unwrap_err();
        assert!(matches!(&error, ImageError::ContentsMismatch { key: found } if *found == key), "{error}");
        assert_eq!(contents(images), before);
        assert_eq!(fs::read(images.by_key(&key).unwrap().unwrap().root).unwrap(), disk(7));
    }
    for bad in ["", "../x", "-a", "a/b"] {
        assert!(matches!(import(&source, &file, options(Some(bad))), Err(ImageError::InvalidSource { .. })), "{bad}");
    }
}

/// Promise (Virtual machines): A build does not reuse an imported image as its own.
#[test]
fn build_does_not_reuse_an_imported_image() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (source, target) = (images(one.path()), images(two.path()));
    build(&source, "mine", 7);
    import(&target, &exported(&source, "mine", None), options(Some("mine"))).unwrap();
    for kind in ["kernel", "root"] {
        let key = store::key(&[kind.as_bytes(), &[7]]);
        assert!(source.store.open(kind, &key).unwrap().is_some() && target.store.open(kind, &key).unwrap().is_none());
    }
    // If both exist, the one that was built here is used.
    let key = build(&target, "built", 7);
    assert!(
        target
            .by_key(&key)
            .unwrap()
            .unwrap()
            .root
            .starts_with(target.store.root().join(format!("root-{}", store::key(&[b"root", &[7]]))))
    );
}

/// Returns a document for files of fours.
fn document() -> Value {
    let entry = |bytes: &[u8]| json!([bytes.len(), sha256::of(bytes)]);
    let files = json!({ KERNEL: entry(&[4; 5000]), INITRAMFS: entry(&[4; 300]), ROOT: entry(&disk(4)) });
    let about = "a\u{1b}[2Jb".repeat(1000);
    json!({ "format": 1, "key": "ab".repeat(32), "release": "x\n\u{1b}y", "about": about, "protocol": 1, "files": files })
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn archive(document: &Value, kernel: &[u8], initramfs: &[u8], root: &[u8]) -> Vec<u8> {
    let parts: [(&str, &[u8]); 3] = [("kernel", kernel), ("initramfs", initramfs), ("root", root)];
    archive_of(&[("image", &document.to_string())], &parts, None)
}

/// Returns an archive of documents and parts, of which "root" and "workspace" are disks and "memory" is a memory.
fn archive_of(documents: &[(&str, &str)], parts: &[(&str, &[u8])], key: Option<&Key>) -> Vec<u8> {
    let files: Vec<_> = parts.iter().map(|(name, bytes)| (*name, file(bytes))).collect();
    let mut writer = Writer::new(WriteOptions { key, ..WriteOptions::default() }).unwrap();
    for (name, text) in documents {
        writer.json(name, text.as_bytes()).unwrap();
    }
    for (name, file) in &files {
        match *name {
            "root" | "workspace" => writer.disk(name, file, None).unwrap(),
            "memory" => writer.memory(name, file).unwrap(),
            _ => writer.state(name, file).unwrap(),
        };
    }
    let mut out = Vec::new();
    writer.write(&mut out, &mut on).unwrap();
    out
}

#[test]
fn text_of_a_hostile_document_is_cut_and_cleaned() {
    let temp = tempfile::tempdir().unwrap();
    let images = images(temp.path());
    import(&images, &archive(&document(), &[4; 5000], &[4; 300], &disk(4)), options(None)).unwrap();
    let listed = images.inventory().named.remove(0);
    assert!(listed.about.len() < 500 && listed.about.chars().all(|c| !c.is_control()), "{listed:?}");
    assert_eq!((listed.release.as_str(), listed.bytes), ("xy", None), "another version's agent");
    // Running VMs keep using it; new ones need an agent with a known protocol version.
    assert!(matches!(images.named(&listed.name), Err(ImageError::Incompatible { .. })));
    images.named_for_restore(&listed.name).unwrap();
}

type Change = fn(&mut Value);

/// Promise (Virtual machines): A file that is not an image is refused and leaves nothing.
#[test]
fn file_that_is_no_image_is_refused_and_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let images = images(temp.path());
    let (kernel, initramfs, root) = ([4; 5000], [4; 300], disk(4));
    let good = || archive(&document(), &kernel, &initramfs, &root);
    let changes: [Change; 12] = [
        |document| document["format"] = 2.into(),
        |document| document["key"] = "../x".into(),
        |document| document["key"] = "AB".repeat(32).into(),
        |document| document["more"] = 1.into(),
        |document| document["protocol"] = (-1).into(),
        |document| drop(document.as_object_mut().unwrap().remove("release")),
        |document| document["files"]["../x"] = json!([1, "ab".repeat(32)]),
        |document| drop(document["files"].as_object_mut().unwrap().remove(ROOT)),
        |document| document["files"][KERNEL][0] = 4999.into(),
        |document| document["files"][ROOT][0] = json!(1u64 << 62),
        |document| document["files"][ROOT][1] = "x".into(),
        // All of it is consistent, except the contents of one file.
        |document| document["files"][ROOT][1] = "00".repeat(32).into(),
    ];
    let mut bad: Vec<Vec<u8>> = Vec::new();
    for change in changes {
        let mut document = document();
        change(&mut document);
        bad.push(archive(&document, &kernel, &initramfs, &root));
    }
    let text = document().to_string();
    let text = text.as_str();
    let (k, i, r) = (("kernel", &kernel[..]), ("initramfs", &initramfs[..]), ("root", &root[..]));
    bad.push(archive(&document(), &kernel, &initramfs, &disk(5)));
    bad.push(archive(&document(), &kernel, &initramfs, &root[..root.len() - 512]));
    bad.push(archive_of(&[("image", text)], &[i, k, r], None));
    bad.push(archive_of(&[("image", text)], &[k, i], None));
    bad.push(archive_of(&[("image", text)], &[k, i, r, ("more", &b"x"[..])], None));
    bad.push(archive_of(&[("image", text)], &[k, i, ("memory", &root[..])], None));
    bad.push(archive_of(&[("image", text), ("more", "{}")], &[k, i, r], None));
    bad.push(archive_of(&[("machine", text)], &[k, i, r], None));
    bad.push(archive_of(&[("image", "{")], &[k, i, r], None));
    bad.push(archive_of(&[], &[k, i, r], None));
    bad.push(archive_of(&[("image", text)], &[k, i, r], Some(&Key::new(&[1; 32]).unwrap())));
    bad.push(Vec::new());
    bad.push(b"no archive".to_vec());
    bad.push([&good()[..], b"x"].concat());
    let whole = good();
    bad.extend((0..whole.len()).step_by(97).map(|end| whole[..end].to_vec()));
    bad.extend((0..whole.len()).step_by(31).map(|at| {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        flipped
    }));
    for (at, file) in bad.iter().enumerate() {
        let error = import(&images, file, options(None)).unwrap_err();
        assert!(error.to_string().len() < 1000, "{at}: {error}");
        assert_eq!(contents(&images), Vec::<String>::new(), "{at}: {error}");
    }
    // Too large for the caller, unencrypted although a key is given, and cancelled during the import.
    let small = ImportOptions { max_size: ByteSize::from_bytes(root.len() as u64 - 1), ..options(None) };
    assert!(import(&images, &whole, small).unwrap_err().to_string().contains("raise the limit"));
    let key = Key::new(&[1; 32]).unwrap();
    import(&images, &whole, ImportOptions { key: Some(&key), ..options(None) }).unwrap_err();
    let mut steps = 0;
    let mut watch = |_: cofferdam_archive::Progress| {
        steps += 1;
        if steps > 2 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    };
    images.import(&whole[..], options(None), &mut quiet, &mut watch).unwrap_err();
    assert_eq!(contents(&images), Vec::<String>::new());
    import(&images, &whole, options(None)).unwrap();
    assert_eq!(contents(&images).len(), 2);
}

#[test]
fn an_encrypted_image_needs_its_key() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (source, target) = (images(one.path()), images(two.path()));
    build(&source, "mine", 7);
    let [right, wrong] = [1, 2].map(|byte| Key::new(&[byte; 32]).unwrap());
    let file = exported(&source, "mine", Some(&right));
    for key in [None, Some(&wrong)] {
        import(&target, &file, ImportOptions { key, ..options(None) }).unwrap_err();
    }
    import(&target, &file, ImportOptions { key: Some(&right), ..options(None) }).unwrap();
}

#[test]
fn leftovers_of_a_killed_import_are_removed_by_the_next_access() {
    let temp = tempfile::tempdir().unwrap();
    let images = images(temp.path());
    build(&images, "mine", 7);
    let store = &images.store;
    let left = store.root().join("work.killed/made");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join(ROOT), "half").unwrap();
    images.named("mine").unwrap();
    assert!(!store.root().join("work.killed").exists());
}
