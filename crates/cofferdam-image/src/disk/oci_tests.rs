//! Tests with valid and with hostile layouts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use serde_json::{Value, json};
use tar::{EntryType, Header};

use super::super::error::ImageError;
use super::*;
use crate::layer::layout::INDEX;
use crate::layer::stream::Sha;

const MAX_SIZE: u64 = 1 << 28;

/// An entry of a layer: kind, path, link, mode, contents.
type Item<'a> = (EntryType, &'a str, &'a str, u32, &'a [u8]);

/// A layer, and its compression.
type Packed = (Vec<u8>, fn(&[u8]) -> Vec<u8>);

const FILE: EntryType = EntryType::Regular;
const DIRECTORY: EntryType = EntryType::Directory;
const LINK: EntryType = EntryType::Symlink;
const SAME: EntryType = EntryType::Link;

fn layer(items: &[Item<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (kind, path, link, mode, data) in items {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(data.len() as u64);
        // Written by hand, because the library would refuse hostile names.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        tar.append(&header, *data).unwrap();
    }
    tar.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn plain_bytes(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn put(temp: &Path, bytes: &[u8]) -> String {
    let hex = Sha::of(bytes).0;
    fs::create_dir_all(temp.join("blobs/sha256")).unwrap();
    fs::write(temp.join("blobs/sha256").join(&hex), bytes).unwrap();
    format!("sha256:{hex}")
}

fn put_json(temp: &Path, value: &Value) -> String {
    put(temp, value.to_string().as_bytes())
}

/// Writes a manifest of layers with their compression into a layout, and returns its digest.
fn manifest(temp: &Path, layers: &[Packed]) -> String {
    let contents: Vec<String> = layers.iter().map(|(tar, _)| format!("sha256:{}", Sha::of(tar).0)).collect();
    let packed: Vec<Value> = layers.iter().map(|(tar, pack)| json!({"digest": put(temp, &pack(tar))})).collect();
    let config = put_json(
        temp,
        &json!({"architecture": architecture(), "os": "linux", "rootfs": {"type": "layers", "diff_ids": contents}}),
    );
    put_json(temp, &json!({"schemaVersion": 2, "config": {"digest": config}, "layers": packed}))
}

fn index(temp: &Path, manifests: &Value) {
    fs::write(temp.join(LAYOUT), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    fs::write(temp.join(INDEX), json!({"schemaVersion": 2, "manifests": manifests}).to_string()).unwrap();
}

fn layout(temp: &Path, layers: &[Packed]) {
    let digest = manifest(temp, layers);
    index(temp, &json!([{"digest": digest, "mediaType": "application/vnd.oci.image.manifest.v1+json"}]));
}

/// Returns a directory for a layout, and one for the unpacked image.
fn directories() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let (from, into) = (temp.path().join("layout"), temp.path().join("outer/tree"));
    fs::create_dir_all(&from).unwrap();
    fs::create_dir_all(&into).unwrap();
    (temp, from, into)
}

fn refused(layers: &[Packed]) -> String {
    let (_temp, from, into) = directories();
    layout(&from, layers);
    let error = read(&from).and_then(|layout| layout.unpack(&into, MAX_SIZE)).unwrap_err();
    error.to_string()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Promise (Virtual machines): The layers of an OCI image are applied in order, with their whiteouts.
#[test]
fn layers_lie_over_one_another_however_they_are_packed() {
    let (_temp, from, into) = directories();
    let below = layer(&[
        (DIRECTORY, "./", "", 0o755, b""),
        (DIRECTORY, "usr/", "", 0o755, b""),
        (DIRECTORY, "usr/bin/", "", 0o555, b""),
        (LINK, "bin", "usr/bin", 0o777, b""),
        (FILE, "usr/bin/tool", "", 0o4755, b"one"),
        (FILE, "gone", "", 0o644, b"x"),
        (DIRECTORY, "emptied/", "", 0o755, b""),
        (FILE, "emptied/old", "", 0o644, b"x"),
        (DIRECTORY, "tree/", "", 0o700, b""),
        (FILE, "tree/deep", "", 0o644, b"x"),
        (FILE, "becomes", "", 0o644, b"x"),
        (EntryType::Char, "null", "", 0o666, b""),
    ]);
    let middle = layer(&[
        // Through a link of the layer below, as in images with merged directories.
        (FILE, "bin/tool", "", 0o711, b"two"),
        (SAME, "usr/bin/same", "bin/tool", 0o644, b""),
        (FILE, ".wh.gone", "", 0o644, b""),
        // Files of the layer itself stay, wherever the whiteout is in it.
        (FILE, "emptied/new", "", 0o600, b"new"),
        (FILE, "emptied/.wh..wh..opq", "", 0o644, b""),
        (FILE, ".wh.tree", "", 0o644, b""),
        (FILE, "nowhere/.wh.x", "", 0o644, b""),
        (DIRECTORY, "becomes/", "", 0o711, b""),
        (LINK, "absolute", "/usr/bin", 0o777, b""),
    ]);
    let above = layer(&[(FILE, "absolute/inside", "", 0o640, b"three"), (FILE, "made/by/need", "", 0o600, b"4")]);
    layout(&from, &[(below, gzip), (middle, zstandard), (above, plain_bytes)]);
    let needs = read(&from).unwrap().unpack(&into, MAX_SIZE).unwrap();
    let text = |path: &str| fs::read_to_string(into.join(path)).unwrap();
    assert_eq!((text("usr/bin/tool"), text("usr/bin/same")), ("two".to_owned(), "two".to_owned()));
    assert_eq!(
        (text("usr/bin/inside"), text("emptied/new"), text("made/by/need")),
        ("three".into(), "new".into(), "4".into())
    );
    for gone in ["gone", "emptied/old", "tree", "null", ".wh.gone", "emptied/.wh..wh..opq", "nowhere/.wh.x"] {
        assert!(fs::symlink_metadata(into.join(gone)).is_err(), "{gone}");
    }
    assert_eq!(
        [mode(&into.join("usr/bin")), mode(&into.join("becomes")), mode(&into.join("usr/bin/tool"))],
        [0o555, 0o711, 0o711]
    );
    assert_eq!((mode(&into.join("made/by")), mode(&into.join("tmp"))), (0o755, 0o1777));
    assert!(needs.inodes > 10 && needs.inodes < 30, "{needs:?}");
    fs::set_permissions(into.join("usr/bin"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Promise (Virtual machines): No layer creates, changes or removes a file outside the image.
#[test]
fn nothing_outside_is_made_changed_or_removed() {
    let (temp, from, into) = directories();
    let outside = temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o751)).unwrap();
    let (absolute, climbing) = (outside.to_str().unwrap(), "../../outside");
    let links = layer(&[
        (LINK, "absolute", absolute, 0o777, b""),
        (LINK, "climbing", climbing, 0o777, b""),
        (DIRECTORY, "late/", "", 0o755, b""),
        (FILE, "late/x", "", 0o644, b""),
    ]);
    let through = layer(&[
        (FILE, "absolute/made", "", 0o644, b"x"),
        (FILE, "climbing/made", "", 0o644, b"x"),
        (FILE, "absolute/.wh.kept", "", 0o644, b""),
        (FILE, "climbing/.wh..wh..opq", "", 0o644, b""),
        (FILE, "late/.wh...", "", 0o644, b""),
        // The mode of a directory that is replaced by a link.
        (LINK, "late", absolute, 0o777, b""),
    ]);
    layout(&from, &[(links, gzip), (through, gzip)]);
    // Either refused, or unpacked inside: nothing is created outside.
    let _ = read(&from).unwrap().unpack(&into, MAX_SIZE);
    assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
    assert_eq!((fs::read_dir(&outside).unwrap().count(), mode(&outside)), (1, 0o751));
    // Hard links to links, and files that later layers write and remove at their names.
    let (_temp, from, into) = directories();
    let below = layer(&[
        (LINK, "out", absolute, 0o777, b""),
        (LINK, "file", &format!("{absolute}/kept"), 0o777, b""),
        (SAME, "same", "file", 0o777, b""),
        (SAME, "same-directory", "out", 0o777, b""),
        (DIRECTORY, "in/", "", 0o755, b""),
        (FILE, "in/one", "", 0o644, b"old"),
        (SAME, "two", "in/one", 0o644, b""),
        (LINK, "to-in", "in", 0o777, b""),
        (LINK, "gone", "in", 0o777, b""),
    ]);
    let above = layer(&[
        (FILE, "same", "", 0o644, b"changed"),
        (FILE, "same-directory/.wh..wh..opq", "", 0o644, b""),
        (FILE, ".wh.file", "", 0o644, b""),
        (FILE, "two", "", 0o644, b"new"),
        (FILE, ".wh.gone", "", 0o644, b""),
        (SAME, "to-in/three", "to-in/one", 0o644, b""),
    ]);
    layout(&from, &[(below, gzip), (above, gzip)]);
    read(&from).unwrap().unpack(&into, MAX_SIZE).unwrap();
    assert_eq!((fs::read_dir(&outside).unwrap().count(), mode(&outside)), (1, 0o751));
    assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");
    let found = |name: &str| fs::read_to_string(into.join(name)).unwrap_or_default();
    assert_eq!(["in/one", "in/three", "two", "same"].map(found), ["old", "old", "new", "changed"]);
    assert!(fs::symlink_metadata(into.join("file")).is_err() && fs::symlink_metadata(into.join("gone")).is_err());
    for (items, says) in [
        (&[(FILE, "../x", "", 0o644, &b"x"[..])][..], "leads out"),
        (&[(DIRECTORY, "a/../../x", "", 0o755, b"")], "leads out"),
        (&[(FILE, "a/../../.wh.x", "", 0o755, b"")], "leads out"),
        (&[(SAME, "x", "../../etc/passwd", 0o644, b"")], "leads out"),
        (&[(SAME, "x", "/etc/passwd", 0o644, b"")], "not there"),
        (&[(LINK, "l", "/etc", 0o777, b""), (SAME, "x", "l/passwd", 0o644, b"")], "not there"),
        (&[(FILE, "f", "", 0o644, b"x"), (FILE, "f/g", "", 0o644, b"x")], "in a file"),
        (&[(LINK, "l", "l", 0o777, b""), (FILE, "l/x", "", 0o644, b"x")], "cannot be unpacked"),
        (&[(FILE, "dev", "", 0o644, b"x")], "not a directory"),
    ] {
        let message = refused(&[(layer(items), gzip)]);
        assert!(message.contains(says), "{items:?}: {message}");
    }
}

/// Promise (Virtual machines): A layer that does not match its digest is refused.
#[test]
fn layer_that_does_not_match_its_digest_is_refused() {
    let good = || layer(&[(FILE, "f", "", 0o644, b"hello")]);
    let damaged = |change: fn(&Path)| {
        let (_temp, from, into) = directories();
        layout(&from, &[(good(), gzip)]);
        change(&from);
        read(&from).and_then(|layout| layout.unpack(&into, MAX_SIZE)).map(drop)
    };
    assert!(damaged(|_| ()).is_ok());
    fn each(temp: &Path, change: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        for entry in fs::read_dir(temp.join("blobs/sha256")).unwrap() {
            let path = entry.unwrap().path();
            if let Some(changed) = change(&fs::read(&path).unwrap()) {
                fs::write(path, changed).unwrap();
            }
        }
    }
    for change in [
        |temp: &Path| each(temp, |bytes| bytes.starts_with(&[0x1f, 0x8b]).then(|| [bytes, b" "].concat())),
        |temp: &Path| each(temp, |bytes| (bytes[0] == b'{').then(|| [bytes, b" "].concat())),
    ] {
        let error = damaged(change).unwrap_err().to_string();
        assert!(error.contains("hashes to something else"), "{error}");
    }
    for change in [
        |temp: &Path| fs::remove_dir_all(temp.join("blobs")).unwrap(),
        |temp: &Path| fs::write(temp.join(INDEX), "{}").unwrap(),
        |temp: &Path| fs::write(temp.join(INDEX), vec![b' '; 5 << 20]).unwrap(),
        |temp: &Path| {
            // A digest that is a path.
            let index = json!({"manifests": [{"digest": "sha256:../../../etc/passwd"}]});
            fs::write(temp.join(INDEX), index.to_string()).unwrap();
        },
        |temp: &Path| {
            fs::remove_file(temp.join(INDEX)).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", temp.join(INDEX)).unwrap();
        },
    ] {
        damaged(change).unwrap_err();
    }
    // The compressed layer matches its digest, but its contents do not match the configuration.
    let (_temp, from, into) = directories();
    let (tar, other) = (good(), layer(&[(FILE, "f", "", 0o644, b"other")]));
    let packed = put(&from, &gzip(&tar));
    let config = put_json(&from, &json!({"rootfs": {"diff_ids": [format!("sha256:{}", Sha::of(&other).0)]}}));
    let digest = put_json(&from, &json!({"config": {"digest": config}, "layers": [{"digest": packed}]}));
    index(&from, &json!([{"digest": digest}]));
    let error = read(&from).and_then(|layout| layout.unpack(&into, MAX_SIZE)).unwrap_err().to_string();
    assert!(error.contains("hashes to something else"), "{error}");
}

/// Promise (Virtual machines): A layer that exceeds the size limit is refused.
#[test]
fn layer_beyond_the_size_limit_is_refused() {
    let zeros = vec![0; 64 << 20];
    let bomb = layer(&[(FILE, "f", "", 0o644, &zeros)]);
    let (_temp, from, into) = directories();
    layout(&from, &[(bomb, zstandard)]);
    let error = read(&from).and_then(|layout| layout.unpack(&into, 8 << 20)).unwrap_err();
    assert!(matches!(&error, ImageError::TooLarge { .. } | ImageError::InvalidSource { .. }), "{error}");
    let written = fs::metadata(into.join("f")).map_or(0, |found| found.len());
    assert!(written <= 17 << 20, "{written}");
    // After the end of its tar, a layer may have further data, within the limit.
    let mut long = layer(&[(FILE, "f", "", 0o644, b"x")]);
    long.extend_from_slice(&zeros);
    let (_temp, from, into) = directories();
    layout(&from, &[(long, gzip)]);
    let error = read(&from).and_then(|layout| layout.unpack(&into, 8 << 20)).unwrap_err().to_string();
    assert!(error.contains("larger than allowed"), "{error}");
}

/// Promise (Virtual machines): The image for the architecture of the host is chosen.
#[test]
fn image_of_the_host_architecture_is_chosen() {
    let (_temp, from, _) = directories();
    let layers: fn(&[u8]) -> Packed = |data| (layer(&[(FILE, "f", "", 0o644, data)]), gzip);
    let (ours, theirs) = (manifest(&from, &[layers(b"ours")]), manifest(&from, &[layers(b"theirs")]));
    let platform = |name: &str| json!({"architecture": name, "os": "linux"});
    let identity = || read(&from).map(|layout| layout.identity());
    index(
        &from,
        &json!([{"digest": ours, "platform": platform(architecture())}, {"digest": theirs, "platform": platform("s390x")}]),
    );
    let expected = identity().unwrap();
    // Referenced by an index of its own, with a builder's attestation.
    let nested = json!({"manifests": [
        {"digest": ours, "platform": platform(architecture())},
        {"digest": theirs, "platform": platform("unknown"), "annotations": {"vnd.docker.reference.type": "attestation-manifest"}},
    ]});
    let nested = put_json(&from, &nested);
    index(&from, &json!([{"digest": nested, "mediaType": "application/vnd.oci.image.index.v1+json"}]));
    assert_eq!(identity().unwrap(), expected);
    index(&from, &json!([{"digest": ours}, {"digest": ours}]));
    assert_eq!(identity().unwrap(), expected);
    for several in [
        json!([{"digest": ours}, {"digest": theirs}]),
        json!([]),
        json!([{"digest": ours, "platform": platform("s390x")}]),
    ] {
        index(&from, &several);
        assert!(identity().unwrap_err().to_string().contains("one is needed"), "{several}");
    }
    // An index cannot contain its own digest; too deeply nested indexes are refused.
    let mut deep = nested;
    for _ in 0..5 {
        deep = put_json(&from, &json!({"manifests": [{"digest": deep, "mediaType": "x.index.y"}]}));
    }
    index(&from, &json!([{"digest": deep, "mediaType": "x.index.y"}]));
    assert!(identity().unwrap_err().to_string().contains("without an end"));
}

/// Promise (Virtual machines): An OCI image can come from a tar file or from `docker save`.
#[test]
fn oci_tars_and_docker_save_tars_are_accepted() {
    let (temp, from, into) = directories();
    layout(&from, &[(layer(&[(FILE, "f", "", 0o644, b"hello")]), gzip)]);
    let path = temp.path().join("layout.tar");
    let mut tar = tar::Builder::new(File::create(&path).unwrap());
    tar.append_dir_all("./", &from).unwrap();
    tar.finish().unwrap();
    let layout = |path: &Path| is_layout(File::open(path).unwrap(), path);
    assert!(layout(&path) && layout(&from) && !layout(&into));
    read(&path).unwrap().unpack(&into, MAX_SIZE).unwrap();
    assert_eq!(fs::read_to_string(into.join("f")).unwrap(), "hello");
    assert_eq!(read(&path).unwrap().identity(), read(&from).unwrap().identity());

    let saved = temp.path().join("saved.tar");
    let contents = layer(&[(FILE, "f", "", 0o644, b"saved")]);
    let config = json!({"rootfs": {"diff_ids": [format!("sha256:{}", Sha::of(&contents).0)]}}).to_string();
    let write = |config: &str, contents: &[u8], digest: &str| {
        let name = format!("{digest}.json");
        let list = json!([{"Config": name, "RepoTags": ["x:1"], "Layers": ["1/layer.tar"]}]).to_string();
        let mut tar = tar::Builder::new(File::create(&saved).unwrap());
        for (path, data) in [(&*name, config.as_bytes()), ("1/layer.tar", contents), (SAVED, list.as_bytes())] {
            let mut header = Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, data).unwrap();
        }
        tar.finish().unwrap();
    };
    let digest = Sha::of(config.as_bytes()).0;
    write(&config, &contents, &digest);
    assert!(is_layout(File::open(&saved).unwrap(), &saved));
    let tree = || tempfile::tempdir_in(temp.path()).unwrap();
    let into = tree();
    read(&saved).unwrap().unpack(into.path(), MAX_SIZE).unwrap();
    assert_eq!(fs::read_to_string(into.path().join("f")).unwrap(), "saved");
    write(&config, &layer(&[(FILE, "f", "", 0o644, b"other")]), &digest);
    assert!(read(&saved).unwrap().unpack(tree().path(), MAX_SIZE).is_err());
    write(&(config + " "), &contents, &digest);
    assert!(read(&saved).is_err());
}

#[test]
fn a_name_that_takes_all_memory_is_refused_before_it_is_read() {
    let name = vec![0; 200 << 20];
    let below = layer(&[(FILE, "f", "", 0o644, b"x")]);
    let hostile = layer(&[(EntryType::GNULongName, "././@LongLink", "", 0o644, &name), (FILE, "f", "", 0o644, b"y")]);
    drop(name);
    for pack in [gzip as fn(&[u8]) -> Vec<u8>, zstandard] {
        let error = refused(&[(below.clone(), pack), (hostile.clone(), pack)]);
        assert!(error.contains("headers of a member are larger"), "{error}");
    }
    // The same in a tar of a root file system, in a kernel's package, and around the image.
    let temp = tempfile::tempdir().unwrap();
    let into = temp.path().join("tree");
    fs::create_dir(&into).unwrap();
    let error = super::super::root::unpack(&*hostile, &into, MAX_SIZE).unwrap_err().to_string();
    assert!(error.contains("headers of a member are larger"), "{error}");
    let error = super::super::kernel::from_tar(&*hostile).unwrap_err().to_string();
    assert!(error.contains("headers of a member are larger"), "{error}");
    fs::write(temp.path().join("tar"), &hostile).unwrap();
    let error = read(&temp.path().join("tar")).unwrap_err().to_string();
    assert!(error.contains("headers of a member are larger"), "{error}");
}

#[test]
fn links_do_not_lead_deeper_than_paths_do() {
    let below = "d/".repeat(40);
    let (file, links): (Vec<String>, Vec<String>) =
        (0..30).map(|at| (format!("l{at}/{below}f"), format!("l{at}/{below}"))).unzip();
    let names: Vec<String> = (0..31).map(|at| format!("l{at}")).collect();
    for kind in [FILE, DIRECTORY] {
        let first = format!("{below}f");
        let mut items: Vec<Item<'_>> = vec![(kind, &first, "", 0o644, b""), (LINK, &names[0], &below, 0o777, b"")];
        for at in 0..30 {
            items.push((kind, &file[at], "", 0o644, b""));
            items.push((LINK, &names[at + 1], &links[at], 0o777, b""));
        }
        let (temp, from, into) = directories();
        layout(&from, &[(layer(&items), plain_bytes)]);
        let error = read(&from).and_then(|layout| layout.unpack(&into, MAX_SIZE)).unwrap_err().to_string();
        assert!(error.contains("directories are too deep"), "{error}");
        // Refused during creation, not when the entries were counted.
        let depth = std::iter::successors(Some(into), |path| Some(path.join("d")).filter(|path| path.is_dir())).count();
        assert!((200..=257).contains(&depth), "{depth}");
        fs::remove_dir_all(temp.path()).unwrap();
    }
}

#[test]
fn a_device_without_an_end_is_no_image() {
    let error = crate::RootSource::at("/dev/zero").unwrap_err().to_string();
    assert!(error.contains("neither a directory nor a regular file"), "{error}");
}
