//! Removal of a part of a change set.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_changes::{
    ApplyOptions, Base, Bounds, ChangeSet, ChangesError, Discarded, Globs, Id, LayerWriter, Store, StoreLimits,
    capture_comparison, open_saved, would_discard,
};

use crate::common::*;

const VICTIM: &str = "COFFERDAM_CHANGES_DISCARD";

fn open_store(f: &Fixture) -> Store {
    Store::open(&f.temp.path().join("store"), StoreLimits::default()).unwrap()
}

/// Keeps the changes of the guest in a store.
fn keep(f: &Fixture) -> (Store, Id) {
    let bytes = fs::read(save(f)).unwrap();
    let store = open_store(f);
    let write = |out: &mut dyn std::io::Write| {
        out.write_all(&bytes).unwrap();
        Ok(())
    };
    let id = store.keep(write).unwrap().0;
    (store, id)
}

/// Saves the changes of the guest in a file.
fn save(f: &Fixture) -> PathBuf {
    let path = f.temp.path().join("saved.tar");
    let now = File::open(&f.guest).unwrap();
    let out = File::create(&path).unwrap();
    capture_comparison(now.as_fd(), f.open().as_fd(), &f.header, out, &Bounds::default()).unwrap();
    path
}

fn read_set(path: &Path) -> ChangeSet {
    ChangeSet::read(File::open(path).unwrap(), &Bounds::default()).unwrap()
}

/// Removes matching changes. Returns the paths as text, and the number of the rest.
fn discard(f: &Fixture, store: &Store, id: &Id, only: &[&str]) -> (Vec<String>, usize) {
    let only = Globs::new(only);
    let would = would_discard(&store.get(id.as_str()).unwrap().1, f.open().as_fd(), &only).unwrap();
    let (found, done) = store.discard_only(id.as_str(), f.open().as_fd(), &only).unwrap();
    assert_eq!((&found, &done), (id, &would));
    let Discarded { paths, remaining } = done;
    (paths.iter().map(|path| path.display().to_string()).collect(), remaining)
}

/// Path, kind, size, permissions and base of a change: all but the position of its contents.
type Row = (PathBuf, String, u64, Option<u32>, Option<Base>);

fn rows(set: &ChangeSet) -> Vec<Row> {
    let row = |change: &cofferdam_changes::Change| {
        let mode = change.node.as_ref().and_then(cofferdam_changes::Node::mode);
        (change.path.clone(), change.kind.name().to_owned(), change.size(), mode, change.base.clone())
    };
    set.changes().iter().map(row).collect()
}

/// Promise (Files): Discarding selected changes removes these, and leaves the others as they were.
#[test]
fn other_changes_stay_as_they_were() {
    let f = Fixture::new(&[("a", "1"), ("gone/x", "1"), ("type/x", "1"), ("exec", "#!"), ("c", "1")]);
    for path in ["a", "c", "new/deep/kept", "new/deep/left", "new/other"] {
        put(&f.guest, path, &format!("guest {path}"));
    }
    fs::remove_dir_all(f.guest.join("gone")).unwrap();
    fs::remove_dir_all(f.guest.join("type")).unwrap();
    put(&f.guest, "type", "a file");
    mode(&f.guest.join("exec"), 0o755);
    link("a", &f.guest, "link");
    let (store, id) = keep(&f);
    let stored = f.temp.path().join(format!("store/{id}.tar"));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    File::options().write(true).open(&stored).unwrap().set_modified(time).unwrap();
    let before = store.get(id.as_str()).unwrap().1;
    let (paths, remaining) = discard(&f, &store, &id, &["a", "new/deep/left"]);
    assert_eq!(paths, ["a", "new/deep/left"]);
    let after = store.get(id.as_str()).unwrap().1;
    let is_kept = |path: &Path| path != Path::new("a") && path != Path::new("new/deep/left");
    let expected: Vec<_> = rows(&before).into_iter().filter(|row| is_kept(&row.0)).collect();
    assert_eq!((rows(&after), remaining), (expected.clone(), expected.len()));
    assert_eq!(after.header(), before.header());
    assert_eq!(fs::metadata(&stored).unwrap().modified().unwrap(), time, "its age stays");
    f.apply_all(&after);
    let read = |path| read(&f.base, path);
    assert_eq!(
        (read("a"), read("c"), read("new/deep/kept")),
        ("1".into(), "guest c".into(), "guest new/deep/kept".into())
    );
    assert_eq!(read("type"), "a file");
    assert!(!f.base.join("gone").exists() && !f.base.join("new/deep/left").exists());
}

