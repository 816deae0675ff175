//! Capture from a real overlay, in a mount namespace of its own.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use cofferdam_changes::{ApplyOptions, Bounds, ChangeSet, Kind, Marks, SkipReason, Summary, apply, capture_overlay};

use crate::common::*;

/// Directory in which the mounting process works. Set for that process alone.
const INSIDE: &str = "COFFERDAM_CHANGES_OVERLAY";

/// Runs this test program again in a new mount namespace, for one test. Returns the directory in that process.
fn namespace(test: &str) -> Option<std::path::PathBuf> {
    if let Some(directory) = std::env::var_os(INSIDE) {
        return Some(directory.into());
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root mounts an overlay");
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs tmpfs \"$0\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(temp.path())
        .arg(std::env::current_exe().unwrap())
        .args([&format!("overlay::{test}"), "--exact", "--nocapture"])
        .env(INSIDE, temp.path())
        .output();
    match output {
        Err(error) => println!("SKIP {test}: unshare does not start: {error}"),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            print!("{text}");
            assert!(output.status.success(), "{text}");
            assert!(text.contains("1 passed"), "{text}");
        }
    }
    None
}

/// Lets the shell of a guest change an overlay over `base`, and captures the changes.
fn capture(directory: &Path, options: &str, script: &str) -> Option<(ChangeSet, Summary)> {
    let path = |name: &str| directory.join(name);
    for name in ["upper", "work", "merged"] {
        fs::create_dir(path(name)).unwrap();
    }
    let header = start(&path("base"));
    let layers = format!(
        "{options}lowerdir={},upperdir={},workdir={}",
        path("base").display(),
        path("upper").display(),
        path("work").display()
    );
    let mounted = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &layers]).arg(path("merged")).output();
    let mounted = mounted.unwrap();
    if !mounted.status.success() {
        println!("SKIP the rest: no overlay can be mounted: {}", String::from_utf8_lossy(&mounted.stderr));
        return None;
    }
    let output = Command::new("sh").args(["-euc", script]).current_dir(path("merged")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (upper, base) = (File::open(path("upper")).unwrap(), File::open(path("base")).unwrap());
    let file = tempfile::tempfile().unwrap();
    let marks = if options.contains("userxattr") { Marks::User } else { Marks::Trusted };
    let summary = capture_overlay(upper.as_fd(), base.as_fd(), marks, &header, &file, &Bounds::default()).unwrap();
    Some((ChangeSet::read(file, &Bounds::default()).unwrap(), summary))
}

const BASE: [&str; 13] = [
    "edit",
    "gone",
    "same",
    "exec",
    "dir/a",
    "dir/b",
    "moved/x/y",
    "nested/sub/old",
    "nested/sub/deep/old",
    "opaque/old",
    "opaque/same",
    "to_dir",
    "to_file/x",
];

fn base(directory: &Path) {
    for path in BASE {
        put(&directory.join("base"), path, "original\n");
    }
}

const SCRIPT: &str = "
    echo edited > edit
    rm gone
    touch same; echo original > same
    chmod 755 exec
    rm -r dir
    mkdir new; echo n > new/file; ln -s ../edit new/link; ln new/file hard
    cp -a moved renamed; rm -r moved
    rm -r opaque; mkdir opaque; echo original > opaque/same; echo n > opaque/new
    rm -r nested; mkdir nested; mkdir nested/sub; echo n > nested/sub/new
    rm to_dir; mkdir to_dir; echo n > to_dir/file
    rm -r to_file; echo n > to_file
    mkfifo fifo
";

