//! Application: types, deletions, conflicts, guarded files.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cofferdam_changes::{
    ApplyOptions, Bounds, Cause, ChangesError, Globs, Header, Kind, NEW_SUFFIX, Workspace, apply, conflicts,
    is_applied, resolve,
};

use crate::common::*;

fn paths(paths: &[&str]) -> Vec<PathBuf> {
    paths.iter().map(PathBuf::from).collect()
}

fn only(pattern: &str) -> ApplyOptions {
    ApplyOptions { only: Globs::new([pattern]), ..ApplyOptions::default() }
}

/// Promise (Files): Applying a change set gives the host directory the files that the guest had.
#[test]
fn everything_that_the_guest_did_arrives() {
    let f = Fixture::new(&[
        ("keep", "k"),
        ("edit", "one\n"),
        ("gone", "x"),
        ("dir/a", "1"),
        ("dir/b", "2"),
        ("exec", "#!"),
    ]);
    put(&f.guest, "edit", "two\n");
    put(&f.guest, "new/deep/file", "n");
    put(&f.guest, "empty", "");
    fs::remove_file(f.guest.join("gone")).unwrap();
    fs::remove_dir_all(f.guest.join("dir")).unwrap();
    mode(&f.guest.join("exec"), 0o755);
    mode(&f.guest.join("new"), 0o500);
    link("edit", &f.guest, "link");
    let set = f.set();
    let kinds: Vec<_> =
        resolve(&set, f.open().as_fd()).unwrap().into_iter().map(|change| (change.path, change.kind)).collect();
    assert!(kinds.contains(&("exec".into(), Kind::ModeChanged)), "{kinds:?}");
    assert!(kinds.contains(&("dir".into(), Kind::Deleted)), "{kinds:?}");
    assert!(!is_applied(&set, f.open().as_fd()).unwrap());
    f.apply_all(&set);
    assert!(is_applied(&set, f.open().as_fd()).unwrap());
    assert_eq!(tree(&f.base), tree(&f.guest));
    // A second application has no effect, and is no conflict.
    let before = tree(&f.base);
    f.apply_all(&set);
    assert_eq!(tree(&f.base), before);
    mode(&f.guest.join("new"), 0o755);
    mode(&f.base.join("new"), 0o755);
}

/// Promise (Files): A change set counts as applied only if the host directory has each change of it.
#[test]
fn missing_change_means_not_applied() {
    for undo in ["edit", "gone", "dir/a", "new/file", "exec", "link"] {
        let f = Fixture::new(&[("edit", "one\n"), ("gone", "x"), ("exec", "#!"), ("dir/a", "1")]);
        put(&f.guest, "edit", "two\n");
        put(&f.guest, "new/file", "n");
        fs::remove_file(f.guest.join("gone")).unwrap();
        fs::remove_dir_all(f.guest.join("dir")).unwrap();
        mode(&f.guest.join("exec"), 0o755);
        link("edit", &f.guest, "link");
        let set = f.set();
        f.apply_all(&set);
        assert!(is_applied(&set, f.open().as_fd()).unwrap());
        let path = f.base.join(undo);
        match undo {
            "edit" => fs::write(path, "one\n").unwrap(),
            "gone" | "dir/a" => put(&f.base, undo, "x"),
            "exec" => mode(&path, 0o644),
            _ => fs::remove_file(path).unwrap(),
        }
        assert!(!is_applied(&set, f.open().as_fd()).unwrap(), "{undo}");
    }
}

#[test]
fn identical_files_are_no_changes() {
    let f = Fixture::new(&[("a", "1"), ("d/b", "2")]);
    put(&f.guest, "a", "1");
    let (set, summary) = f.capture();
    assert_eq!((set.changes().len(), summary.entries, summary.skipped.len()), (0, 0, 0));
}