#[test]
fn nothing_is_discarded_without_a_match_and_all_with_the_last() {
    let f = Fixture::new(&[]);
    put(&f.guest, "d/a", "1");
    let (store, id) = keep(&f);
    let missing = store.discard_only(id.as_str(), f.open().as_fd(), &Globs::new(["x", "d/a/b"]));
    assert!(matches!(missing, Err(ChangesError::NoMatch)), "{missing:?}");
    // A new directory is a change of its own.
    assert_eq!(discard(&f, &store, &id, &["d/a"]), (vec!["d/a".into()], 1));
    assert_eq!(discard(&f, &store, &id, &["d"]), (vec!["d".into()], 0));
    assert!(matches!(store.get(id.as_str()), Err(ChangesError::NotFound { .. })));
    assert_eq!(fs::read_dir(f.temp.path().join("store")).unwrap().count(), 1, "the lock");
}

/// Promise (Files): Discarding the new name of a renamed file keeps the file under its old name.
#[test]
fn no_half_of_a_rename_loses_the_file() {
    let moved = || {
        let f = Fixture::new(&[("old", "contents"), ("dir/a", "contents a"), ("dir/b", "contents b")]);
        fs::rename(f.guest.join("old"), f.guest.join("new")).unwrap();
        fs::rename(f.guest.join("dir"), f.guest.join("moved")).unwrap();
        let (store, id) = keep(&f);
        (f, store, id)
    };
    let exist = |f: &Fixture, paths: &[&str]| paths.iter().map(|path| f.base.join(path).exists()).collect::<Vec<_>>();
    let apply = |f: &Fixture, store: &Store, id: &Id| drop(f.apply_all(&store.get(id.as_str()).unwrap().1));
    let (f, store, id) = moved();
    assert_eq!(discard(&f, &store, &id, &["new"]).0, ["new"]);
    // Other files of the directory stay, too.
    assert_eq!(discard(&f, &store, &id, &["moved/a"]).0, ["dir", "moved/a"]);
    apply(&f, &store, &id);
    assert_eq!(
        exist(&f, &["old", "new", "dir/a", "dir/b", "moved/a", "moved/b"]),
        [true, false, true, true, false, true]
    );
    let (f, store, id) = moved();
    assert_eq!(discard(&f, &store, &id, &["old"]).0, ["old"]);
    apply(&f, &store, &id);
    assert_eq!(exist(&f, &["old", "new", "dir", "moved/a"]), [true, true, false, true]);
    // The rest of an application of one path.
    let (f, store, id) = moved();
    let options = ApplyOptions { only: Globs::new(["new"]), ..ApplyOptions::default() };
    f.apply(&store.get(id.as_str()).unwrap().1, &options);
    assert_eq!(
        (exist(&f, &["old", "new"]), discard(&f, &store, &id, &["new"]).0),
        (vec![true, true], vec!["new".into()])
    );
    apply(&f, &store, &id);
    assert_eq!(exist(&f, &["old", "new", "moved/b"]), [false, true, true]);
}

/// Applies matching changes, and removes what was applied. Returns the number of the rest.
fn apply_part(f: &Fixture, store: &Store, id: &Id, only: &[&str]) -> usize {
    let options = ApplyOptions { only: Globs::new(only), ..ApplyOptions::default() };
    let applied = f.apply(&store.get(id.as_str()).unwrap().1, &options).applied;
    store.discard_applied(id.as_str(), f.open().as_fd(), &applied).unwrap().1.remaining
}

fn listed(store: &Store, id: &Id) -> Vec<String> {
    let set = store.get(id.as_str()).unwrap().1;
    set.changes().iter().map(|change| change.path.display().to_string()).collect()
}

/// Promise (Files): What was applied of kept changes is no longer kept, and the rest can be applied.
#[test]
fn applied_changes_are_removed_and_no_others() {
    let f = Fixture::new(&[("a", "1"), ("old", "contents"), ("gone/x", "1"), ("c", "1")]);
    for path in ["a", "c", "new/deep/one", "new/deep/two", ".envrc"] {
        put(&f.guest, path, &format!("guest {path}"));
    }
    fs::remove_dir_all(f.guest.join("gone")).unwrap();
    fs::rename(f.guest.join("old"), f.guest.join("moved")).unwrap();
    let (store, id) = keep(&f);
    put(&f.base, "c", "host");
    // Nothing of a conflict or a refused file is removed.
    assert_eq!(apply_part(&f, &store, &id, &["c", ".envrc", "a"]), 8);
    assert_eq!(
        listed(&store, &id),
        [".envrc", "c", "gone", "moved", "new", "new/deep", "new/deep/one", "new/deep/two", "old"]
    );
    // A directory stays with its last change.
    assert_eq!(apply_part(&f, &store, &id, &["new/deep/one", "moved"]), 7);
    assert_eq!(listed(&store, &id), [".envrc", "c", "gone", "new", "new/deep", "new/deep/two", "old"]);
    fs::remove_dir_all(f.base.join("new")).unwrap();
    assert_eq!(apply_part(&f, &store, &id, &["new/deep/two", "old", "gone"]), 2);
    assert_eq!(listed(&store, &id), [".envrc", "c"]);
    assert_eq!(
        (read(&f.base, "new/deep/two"), read(&f.base, "moved")),
        ("guest new/deep/two".into(), "contents".into())
    );
    assert!(!f.base.join("old").exists() && !f.base.join("gone").exists());
    fs::remove_file(f.base.join("c.cofferdam-new")).unwrap();
    fs::remove_file(f.base.join("c")).unwrap();
    put(&f.base, "c", "guest c");
    let options = ApplyOptions { allow: Globs::new([".envrc"]), ..ApplyOptions::default() };
    let applied = f.apply(&store.get(id.as_str()).unwrap().1, &options).applied;
    assert_eq!(store.discard_applied(id.as_str(), f.open().as_fd(), &applied).unwrap().1.remaining, 0);
    assert!(matches!(store.get(id.as_str()), Err(ChangesError::NotFound { .. })));
}