fn check(test: &str, options: &str) {
    let Some(directory) = namespace(test) else { return };
    base(&directory);
    let Some((set, summary)) = capture(&directory, options, SCRIPT) else { return };
    let kinds: Vec<_> =
        set.changes().iter().map(|change| (change.path.to_str().unwrap(), change.kind.clone())).collect();
    for excluded in ["same", "opaque", "opaque/same"] {
        assert!(set.get(Path::new(excluded)).is_none(), "{excluded} {kinds:?}");
    }
    for (path, kind) in [
        ("edit", Kind::Modified),
        ("gone", Kind::Deleted),
        ("dir", Kind::Deleted),
        ("moved", Kind::Deleted),
        ("opaque/old", Kind::Deleted),
        ("nested/sub/old", Kind::Deleted),
        ("nested/sub/deep", Kind::Deleted),
        ("to_dir", Kind::TypeChanged),
        ("to_file", Kind::TypeChanged),
        ("hard", Kind::Added),
        ("renamed/x/y", Kind::Added),
    ] {
        assert_eq!(set.get(Path::new(path)).map(|change| &change.kind), Some(&kind), "{path} {kinds:?}");
    }
    assert!(set.cleared().is_empty());
    assert_eq!(summary.skipped.iter().map(|skipped| skipped.reason).collect::<Vec<_>>(), [SkipReason::NotAFile]);
    let base = File::open(directory.join("base")).unwrap();
    let done = apply(&set, base.as_fd(), &ApplyOptions::default()).unwrap();
    assert!(done.conflicts.is_empty() && done.refused.is_empty() && done.failed.is_none(), "{done:?}");
    // Mount a copy of the layers, since the workspace below the first overlay has changed.
    let mut expected = tree(&directory.join("base"));
    expected.retain(|path, _| path != Path::new("fifo"));
    let merged = Command::new("sh")
        .args(["-euc", &format!("mkdir fresh && cd fresh && {}", fresh())])
        .current_dir(&directory)
        .output()
        .unwrap();
    assert!(merged.status.success(), "{merged:?}");
    let mut fresh = tree(&directory.join("fresh"));
    fresh.retain(|path, _| path != Path::new("fifo"));
    assert_eq!(expected, fresh);
}

/// Returns a script that creates the base and runs the guest's script without an overlay.
fn fresh() -> String {
    let create = BASE.map(|path| format!("mkdir -p $(dirname {path}); echo original > {path}\n"));
    create.concat() + SCRIPT
}

/// Promise (Files): The writes of a guest to an overlay are captured and applied: edits, deletions, permissions.
#[test]
fn changes_in_an_overlay_are_captured() {
    check("changes_in_an_overlay_are_captured", "redirect_dir=off,metacopy=off,");
}

#[test]
fn changes_in_an_overlay_with_attributes_of_users_are_captured() {
    check("changes_in_an_overlay_with_attributes_of_users_are_captured", "userxattr,");
}

#[test]
fn redirected_directories_and_metadata_copies_are_reported() {
    let Some(directory) = namespace("redirected_directories_and_metadata_copies_are_reported") else { return };
    base(&directory);
    let script = "mv moved redirected; chmod 755 exec";
    let Some((set, summary)) = capture(&directory, "redirect_dir=on,metacopy=on,", script) else { return };
    let skipped: Vec<_> =
        summary.skipped.iter().map(|skipped| (skipped.path.to_str().unwrap(), skipped.reason)).collect();
    assert_eq!(skipped, [("exec", SkipReason::Redirected), ("redirected", SkipReason::Redirected)]);
    assert_eq!(set.get(Path::new("moved")).map(|change| &change.kind), Some(&Kind::Deleted));
}

#[test]
fn whiteouts_as_attributes_are_deletions() {
    let f = Fixture::new(&[("a", "1"), ("d/x", "1"), ("d/y", "1")]);
    let upper = f.temp.path().join("upper");
    put(&upper, "a", "");
    put(&upper, "d/y", "2");
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
    };
    if let Err(error) = set(&upper.join("a"), "user.overlay.whiteout", b"y") {
        println!("SKIP whiteouts_as_attributes_are_deletions: the file system has no attributes: {error}");
        return;
    }
    set(&upper.join("d"), "user.overlay.opaque", b"y").unwrap();
    let found = |marks| {
        let file = tempfile::tempfile().unwrap();
        let opened = File::open(&upper).unwrap();
        capture_overlay(opened.as_fd(), f.open().as_fd(), marks, &f.header, &file, &Bounds::default()).unwrap();
        let set = ChangeSet::read(file, &Bounds::default()).unwrap();
        let change = |change: &cofferdam_changes::Change| (change.path.display().to_string(), change.kind.clone());
        set.changes().iter().map(change).collect::<Vec<_>>()
    };
    let change = |path: &str, kind| (path.to_owned(), kind);
    let deletions = [change("a", Kind::Deleted), change("d/x", Kind::Deleted), change("d/y", Kind::Modified)];
    assert_eq!(found(Marks::User), deletions);
    // Below an overlay of root, a guest may set them: they are its own attributes.
    assert_eq!(found(Marks::Trusted), [change("a", Kind::Modified), change("d/y", Kind::Modified)]);
}
