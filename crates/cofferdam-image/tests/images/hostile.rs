//! Hostile layers and archives: each is refused or bounded, and leaves nothing behind.

use std::fs;

use cofferdam_image::store::Options;
use serde_json::json;
use tar::EntryType;

use super::support::*;

/// Returns the error for an image with one layer, and checks that nothing is left of it.
fn refused(fixture: &Fixture, items: &[Item<'_>]) -> String {
    refused_bytes(fixture, &layer(items), gzip)
}

fn refused_bytes(fixture: &Fixture, tar: &[u8], pack: fn(&[u8]) -> Vec<u8>) -> String {
    let from = layout(&[(tar.to_vec(), pack)]);
    let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err().to_string();
    assert_eq!(
        [fixture.count("images"), fixture.count("names"), fixture.count("layers"), fixture.count("work")],
        [0; 4]
    );
    error
}

/// Promise (Images): No layer creates, changes or removes a file outside its own directory.
#[test]
fn paths_and_links_that_lead_out_are_refused_or_stay_inside() {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    let away = outside.path().to_str().unwrap();
    for (items, expected) in [
        (&[(FILE, "../x", "", 0o644, &b"x"[..])][..], "leads out"),
        (&[(DIRECTORY, "a/../../x", "", 0o755, b"")], "leads out"),
        (&[(FILE, "a/../../.wh.x", "", 0o755, b"")], "leads out"),
        (&[(SAME, "x", "../../etc/passwd", 0o644, b"")], "leads out"),
        (&[(SAME, "x", "/etc/passwd", 0o644, b"")], "not there"),
        (&[(LINK, "l", "/etc", 0o777, b""), (SAME, "x", "l/passwd", 0o644, b"")], "not there"),
        (&[(LINK, "l", away, 0o777, b""), (SAME, "x", "l/kept", 0o644, b"")], "not there"),
        (&[(LINK, "l", away, 0o777, b""), (FILE, "l/made", "", 0o644, b"x")], "cannot be unpacked"),
        (&[(LINK, "l", away, 0o777, b""), (FILE, "l/.wh.kept", "", 0o644, b"x")], "cannot be unpacked"),
        (
            &[
                (LINK, "l", "../../../../../..", 0o777, b""),
                (FILE, "l/tmp/made", "", 0o644, b"x"),
                (SAME, "s", "gone", 0, b""),
            ],
            "not there",
        ),
        (&[(FILE, "f", "", 0o644, b"x"), (FILE, "f/g", "", 0o644, b"x")], "in a file"),
        (&[(LINK, "l", "l", 0o777, b""), (FILE, "l/x", "", 0o644, b"x")], "cannot be unpacked"),
        (&[(DIRECTORY, "d/", "", 0o755, b""), (SAME, "x", "d", 0o644, b"")], "not there"),
        (&[(FILE, ".wh.w", "", 0o644, b""), (SAME, "x", "w", 0o644, b"")], "not there"),
    ] {
        let error = refused(&fixture, items);
        assert!(error.contains(expected), "{items:?}: {error}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept");
    // An absolute path is one below the root of the image.
    let name = format!("{away}/made");
    let from = layout(&[(layer(&[(FILE, &name, "", 0o644, b"x")]), gzip)]);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn later_entries_replace_earlier_ones_without_following_them() {
    let fixture = Fixture::new();
    let from = layout(&[(
        layer(&[
            (FILE, "target", "", 0o644, b"old"),
            (LINK, "name", "target", 0o777, b""),
            (FILE, "name", "", 0o644, b"new"),
            (DIRECTORY, "d/", "", 0o755, b""),
            (FILE, "d/f", "", 0o644, b"x"),
            (FILE, "d", "", 0o644, b"file"),
            (DIRECTORY, "e/", "", 0o755, b""),
            (FILE, "e/f", "", 0o644, b"x"),
            (LINK, "e", "target", 0o777, b""),
            (FILE, "many", "", 0o644, b"1"),
            (FILE, "many", "", 0o644, b"2"),
            (FILE, "one", "", 0o644, b"1"),
            (SAME, "two", "one", 0o644, b""),
            (FILE, "one", "", 0o644, b"3"),
        ]),
        gzip,
    )]);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    let root = fixture.store.resolve("test:1").unwrap().layers.remove(0);
    let text = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    assert_eq!(["target", "name", "d", "many", "one", "two"].map(text), ["old", "new", "file", "2", "3", "1"]);
    assert!(fs::symlink_metadata(root.join("e")).unwrap().is_symlink());
}

/// Promise (Images): Marks of overlayfs in a layer never reach the store.
#[test]
fn attributes_devices_and_set_id_bits_are_left_out() {
    let fixture = Fixture::new();
    let mut tar = tar::Builder::new(Vec::new());
    for key in ["SCHILY.xattr.user.overlay.opaque", "SCHILY.xattr.trusted.overlay.redirect", "SCHILY.xattr.user.other"]
    {
        tar.append_pax_extensions([(key, &b"y"[..])]).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(DIRECTORY);
        header.set_mode(0o7755);
        header.set_size(0);
        tar.append_data(&mut header, "d/", std::io::empty()).unwrap();
    }
    for (kind, name) in [(EntryType::Char, "c"), (EntryType::Block, "b"), (EntryType::Fifo, "p")] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o666);
        header.set_size(0);
        header.set_device_major(0).unwrap();
        header.set_device_minor(0).unwrap();
        tar.append_data(&mut header, name, std::io::empty()).unwrap();
    }
    let from = layout(&[(tar.into_inner().unwrap(), gzip)]);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    let root = fixture.store.resolve("test:1").unwrap().layers.remove(0);
    let mut names = vec![0; 1024];
    assert_eq!(rustix::fs::listxattr(root.join("d"), &mut names).unwrap(), 0);
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(root.join("d")).unwrap().permissions());
    assert_eq!((mode & 0o7777, fs::read_dir(&root).unwrap().count()), (0o1755, 1));
}