#[test]
fn files_change_their_types() {
    let f = Fixture::new(&[("file", "1"), ("dir/a/b", "2"), ("tree/x", "3"), ("other", "4")]);
    for root in [&f.base, &f.guest] {
        link("file", root, "link");
    }
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    let replace = |path: &str| {
        let path = f.guest.join(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    };
    ["file", "dir", "tree", "other", "link"].into_iter().for_each(replace);
    put(&f.guest, "file/now/a/directory", "x");
    put(&f.guest, "dir", "now a file");
    link("other", &f.guest, "tree");
    link("dir", &f.guest, "other");
    put(&f.guest, "link", "now a file");
    let set = f.set();
    assert!(set.changes().iter().filter(|change| change.base.is_some()).all(|change| change.kind == Kind::TypeChanged));
    f.apply_all(&set);
    assert_eq!(tree(&f.base), tree(&f.guest));
}

#[test]
fn names_of_any_bytes_arrive() {
    let f = Fixture::new(&[]);
    let names: [&[u8]; 6] = [b"line\nfeed", b"esc\x1b[31m", b"\xff\xfe", b"back\\slash", b" ", "é\u{202e}".as_bytes()];
    for name in names {
        fs::write(f.guest.join(bytes(name)), "x").unwrap();
    }
    let long = "l".repeat(255);
    put(&f.guest, &format!("{long}/{long}"), "long");
    put(&f.base, &"d".repeat(255), "deleted");
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    f.apply_all(&f.set());
    assert_eq!(tree(&f.base), tree(&f.guest));
}

/// Promise (Files): A change of a file that the host changed meanwhile overwrites nothing: both versions are kept.
#[test]
fn conflicts_keep_both_versions() {
    let f = Fixture::new(&[
        ("changed", "1"),
        ("removed", "1"),
        ("mode", "1"),
        ("deleted", "1"),
        ("both", "1"),
        ("dir/x", "1"),
    ]);
    for path in ["changed", "removed", "mode", "appeared", "both"] {
        put(&f.guest, path, "guest");
    }
    put(&f.guest, "parent/missing/file", "guest");
    for path in ["deleted", "dir/x"] {
        fs::remove_file(f.guest.join(path)).unwrap();
    }
    fs::remove_dir(f.guest.join("dir")).unwrap();
    let set = f.set();
    tick();
    for path in ["changed", "appeared", "deleted", "dir/new"] {
        put(&f.base, path, "host!");
    }
    put(&f.base, "both", "guest");
    fs::remove_file(f.base.join("removed")).unwrap();
    mode(&f.base.join("mode"), 0o600);
    put(&f.base, "parent", "now a file");
    put(&f.base, &format!("changed{NEW_SUFFIX}"), "taken");
    let expected = [
        ("appeared", Cause::Appeared, Some("appeared.cofferdam-new")),
        ("changed", Cause::Changed, Some("changed.cofferdam-new-2")),
        ("mode", Cause::Changed, Some("mode.cofferdam-new")),
        ("parent", Cause::Appeared, None),
        ("parent/missing", Cause::ParentMissing, None),
        ("parent/missing/file", Cause::ParentMissing, None),
        ("removed", Cause::Removed, Some("removed.cofferdam-new")),
        ("dir", Cause::Changed, None),
        ("deleted", Cause::Changed, None),
    ];
    let dry = f.apply(&set, &ApplyOptions { dry_run: true, ..ApplyOptions::default() });
    assert_eq!(dry.conflicts.iter().map(|c| c.cause).collect::<Vec<_>>(), expected.map(|(_, cause, _)| cause));
    let done = f.apply(&set, &ApplyOptions::default());
    let found: Vec<_> = done
        .conflicts
        .iter()
        .map(|c| (c.path.to_str().unwrap(), c.cause, c.kept_as.as_ref().map(|p| p.to_str().unwrap())))
        .collect();
    assert_eq!(found, expected);
    assert!(done.refused.is_empty() && done.failed.is_none());
    assert_eq!(done.applied, paths(&["both"]));
    for path in ["changed", "appeared", "deleted", "dir/new"] {
        assert_eq!(read(&f.base, path), "host!");
    }
    for (_, _, kept_as) in expected {
        assert!(kept_as.is_none_or(|kept_as| read(&f.base, kept_as) == "guest"));
    }
    // No more copies by a second application.
    let names = tree(&f.base).len();
    f.apply(&set, &ApplyOptions::default());
    assert_eq!(tree(&f.base).len(), names);
    let found = conflicts(&set, f.open().as_fd()).unwrap();
    assert_eq!(found.iter().map(|conflict| conflict.cause).collect::<Vec<_>>(), expected.map(|(_, cause, _)| cause));
}

#[test]
fn changes_of_the_host_during_the_run_are_conflicts() {
    let f = Fixture::new(&[("file", "1"), ("tree/x", "1"), ("gone", "1")]);
    put(&f.base, "file", "host");
    put(&f.base, "tree/new", "host");
    put(&f.base, "gone", "host");
    tick();
    put(&f.guest, "file", "guest");
    fs::remove_dir_all(f.guest.join("tree")).unwrap();
    fs::remove_file(f.guest.join("gone")).unwrap();
    let done = f.apply(&f.set(), &ApplyOptions::default());
    assert!(done.conflicts.iter().all(|conflict| conflict.cause == Cause::ChangedDuringRun), "{done:?}");
    assert_eq!(done.conflicts.len(), 3);
    assert_eq!((read(&f.base, "file"), read(&f.base, "tree/new")), ("host".into(), "host".into()));
}

#[test]
fn only_selected_paths_are_applied() {
    let f = Fixture::new(&[("a", "1"), ("b", "1")]);
    for path in ["a", "b", "new/x/file.rs", "new/x/file.txt"] {
        put(&f.guest, path, "22");
    }
    let set = f.set();
    let dry = f.apply(&set, &ApplyOptions { dry_run: true, ..only("*.rs") });
    assert_eq!(dry.applied, paths(&["new/x/file.rs"]), "{dry:?}");
    assert!(!f.base.join("new").exists());
    let done = f.apply(&set, &only("*.rs"));
    assert_eq!(done.applied, paths(&["new", "new/x", "new/x/file.rs"]), "{done:?}");
    assert_eq!((read(&f.base, "a"), read(&f.base, "new/x/file.rs")), ("1".into(), "22".into()));
    assert!(!f.base.join("new/x/file.txt").exists());
    f.apply_all(&set);
    assert_eq!(tree(&f.base), tree(&f.guest));
}

#[test]
fn dry_runs_write_nothing() {
    let f = Fixture::new(&[("a", "1"), ("d/x", "1"), ("t/x", "2")]);
    put(&f.guest, "a", "2");
    put(&f.guest, "n/m/o", "2");
    fs::remove_dir_all(f.guest.join("d")).unwrap();
    fs::remove_dir_all(f.guest.join("t")).unwrap();
    put(&f.guest, "t", "file");
    let (set, before) = (f.set(), tree(&f.base));
    let dry = f.apply(&set, &ApplyOptions { dry_run: true, ..ApplyOptions::default() });
    assert_eq!(tree(&f.base), before);
    let done = f.apply(&set, &ApplyOptions::default());
    assert_eq!(dry.applied, done.applied);
    assert!(dry.conflicts.is_empty() && dry.refused.is_empty() && dry.failed.is_none());
}

#[test]
fn another_directory_is_refused_unless_it_is_allowed() {
    let f = Fixture::new(&[]);
    put(&f.guest, "a", "1");
    let (set, other) = (f.set(), tempfile::tempdir().unwrap());
    let other_file = fs::File::open(other.path()).unwrap();
    let error = apply(&set, other_file.as_fd(), &ApplyOptions::default()).unwrap_err();
    assert!(matches!(error, ChangesError::WrongDirectory { .. }), "{error}");
    let options = ApplyOptions { workspace: Workspace::Any, ..ApplyOptions::default() };
    assert_eq!(apply(&set, other_file.as_fd(), &options).unwrap().applied, paths(&["a"]));
}

#[test]
fn opaque_directories_lose_files_that_the_layer_lacks() {
    let f = Fixture::new(&[
        ("d/old", "1"),
        ("d/replaced", "1"),
        ("d/sub/old", "1"),
        ("d/sub/deep/x", "1"),
        ("d/tree/x", "1"),
        ("e/kept", "1"),
    ]);
    let set = f.written(|writer| {
        writer.opaque(Path::new("d")).unwrap();
        writer.file(Path::new("d/replaced"), 0o644, 1, &b"2"[..], None).unwrap();
        writer.file(Path::new("d/sub/new"), 0o644, 1, &b"2"[..], None).unwrap();
    });
    assert_eq!(set.cleared(), paths(&["d"]));
    let changes = resolve(&set, f.open().as_fd()).unwrap();
    let deleted: Vec<_> =
        changes.iter().filter(|change| change.kind == Kind::Deleted).map(|change| change.path.clone()).collect();
    assert_eq!(deleted, paths(&["d/old", "d/sub/deep", "d/sub/old", "d/tree"]));
    f.apply_all(&set);
    assert_eq!(
        tree(&f.base).keys().cloned().collect::<Vec<_>>(),
        paths(&["d", "d/replaced", "d/sub", "d/sub/new", "e", "e/kept"])
    );
    assert_eq!(read(&f.base, "d/replaced"), "2");
}

#[test]
fn deletions_without_a_fingerprint_delete_nothing() {
    let f = Fixture::new(&[("a", "1"), ("d/x", "1")]);
    let set = f.written(|writer| {
        writer.whiteout(Path::new("a"), None).unwrap();
        writer.whiteout(Path::new("d"), None).unwrap();
    });
    assert_eq!(f.apply(&set, &ApplyOptions::default()).conflicts.len(), 2);
    assert_eq!(tree(&f.base).len(), 3);
}

#[test]
fn hard_links_of_the_workspace_become_separate_files() {
    let f = Fixture::new(&[("a", "1")]);
    fs::hard_link(f.base.join("a"), f.base.join("b")).unwrap();
    fs::hard_link(f.guest.join("a"), f.guest.join("b")).unwrap();
    fs::hard_link(f.base.join("a"), f.base.join("c")).unwrap();
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    put(&f.guest, "a", "2");
    let set = f.set();
    f.apply_all(&set);
    assert_eq!(tree(&f.base), tree(&f.guest));
    assert_eq!(fs::metadata(f.base.join("a")).unwrap().nlink(), 1);
}

#[test]
fn large_files_are_streamed() {
    let f = Fixture::new(&[]);
    let size: u64 = 64 << 20;
    let file = fs::File::create(f.guest.join("large")).unwrap();
    let noise: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for _ in 0..64 {
        std::io::Write::write_all(&mut &file, &noise).unwrap();
    }
    let before = resident();
    let set = f.set();
    f.apply_all(&set);
    assert!(resident().saturating_sub(before) < 32 << 10, "more than 32 MiB are in memory");
    assert_eq!(fs::metadata(f.base.join("large")).unwrap().len(), size);
    let bounds = Bounds { max_bytes: size - 1, ..Bounds::default() };
    assert!(f.capture_with(&bounds).is_ok(), "the file is unchanged now");
    fs::remove_file(f.base.join("large")).unwrap();
    assert!(matches!(f.capture_with(&bounds), Err(ChangesError::TooLarge { .. })));
}

/// Returns the peak of the memory in use, in KiB.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn new_files_belong_to_the_owner_of_the_replaced_file_or_of_the_workspace() {
    if !rustix::process::geteuid().is_root() {
        println!(
            "SKIP new_files_belong_to_the_owner_of_the_replaced_file_or_of_the_workspace: only root gives files away"
        );
        return;
    }
    let f = Fixture::new(&[("mine", "1"), ("theirs", "1")]);
    std::os::unix::fs::chown(&f.base, Some(1234), Some(1235)).unwrap();
    std::os::unix::fs::chown(f.base.join("theirs"), Some(77), Some(78)).unwrap();
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    for path in ["mine", "theirs", "new/file"] {
        put(&f.guest, path, "22");
    }
    symlink("mine", f.guest.join("link")).unwrap();
    f.apply_all(&f.set());
    for (path, owner) in [
        ("mine", (0, 0)),
        ("theirs", (77, 78)),
        ("new", (1234, 1235)),
        ("new/file", (1234, 1235)),
        ("link", (1234, 1235)),
    ] {
        let found = fs::symlink_metadata(f.base.join(path)).unwrap();
        assert_eq!((found.uid(), found.gid()), owner, "{path}");
    }
}

