//! Packages with forbidden content.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use cofferdam_image::{DebianError, Plan};
use tar::EntryType::{self, Block, Char, Directory, Fifo, GNULongName, Link, Regular, Symlink, XHeader};

use crate::packages::{control, entry, write};
use crate::root::{Root, tar_of};

/// Returns true if dpkg is installed, which is needed to read packages.
fn can_read(test: &str) -> bool {
    let reads = Command::new("dpkg-deb").arg("--version").output().is_ok();
    if !reads {
        println!("SKIP {test}: dpkg-deb is not installed");
    }
    reads
}

fn file(name: &str) -> Vec<u8> {
    entry(name.as_bytes(), Regular, 0o644, b"", b"x")
}

fn plain(name: &str, kind: EntryType, link: &str) -> Vec<u8> {
    entry(name.as_bytes(), kind, 0o755, link.as_bytes(), b"")
}

/// Returns the error for packages with these files.
fn refusal(packages: &[Vec<u8>]) -> DebianError {
    let temp = tempfile::tempdir().expect("a directory");
    let created = packages.iter().enumerate().map(|(number, data)| {
        let name = format!("evil{number}");
        write(temp.path(), &name, &control(&name), data)
    });
    let plan = Plan::from_files(&created.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"));
    let mut tar = Vec::new();
    let error = plan.write_tar(&mut tar, &mut |_| ()).expect_err("it was accepted");
    assert!(!tar.ends_with(&[0; 1024]), "a refused package left a complete tar");
    error
}

/// Promise (Containers): A hostile Debian package is refused by name.
#[test]
fn a_package_with_something_evil_is_refused_by_name() {
    if !can_read("a_package_with_something_evil_is_refused_by_name") {
        return;
    }
    let cases: &[(&str, Vec<u8>)] = &[
        ("climbs out", file("../evil")),
        ("climbs out", file("./usr/../../evil")),
        ("absolute", file("/etc/evil")),
        ("device", plain("./dev/null", Char, "")),
        ("device", plain("./usr/disk", Block, "")),
        ("named pipe", plain("./usr/pipe", Fifo, "")),
        ("where only directories", file("./proc/evil")),
        ("unknown kind", entry(b"pax", XHeader, 0o644, b"", b"20 path=../../evil\n\n")),
        ("longer than Linux", entry(b"././@LongLink", GNULongName, 0, b"", &[b'x'; 5000])),
        ("no earlier file", plain("./usr/evil", Link, "./etc/shadow")),
        ("climbs out", plain("./usr/evil", Link, "../../etc/shadow")),
        ("absolute", plain("./usr/evil", Link, "/etc/shadow")),
        ("no earlier file", [plain("./usr/a", Symlink, "b"), plain("./usr/c", Link, "usr/a")].concat()),
        ("leads out", plain("./usr/evil", Symlink, "../../etc/shadow")),
        ("has no target", plain("./usr/evil", Symlink, "")),
        ("no directory", [plain("./evil", Symlink, "/etc"), file("./evil/passwd")].concat()),
        ("no directory", file("./var/run/evil")),
        ("twice", [file("./usr/evil"), file("./usr/evil")].concat()),
        ("twice", [file("./bin/evil"), file("./usr/bin/evil")].concat()),
        ("twice", [file("./usr/evil"), plain("./usr/evil", Symlink, "x")].concat()),
        ("something else", [file("./usr/evil"), plain("./usr/evil/", Directory, "")].concat()),
        ("twice", file("./etc/passwd")),
        ("twice", file("./bin")),
        ("link to elsewhere", plain("./bin", Symlink, "tmp")),
        ("link to elsewhere", plain("./lib64", Symlink, "/tmp")),
        ("'removed'", file("./usr/.wh.bin")),
        ("has contents", entry(b"./usr/evil", Symlink, 0o777, b"x", b"contents")),
    ];
    for (reason, data) in cases {
        let error = refusal(std::slice::from_ref(data));
        let DebianError::BadPackage { package, reason: found } = &error else { panic!("{reason}: {error}") };
        assert_eq!(package, "evil0");
        assert!(found.contains(reason), "'{found}' does not contain '{reason}'");
    }
    let error = refusal(&[file("./usr/evil"), file("./usr/evil")]);
    assert!(matches!(&error, DebianError::BadPackage { package, .. } if package == "evil1"), "{error}");
    let error = refusal(&[file("./usr/evil"), plain("./usr/other", Link, "usr/evil")]);
    assert!(matches!(&error, DebianError::BadPackage { package, .. } if package == "evil1"), "{error}");
}

#[test]
fn file_that_is_no_package_is_refused() {
    if !can_read("file_that_is_no_package_is_refused") {
        return;
    }
    let temp = tempfile::tempdir().expect("a directory");
    let path = temp.path().join("x.deb");
    for contents in [&b""[..], b"no package", b"!<arch>\n"] {
        fs::write(&path, contents).expect("a file");
        let error = Plan::from_files(std::slice::from_ref(&path)).expect_err("no package");
        assert!(matches!(&error, DebianError::BadPackage { reason, .. } if reason.contains("dpkg-deb")), "{error}");
    }
    for control in [control("x") + "\nPackage: y\n", control("x") + "Status: x\n", "Package: x\n".to_owned()] {
        let path = write(temp.path(), "y", &control, &[]);
        assert!(Plan::from_files(&[path]).is_err(), "{control}");
    }
    let whole = write(temp.path(), "z", &control("z"), &file("./usr/z"));
    let bytes = fs::read(&whole).expect("a package");
    let plan = Plan::from_files(std::slice::from_ref(&whole)).expect("a plan");
    fs::write(&whole, &bytes[..bytes.len() - 1300]).expect("truncated");
    let error = plan.write_tar(std::io::sink(), &mut |_| ()).expect_err("it changed");
    assert!(matches!(error, DebianError::WrongHash { .. }), "{error}");
    let plan = Plan::from_files(std::slice::from_ref(&whole)).expect("its control file is whole");
    let error = plan.write_tar(std::io::sink(), &mut |_| ()).expect_err("it is truncated");
    assert!(matches!(&error, DebianError::BadPackage { package, .. } if package == "z"), "{error}");
}

#[test]
fn a_package_of_dpkgs_own_making_comes_out_as_it_should() {
    if !can_read("a_package_of_dpkgs_own_making_comes_out_as_it_should") {
        return;
    }
    let temp = tempfile::tempdir().expect("a directory");
    let tree = temp.path().join("tree");
    let long = format!("usr/lib/{}/{}", "d".repeat(90), "f".repeat(90));
    let files =
        ["bin/tool", "sbin/dash", "usr/share/doc/p/copyright", "usr/share/doc/p/NEWS", "usr/share/man/x", &long];
    for name in files {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(&path, name).expect("a file");
    }
    fs::set_permissions(tree.join("bin/tool"), fs::Permissions::from_mode(0o6755)).expect("permissions");
    fs::hard_link(tree.join("bin/tool"), tree.join("bin/tool2")).expect("a link");
    std::os::unix::fs::symlink("tool", tree.join("bin/link")).expect("a link");
    std::os::unix::fs::symlink(format!("/{long}"), tree.join("bin/far")).expect("a link");
    fs::create_dir(tree.join("DEBIAN")).expect("a directory");
    fs::write(tree.join("DEBIAN/control"), control("p")).expect("control");
    let package = temp.path().join("p.deb");
    let built = Command::new("dpkg-deb").args(["--root-owner-group", "-b"]).args([&tree, &package]).output();
    assert!(built.as_ref().is_ok_and(|output| output.status.success()), "{built:?}");

    let plan = Plan::from_files(&[package]).expect("a plan");
    assert_eq!(plan.packages()[0].version, "1");
    let tar = tar_of(&plan);
    assert!(tar == tar_of(&plan), "different bytes");
    let root = Root::unpack(&tar);
    let inside = |name: &str| root.path().join(name);
    let read = |name: &str| fs::read_to_string(inside(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read("usr/bin/tool"), "bin/tool");
    assert_eq!(read("bin/tool2"), "bin/tool");
    assert_eq!(read("bin/link"), "bin/tool");
    assert_eq!(read("sbin/dash"), "sbin/dash");
    assert_eq!(read(&long), long);
    assert_eq!(fs::read_link(inside("bin/far")).expect("a link").to_str(), Some(&*format!("/{long}")));
    assert_eq!(inside("bin/tool").metadata().expect("a file").permissions().mode() & 0o7777, 0o755);
    assert!(inside("usr/share/doc/p/copyright").exists() && !inside("usr/share/doc/p/NEWS").exists());
    assert!(!inside("usr/share/man").exists());
    assert!(read("var/lib/dpkg/status").starts_with("Package: p\nStatus: install ok installed\n"));
    let mut archive = tar::Archive::new(&*tar);
    let entries = archive.entries().expect("a tar");
    let times = entries.map(|entry| entry.expect("an entry").header().mtime().ok());
    assert!(times.flatten().all(|time| time <= 1_577_836_800));
}

#[test]
fn full_disk_is_reported_as_no_space() {
    if !can_read("full_disk_is_reported_as_no_space") {
        return;
    }
    let temp = tempfile::tempdir().expect("a directory");
    let package = write(temp.path(), "x", &control("x"), &file("./usr/x"));
    let plan = Plan::from_files(&[package]).expect("a plan");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let error = plan.write_tar(full, &mut |_| ()).expect_err("nothing can be written");
    assert!(matches!(error, DebianError::NoSpace { .. }), "{error}");
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    if !can_read("a_file_appears_whole_or_not_at_all") {
        return;
    }
    let temp = tempfile::tempdir().expect("a directory");
    let good = write(temp.path(), "good", &control("good"), &file("./usr/x"));
    let bad = write(temp.path(), "worse", &control("worse"), &file("./usr/x"));
    let output = temp.path().join("out.tar");
    let both = Plan::from_files(&[good.clone(), bad]).expect("a plan");
    both.write_file(&output, &mut |_| ()).expect_err("one file twice");
    assert!(!output.exists());
    let plan = Plan::from_files(&[good]).expect("a plan");
    plan.write_file(&output, &mut |_| {
        let second = plan.write_file(&output, &mut |_| ()).expect_err("it is being written");
        assert!(second.to_string().contains("another process writes the same"), "{second}");
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert!(fs::read(&output).expect("a tar") == tar_of(&plan));
    let left: Vec<_> = fs::read_dir(temp.path()).expect("a directory").flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("making")), "{left:?}");
}