/// Promise (Images): A layer that grows without an end, or that has too many or too deep files, is refused.
#[test]
fn layer_beyond_the_size_limit_is_refused() {
    let fixture = Fixture::with(Options { max_bytes: 64 << 20, max_layer_bytes: 8 << 20 });
    let zeros = vec![0; 64 << 20];
    let bomb = layer(&[(FILE, "f", "", 0o644, &zeros)]);
    for pack in [gzip as fn(&[u8]) -> Vec<u8>, zstandard] {
        let error = refused_bytes(&fixture, &bomb, pack);
        assert!(error.contains("are allowed"), "{error}");
    }
    // After the end of its tar, a layer may have further data, within the limit.
    let mut long = layer(&[(FILE, "f", "", 0o644, b"x")]);
    long.extend_from_slice(&zeros);
    let error = refused_bytes(&fixture, &long, gzip);
    assert!(error.contains("larger than allowed"), "{error}");
    let deep = "d/".repeat(45);
    let mut items: Vec<Item<'_>> = vec![(DIRECTORY, &deep, "", 0o755, b"")];
    let names: Vec<(String, String, String)> = (0..10)
        .map(|at| {
            let from = if at == 0 { deep.clone() } else { format!("l{}/{deep}", at - 1) };
            (format!("l{at}"), from, format!("l{at}/{deep}"))
        })
        .collect();
    for (link, target, below) in &names {
        items.push((LINK, link, target, 0o777, b""));
        items.push((DIRECTORY, below, "", 0o755, b""));
    }
    let error = refused(&fixture, &items);
    assert!(error.contains("too deep"), "{error}");
    let long = "n".repeat(300);
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o644);
    tar.append_data(&mut header, &long, std::io::empty()).unwrap();
    let error = refused_bytes(&fixture, &tar.into_inner().unwrap(), gzip);
    assert!(error.contains("cannot be unpacked"), "{error}");
}

