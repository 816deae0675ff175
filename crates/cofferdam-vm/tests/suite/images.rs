//! VMs from images of every source, built by any user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cofferdam_contract::{Backend, ErrorKind, ExecRequest, Spec};
use cofferdam_image::RootSource;
use cofferdam_util::sha256;
use cofferdam_vm::{MakePolicy, VmBackend};
use serde_json::json;

use crate::support;

/// Neither images nor VMs need root.
#[test]
fn ordinary_user_builds_an_image_and_starts_a_vm() {
    const USER: u32 = 4711;
    let test = "ordinary_user_builds_an_image_and_starts_a_vm";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: this is one already");
        return;
    }
    if support::image(test).is_none() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), Permissions::from_mode(0o755)).unwrap();
    // Cached packages need no download; they are verified by their hashes all the same.
    let packages = temp.path().join("debian/packages");
    fs::create_dir_all(&packages).unwrap();
    for entry in fs::read_dir(support::cache().join("debian/packages")).unwrap() {
        let path = entry.unwrap().path();
        let copy = packages.join(path.file_name().unwrap());
        fs::copy(&path, &copy).unwrap();
        chown(&copy, Some(USER), Some(USER)).unwrap();
    }
    for path in [temp.path(), &temp.path().join("debian"), &packages] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let program = temp.path().join("suite");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut again = Command::new(&program);
    again.args(["--exact", "boot::vm_boots_runs_a_command_and_leaves_nothing", "--nocapture"]);
    again.env("COFFERDAM_TEST_CACHE", temp.path()).env("TMPDIR", temp.path()).env("HOME", temp.path());
    let output = again.current_dir("/").uid(USER).gid(USER).output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("greeted and measured"), "{printed}");
}

/// Adds a layer, and returns the digests of its contents and of its compressed file.
fn layer(temp: &Path, fill: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> (String, String) {
    let mut tar = tar::Builder::new(Vec::new());
    tar.follow_symlinks(false);
    fill(&mut tar);
    let contents = tar.into_inner().unwrap();
    let packed = zstd::encode_all(&*contents, 1).unwrap();
    (digest(&contents), put(temp, &packed))
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256::of(bytes))
}

fn put(temp: &Path, bytes: &[u8]) -> String {
    let digest = digest(bytes);
    let path = temp.join("blobs").join(digest.replace(':', "/"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    digest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_starts_from_a_container_image() {
    if support::image("vm_starts_from_a_container_image").is_none() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let (root, from) = (temp.path().join("root"), temp.path().join("layout"));
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
    config.images = temp.path().join("images");
    config.make = MakePolicy::Missing;
    config.source.root = source;
    let sandbox = VmBackend::new(config).unwrap().create(Spec::default()).await.unwrap();
    let line = "cat /etc/made-by; test -e /etc/debian_version || echo gone; python3 -c 'print(6 * 7)'";
    let done = sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "a layergone\n42\n", "{done:?}");
    sandbox.close().await.unwrap();
}

/// Returns a backend whose VMs boot from a directory.
fn of_directory(temp: &Path, root: &Path) -> VmBackend {
    let mut config = support::config();
    config.images = temp.join("images");
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
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    fs::create_dir_all(&root).unwrap();
    support::root(&root).expect("packages are cached");
    fs::create_dir_all(root.join("var/lib/dbus")).unwrap();
    fs::write(root.join(&BUS[1..]), "0123456789abcdef0123456789abcdef\n").unwrap();
    // A root may have no such file, a file, or a link.
    let _ = fs::remove_file(root.join("etc/machine-id"));
    std::os::unix::fs::symlink(BUS, root.join("etc/machine-id")).unwrap();
    let backend = of_directory(temp.path(), &root);
    let sandbox = backend.create(Spec::default()).await.unwrap();
    let snapshot = sandbox.snapshot().await.unwrap();
    sandbox.close().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let copy = backend.restore(snapshot.clone(), Spec::default()).await.unwrap();
        let line = format!("cat /etc/machine-id {BUS}");
        let done = copy.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap();
        let printed = String::from_utf8_lossy(&done.stdout);
        let lines: Vec<&str> = printed.lines().collect();
        assert!(lines.len() == 2 && lines[0] == lines[1] && lines[0].len() == 32, "{done:?}");
        ids.push(lines[0].to_owned());
        copy.close().await.unwrap();
    }
    assert_ne!(ids[0], ids[1]);

    // If the directory itself is a link, the machine ID cannot be bound, which is reported.
    fs::rename(root.join("etc"), root.join("usr/etc")).unwrap();
    std::os::unix::fs::symlink("usr/etc", root.join("etc")).unwrap();
    let backend = of_directory(temp.path(), &root);
    let sandbox = backend.create(Spec::default()).await.unwrap();
    let snapshot = sandbox.snapshot().await.unwrap();
    let error = backend.restore(snapshot, Spec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("/etc/machine-id") && error.remedy().is_some(), "{error}");
    sandbox.close().await.unwrap();
}