#[test]
fn an_error_ends_the_application_and_the_rest_is_reported() {
    if rustix::process::geteuid().is_root() {
        println!("SKIP an_error_ends_the_application_and_the_rest_is_reported: root may write everywhere");
        return;
    }
    let f = Fixture::new(&[("a/x", "1"), ("b/x", "1"), ("c/x", "1")]);
    for path in ["a/x", "b/x", "c/x"] {
        put(&f.guest, path, "2");
    }
    let set = f.set();
    let header = Header { ..set.header().clone() };
    fs::set_permissions(f.base.join("b"), fs::Permissions::from_mode(0o555)).unwrap();
    let done = f.apply(&set, &ApplyOptions::default());
    fs::set_permissions(f.base.join("b"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(done.applied, paths(&["a/x"]));
    assert_eq!(done.failed.unwrap().0, Path::new("b/x"));
    assert_eq!(header, f.header);
}

#[test]
fn permissions_of_directories_change() {
    let f = Fixture::new(&[("d/x", "1"), ("e/x", "1")]);
    mode(&f.guest.join("d"), 0o700);
    put(&f.guest, "d/y", "2");
    mode(&f.base.join("e"), 0o2755);
    mode(&f.guest.join("e"), 0o3750);
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    let set = f.set();
    assert!(set.changes().iter().any(|change| change.path == Path::new("d") && change.kind == Kind::ModeChanged));
    f.apply_all(&set);
    let found = |path: &str| fs::metadata(f.base.join(path)).unwrap().mode() & 0o7777;
    // The special bits stay as the host has them.
    assert_eq!((found("d"), found("e"), read(&f.base, "d/y")), (0o700, 0o2750, "2".into()));
}

#[test]
fn a_selected_file_changes_no_directory_above_it() {
    let f = Fixture::new(&[("d/x", "1")]);
    mode(&f.guest.join("d"), 0o700);
    put(&f.guest, "d/new/y", "2");
    let done = f.apply(&f.set(), &only("y"));
    assert_eq!(done.applied, paths(&["d/new", "d/new/y"]));
    assert_eq!(fs::metadata(f.base.join("d")).unwrap().mode() & 0o777, 0o755);
}

#[test]
fn files_that_a_copy_cannot_have_are_not_deleted() {
    let f = Fixture::new(&[("plain", "1"), ("secret", "1"), ("private/x", "1")]);
    rustix::fs::mknodat(rustix::fs::CWD, f.base.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for path in ["plain", "secret", "private/x"] {
        fs::remove_file(f.guest.join(path)).unwrap();
    }
    fs::remove_dir(f.guest.join("private")).unwrap();
    mode(&f.base.join("secret"), 0);
    mode(&f.base.join("private"), 0);
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    let (set, summary) = f.capture();
    mode(&f.base.join("private"), 0o755);
    let deleted: Vec<_> = set.changes().iter().map(|change| change.path.to_str().unwrap()).collect();
    if rustix::process::geteuid().is_root() {
        assert_eq!(deleted, ["plain", "private", "secret"]);
    } else {
        assert_eq!((deleted, summary.skipped_count), (vec!["plain"], 2));
    }
}

#[test]
fn directories_with_new_files_of_the_host_stay_complete() {
    let f = Fixture::new(&[("tree/a/x", "1"), ("tree/b/y", "1")]);
    fs::remove_dir_all(f.guest.join("tree")).unwrap();
    let set = f.set();
    for (path, text) in [("tree/b/new", "host"), ("tree/a/x", "edited")] {
        let before = tree(&f.base);
        put(&f.base, path, text);
        let done = f.apply(&set, &ApplyOptions::default());
        assert_eq!(done.conflicts[0].cause, Cause::Changed);
        assert!(before.len() <= tree(&f.base).len() && f.base.join("tree/b/y").exists());
        if path.ends_with("new") {
            fs::remove_file(f.base.join(path)).unwrap();
        }
    }
}

#[test]
fn directories_that_both_sides_created_are_merged() {
    let f = Fixture::new(&[]);
    put(&f.guest, "new/guest", "1");
    put(&f.guest, "new/both", "guest");
    let set = f.set();
    put(&f.base, "new/host", "2");
    put(&f.base, "new/both", "host");
    let done = f.apply(&set, &ApplyOptions::default());
    assert_eq!(done.conflicts.len(), 1);
    let files = [("new/guest", "1"), ("new/host", "2"), ("new/both", "host"), ("new/both.cofferdam-new", "guest")];
    for (path, text) in files {
        assert_eq!(read(&f.base, path), text);
    }
}

#[test]
fn a_header_that_no_reader_accepts_is_not_written() {
    let f = Fixture::untimed();
    let header = Header { workspace: "relative".into(), ..f.header };
    assert!(cofferdam_changes::LayerWriter::new(Vec::new(), &header).is_err());
}