#[test]
fn sparse_files_are_refused_in_every_format() {
    let fixture = Fixture::new();
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(0);
    header.set_mode(0o644);
    header.as_gnu_mut().unwrap().set_real_size(1 << 40);
    header.set_path("huge").unwrap();
    header.set_cksum();
    let mut old = header.as_bytes().to_vec();
    old.extend([0; 1024]);
    assert!(refused_bytes(&fixture, &old, gzip).contains("sparse"));
    for records in [
        &[("GNU.sparse.major", &b"1"[..]), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"1099511627776")][..],
        &[("GNU.sparse.size", b"1099511627776"), ("GNU.sparse.map", b"0,1")],
    ] {
        let mut tar = tar::Builder::new(Vec::new());
        tar.append_pax_extensions(records.iter().copied()).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        tar.append_data(&mut header, "GNUSparseFile.0/huge", &b"x"[..]).unwrap();
        let error = refused_bytes(&fixture, &tar.into_inner().unwrap(), gzip);
        assert!(error.contains("sparse"), "{error}");
    }
}

/// Promise (Images): A file that does not match its digest is refused.
#[test]
fn truncated_and_changed_files_are_refused() {
    let fixture = Fixture::new();
    let good = layer(&[(FILE, "f", "", 0o644, &[7; 10_000])]);
    // The file of the layer.
    let from = layout(&[(good.clone(), gzip)]);
    for entry in fs::read_dir(from.path().join("blobs/sha256")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        for changed in [bytes[..bytes.len() / 2].to_vec(), [&bytes, &b" "[..]].concat(), Vec::new()] {
            fs::write(&path, changed).unwrap();
            let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err().to_string();
            assert!(error.contains("hashes to something else"), "{error}");
            assert_eq!([fixture.count("images"), fixture.count("layers"), fixture.count("work")], [0; 3]);
        }
        fs::write(&path, bytes).unwrap();
    }
    // The file matches its digest, and its contents do not match the configuration.
    let other = Layout::new();
    let (packed, size) = other.put(&gzip(&good));
    let (config, _) =
        other.put(json!({"rootfs": {"diff_ids": [format!("sha256:{}", "0".repeat(64))]}}).to_string().as_bytes());
    let manifest = json!({"config": {"digest": config}, "layers": [{"digest": packed, "size": size}]});
    let (digest, _) = other.put(manifest.to_string().as_bytes());
    other.index(&[(&digest, "x.y/z:1")]);
    let error = fixture.store.load(other.path(), None, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("hashes to something else"), "{error}");
    // Streams that end early.
    for length in [100, 600, 5000, good.len() - 1500] {
        let error = refused_bytes(&fixture, &good[..length], gzip);
        assert!(error.contains("truncated") || error.contains("cannot"), "{length}: {error}");
    }
    let mut cut = gzip(&good);
    cut.truncate(cut.len() / 2);
    let error = fixture.store.import_tar(&*cut, &Default::default(), &"x:1".parse().unwrap(), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("cannot read"), "{error}");
    assert_eq!([fixture.count("images"), fixture.count("layers"), fixture.count("work")], [0; 3]);
}

#[test]
fn hostile_descriptions_are_refused() {
    let fixture = Fixture::new();
    for (index, expected) in [
        (json!({"manifests": [{"digest": "sha256:../../../etc/passwd"}]}), "not a supported digest"),
        (json!({"manifests": []}), "has no image"),
        (json!([]), "cannot parse"),
        (json!({"manifests": [{"digest": format!("sha256:{}", "0".repeat(64))}]}), "has no file"),
    ] {
        let from = Layout::new();
        fs::write(from.path().join("index.json"), index.to_string()).unwrap();
        let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{index}: {error}");
    }
    let from = Layout::new();
    let digest = from.image(&json!({}), &[(layer(&[]), gzip)]);
    for name in ["../x:1", "docker.io/library/x:1\u{1b}[31m", "a/B:1"] {
        from.index(&[(&digest, name)]);
        let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("is not a name") && !error.contains('\u{1b}'), "{error}");
    }
    from.index(&[(&digest, "tag-only")]);
    let error = fixture.store.load(from.path(), None, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("has no name") && error.remedy().unwrap().contains("--name"));
}
