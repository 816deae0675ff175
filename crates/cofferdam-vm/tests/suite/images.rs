//! Images: reproducible, complete or rebuilt, and built by any user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cofferdam_contract::{Backend, ByteSize, ErrorKind, ExecRequest, Spec};
use cofferdam_debian::Cache;
use cofferdam_util::sha256;
use cofferdam_vm::image::{Images, KernelSource, Progress, RootSource, Source};
use cofferdam_vm::{MakePolicy, VmBackend, VmError};
use serde_json::json;

use crate::support;

fn has_mkfs(test: &str) -> bool {
    let there = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"].iter().any(|path| Path::new(path).exists());
    if !there {
        println!("SKIP {test}: no mkfs.ext4 here (package e2fsprogs)");
    }
    there
}

/// Returns a source of files that needs no packages. No VM could boot from it.
fn sample(place: &Path) -> Source {
    let root = place.join("root");
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    fs::write(root.join("usr/bin/program"), vec![1; 20_000]).unwrap();
    std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
    let (image, module) = (place.join("kernel"), place.join("virtio.ko"));
    fs::write(&image, "a kernel").unwrap();
    fs::write(&module, "a module").unwrap();
    let kernel = KernelSource::Files { image, modules: vec![module] };
    Source { kernel, root: RootSource::Directory(root), ..Source::default() }
}

fn images(place: &Path, name: &str) -> Images {
    Images::new(place.join(name), Cache::new(place.join("packages")))
}

/// Promise (Virtual machines): The same sources give the same image in every cache.
#[test]
fn the_same_sources_give_the_same_bytes_in_every_cache() {
    if !has_mkfs("the_same_sources_give_the_same_bytes_in_every_cache") {
        return;
    }
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let make = |place: &Path, source: &Source| images(place, "cache").make(source, &mut |_| ()).unwrap();
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
    let changed = images(two.path(), "cache").find(&source, MakePolicy::Never, &mut |_| ()).unwrap();
    assert_ne!(changed.key, second.key);
}