#[test]
fn applied_parts_of_cleared_directories_are_removed() {
    let f = Fixture::new(&[("d/gone", "1"), ("d/left", "1"), ("e/gone", "1")]);
    let store = open_store(&f);
    let write = |out: &mut dyn std::io::Write| {
        let mut writer = LayerWriter::new(out, &f.header)?;
        writer.opaque(Path::new("d"))?;
        writer.file(Path::new("d/new"), 0o644, 1, &b"2"[..], None)?;
        writer.opaque(Path::new("e"))?;
        writer.finish().map(drop)
    };
    let id = store.keep(write).unwrap().0;
    assert_eq!(apply_part(&f, &store, &id, &["d/gone"]), 3);
    assert_eq!(listed(&store, &id), ["d/left", "d/new", "e/gone"]);
    assert_eq!(apply_part(&f, &store, &id, &["d", "e"]), 0);
    assert_eq!(read(&f.base, "d/new"), "2");
    assert!(["d/gone", "d/left", "e/gone"].iter().all(|path| !f.base.join(path).exists()));
    assert!(matches!(store.get(id.as_str()), Err(ChangesError::NotFound { .. })));
}

#[test]
fn cleared_directories_keep_their_meaning() {
    let files = [("d/keep", "1"), ("d/gone", "1"), ("d/left", "1"), ("d/sub/x", "1"), ("e/gone", "1"), ("e/f", "1")];
    let f = Fixture::new(&files);
    let store = open_store(&f);
    let keep = || {
        let write = |out: &mut dyn std::io::Write| {
            let mut writer = LayerWriter::new(out, &f.header)?;
            writer.opaque(Path::new("d"))?;
            writer.file(Path::new("d/keep"), 0o644, 1, &b"2"[..], None)?;
            writer.opaque(Path::new("d/sub"))?;
            writer.opaque(Path::new("e"))?;
            writer.file(Path::new("new"), 0o644, 1, &b"2"[..], None)?;
            writer.finish().map(drop)
        };
        store.keep(write).unwrap().0
    };
    let get = |id: &Id| store.get(id.as_str()).unwrap().1;
    let id = keep();
    assert_eq!(discard(&f, &store, &id, &["new"]).0, ["new"]);
    assert_eq!(get(&id).cleared(), ["d", "d/sub", "e"].map(PathBuf::from));
    assert_eq!(discard(&f, &store, &id, &["e"]).0, ["e/f", "e/gone"]);
    assert_eq!(get(&id).cleared(), ["d", "d/sub"].map(PathBuf::from));
    assert_eq!(discard(&f, &store, &id, &["d/left"]), (vec!["d/left".into()], 3));
    let set = get(&id);
    assert!(set.cleared().is_empty());
    f.apply_all(&set);
    assert_eq!(read(&f.base, "d/keep"), "2");
    for (path, exists) in
        [("d/gone", false), ("d/left", true), ("d/sub/x", false), ("d/sub", true), ("e/gone", true), ("e/f", true)]
    {
        assert_eq!(f.base.join(path).exists(), exists, "{path}");
    }
}

/// Promise (Files): The time that discarding takes grows with a change set of a guest, and not with its square.
#[test]
fn many_cleared_directories_do_not_slow_a_removal_down() {
    const COUNT: usize = 60_000;
    let f = Fixture::new(&[]);
    let path = f.temp.path().join("hostile.tar");
    let mut writer = LayerWriter::new(File::create(&path).unwrap(), &f.header).unwrap();
    (0..COUNT).for_each(|number| writer.opaque(Path::new(&format!("a{number}"))).unwrap());
    for number in 0..COUNT {
        writer.file(Path::new(&format!("b{number}")), 0o644, 0, &b""[..], None).unwrap();
    }
    writer.finish().unwrap();
    let set = read_set(&path);
    let started = Instant::now();
    let discarded = would_discard(&set, f.open().as_fd(), &Globs::new(["b*"])).unwrap();
    // Comparing each with each takes minutes.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(discarded.paths.len(), COUNT);
}