/// Promise (Virtual machines): A damaged image is recreated.
#[test]
fn a_damaged_image_is_made_again_and_only_then() {
    if !has_mkfs("a_damaged_image_is_made_again_and_only_then") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (images, source) = (images(place.path(), "cache"), sample(place.path()));
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

#[test]
fn several_at_once_make_one() {
    if !has_mkfs("several_at_once_make_one") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (images, source) = (images(place.path(), "cache"), sample(place.path()));
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
    let names = fs::read_dir(place.path().join("cache")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("work.")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_too_large_or_not_there_is_refused() {
    if !has_mkfs("what_is_too_large_or_not_there_is_refused") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let source = Source { most: ByteSize::from_bytes(1 << 20), ..sample(place.path()) };
    let refused = |source: &Source| images(place.path(), "cache").make(source, &mut |_| ()).unwrap_err();
    assert!(matches!(refused(&source), VmError::TooLarge { .. }));
    let missing = Source { root: RootSource::Tar(place.path().join("none")), ..source.clone() };
    assert!(matches!(refused(&missing), VmError::Io { .. }));
    let none = images(place.path(), "empty").find(&Source::default(), MakePolicy::Never, &mut |_| ());
    assert!(matches!(none, Err(VmError::NoImage)));
}

/// Neither images nor VMs need root.
#[test]
fn an_ordinary_user_makes_an_image_and_a_machine() {
    const USER: u32 = 4711;
    let test = "an_ordinary_user_makes_an_image_and_a_machine";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: this is one already");
        return;
    }
    if support::image(test).is_none() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    // Cached packages need no download; they are verified by their hashes all the same.
    let packages = place.path().join("debian/packages");
    fs::create_dir_all(&packages).unwrap();
    for entry in fs::read_dir(support::cache().join("debian/packages")).unwrap() {
        let path = entry.unwrap().path();
        let copy = packages.join(path.file_name().unwrap());
        fs::copy(&path, &copy).unwrap();
        chown(&copy, Some(USER), Some(USER)).unwrap();
    }
    for path in [place.path(), &place.path().join("debian"), &packages] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let program = place.path().join("suite");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut again = Command::new(&program);
    again.args(["--exact", "boot::a_machine_boots_runs_a_command_and_leaves_nothing", "--nocapture"]);
    again.env("COFFERDAM_TEST_CACHE", place.path()).env("TMPDIR", place.path()).env("HOME", place.path());
    let output = again.current_dir("/").uid(USER).gid(USER).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("greeted and measured"), "{said}");
}

/// Adds a layer, and returns the digests of its contents and of its compressed file.
fn layer(place: &Path, fill: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> (String, String) {
    let mut tar = tar::Builder::new(Vec::new());
    tar.follow_symlinks(false);
    fill(&mut tar);
    let contents = tar.into_inner().unwrap();
    let packed = zstd::encode_all(&*contents, 1).unwrap();
    (digest(&contents), put(place, &packed))
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256::of(bytes))
}

fn put(place: &Path, bytes: &[u8]) -> String {
    let digest = digest(bytes);
    let path = place.join("blobs").join(digest.replace(':', "/"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    digest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_starts_from_a_containers_image() {
    if support::image("a_machine_starts_from_a_containers_image").is_none() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (root, from) = (place.path().join("root"), place.path().join("layout"));
    fs::create_dir_all(&root).unwrap();
    fs::create_dir_all(&from).unwrap();
    support::root(&root).expect("packages are cached");
    let base = layer(&from, |tar| tar.append_dir_all("", &root).unwrap());
    let above = layer(&from, |tar| {
        for (path, data) in [("etc/.wh.debian_version", ""), ("etc/made-by", "a layer")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, data.as_bytes()).unwrap();
        }
    });
    let put_json = |value: serde_json::Value| put(&from, value.to_string().as_bytes());
    let config = put_json(json!({"rootfs": {"diff_ids": [base.0, above.0]}}));
    let manifest = put_json(json!({"config": {"digest": config}, "layers": [{"digest": base.1}, {"digest": above.1}]}));
    fs::write(from.join("index.json"), json!({"manifests": [{"digest": manifest}]}).to_string()).unwrap();
    fs::write(from.join("oci-layout"), "{}").unwrap();
    let source = RootSource::at(&from).unwrap();
    assert_eq!(source, RootSource::Oci(from.clone()));
    let mut config = support::config();
    config.images = place.path().join("images");
    config.make = MakePolicy::Missing;
    config.source.root = source;
    let sandbox = VmBackend::new(config).unwrap().create(Spec::default()).await.unwrap();
    let line = "cat /etc/made-by; test -e /etc/debian_version || echo gone; python3 -c 'print(6 * 7)'";
    let done = sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "a layergone\n42\n", "{done:?}");
    sandbox.close().await.unwrap();
}

/// Returns a backend whose VMs boot from a directory.
fn of_directory(place: &Path, root: &Path) -> VmBackend {
    let mut config = support::config();
    config.images = place.join("images");
    config.make = MakePolicy::Missing;
    config.source.root = RootSource::Directory(root.to_owned());
    VmBackend::new(config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_differ_in_their_id_wherever_the_image_had_it_or_are_refused() {
    if support::image("copies_differ_in_their_id_wherever_the_image_had_it_or_are_refused").is_none() {
        return;
    }
    const BUS: &str = "/var/lib/dbus/machine-id";
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    fs::create_dir_all(&root).unwrap();
    support::root(&root).expect("packages are cached");
    fs::create_dir_all(root.join("var/lib/dbus")).unwrap();
    fs::write(root.join(&BUS[1..]), "0123456789abcdef0123456789abcdef\n").unwrap();
    // A root may have no such file, a file, or a link.
    let _ = fs::remove_file(root.join("etc/machine-id"));
    std::os::unix::fs::symlink(BUS, root.join("etc/machine-id")).unwrap();
    let backend = of_directory(place.path(), &root);
    let sandbox = backend.create(Spec::default()).await.unwrap();
    let snapshot = sandbox.snapshot().await.unwrap();
    sandbox.close().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let copy = backend.restore(snapshot.clone(), Spec::default()).await.unwrap();
        let line = format!("cat /etc/machine-id {BUS}");
        let done = copy.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].len() == 32, "{done:?}");
        ids.push(lines[0].to_owned());
        copy.close().await.unwrap();
    }
    assert_ne!(ids[0], ids[1]);

    // If the directory itself is a link, the machine ID cannot be bound, which is reported.
    fs::rename(root.join("etc"), root.join("usr/etc")).unwrap();
    std::os::unix::fs::symlink("usr/etc", root.join("etc")).unwrap();
    let backend = of_directory(place.path(), &root);
    let sandbox = backend.create(Spec::default()).await.unwrap();
    let snapshot = sandbox.snapshot().await.unwrap();
    let error = backend.restore(snapshot, Spec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("/etc/machine-id") && error.remedy().is_some(), "{error}");
    sandbox.close().await.unwrap();
}