#[test]
fn removals_at_the_same_time_are_all_done() {
    let f = Fixture::new(&[]);
    (0..9).for_each(|number| put(&f.guest, &format!("f{number}"), "1"));
    let (store, id) = keep(&f);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (f, id) = (&f, &id);
            scope.spawn(move || {
                let only = Globs::new([format!("f{number}")]);
                open_store(f).discard_only(id.as_str(), f.open().as_fd(), &only).unwrap();
            });
        }
    });
    assert_eq!(rows(&store.get(id.as_str()).unwrap().1).len(), 1);
}

#[test]
fn a_part_of_a_saved_file_is_discarded() {
    let f = Fixture::new(&[]);
    for path in ["a", "b", "c"] {
        put(&f.guest, path, path);
    }
    let path = save(&f);
    mode(&path, 0o640);
    let discard =
        |only: &str| open_saved(&path, &Bounds::default()).unwrap().discard_only(f.open().as_fd(), &Globs::new([only]));
    assert!(matches!(discard("x"), Err(ChangesError::NoMatch)));
    let late = open_saved(&path, &Bounds::default()).unwrap();
    assert_eq!(discard("a").unwrap(), Discarded { paths: vec!["a".into()], remaining: 2 });
    // It was opened before, and would bring back what is discarded.
    let replaced = late.discard_only(f.open().as_fd(), &Globs::new(["b"]));
    assert!(matches!(replaced, Err(ChangesError::NotAChangeSet { .. })), "{replaced:?}");
    assert_eq!(rows(&read_set(&path)).len(), 2);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(discard("**").unwrap().remaining, 0);
    assert!(!path.exists());
    assert_eq!(fs::read_dir(f.temp.path()).unwrap().count(), 2, "the workspace and the copy");
}

/// Starts this test again as a process that removes a change. `limit` is the maximum size of its files, in KiB.
fn victim(f: &Fixture, limit: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"")]);
    command
        .arg(std::env::current_exe().unwrap())
        .args(["discard::a_killed_removal_or_a_full_disk_leaves_the_old", "--exact"]);
    command.env(VICTIM, f.temp.path()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Removes a change from the store and from the file. The exit status is 0 if the disk is full.
fn be_victim(top: &Path) -> ! {
    let workspace = File::open(top.join("base")).unwrap();
    let store = Store::open(&top.join("store"), StoreLimits::default()).unwrap();
    let id = store.list().unwrap().remove(0).id;
    let only = Globs::new(["drop"]);
    let stored = store.discard_only(id.as_str(), workspace.as_fd(), &only);
    let saved = open_saved(&top.join("saved.tar"), &Bounds::default()).unwrap();
    let saved = saved.discard_only(workspace.as_fd(), &only);
    let is_full = |result: Option<ChangesError>| matches!(result, Some(ChangesError::NoSpace { .. }));
    std::process::exit(if is_full(stored.err()) && is_full(saved.err()) { 0 } else { 9 })
}

/// Promise (Files): A removal of selected changes that is killed, or finds a full disk, leaves a change set that is
/// whole: as before or as after.
#[test]
fn a_killed_removal_or_a_full_disk_leaves_the_old() {
    if let Some(top) = std::env::var_os(VICTIM) {
        be_victim(Path::new(&top));
    }
    let f = Fixture::new(&[]);
    put(&f.guest, "drop", "1");
    (0..400).for_each(|number| put(&f.guest, &format!("file{number}"), &"x".repeat(40_000)));
    let (store, id) = keep(&f);
    let path = f.temp.path().join("saved.tar");
    let counts = || (rows(&store.get(id.as_str()).unwrap().1).len(), rows(&read_set(&path)).len());
    assert_eq!(victim(&f, "1000").status().unwrap().code(), Some(0));
    assert_eq!(counts(), (401, 401));
    let files = |directory: &str| fs::read_dir(f.temp.path().join(directory)).unwrap().count();
    assert_eq!((files("store"), files("")), (2, 4), "no temporary file");
    for delay in [0, 20, 40, 60, 80, 120, 160, 240, 320] {
        let mut child = victim(&f, "unlimited").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
        let (stored, saved) = counts();
        assert!(matches!(stored, 400 | 401) && matches!(saved, 400 | 401), "{delay} ms: {stored} {saved}");
    }
    let dropped = store.discard_only(id.as_str(), f.open().as_fd(), &Globs::new(["drop"]));
    assert!(dropped.is_ok() || matches!(dropped, Err(ChangesError::NoMatch)), "{dropped:?}");
    assert_eq!((counts().0, files("store")), (400, 2), "the file of the killed process is removed");
}
