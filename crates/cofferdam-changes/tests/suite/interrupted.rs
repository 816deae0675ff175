//! Applications that are killed, that run at the same time, or that find a full disk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_changes::{
    ApplyOptions, Bounds, ChangeSet, ChangesError, Effect, Globs, NEW_SUFFIX, Refusal, apply, capture_comparison,
    effect,
};

use crate::common::*;

const VICTIM: &str = "COFFERDAM_CHANGES_APPLICATION";
const TEMPORARY: &str = ".cofferdam-tmp-";

/// Creates a workspace in which the guest changed files in all ways, and saves the changes.
fn changed_in_all_ways() -> (Fixture, PathBuf) {
    let f = Fixture::new(&[("file", "1"), ("deep/file", "1"), ("exec", "#!")]);
    for root in [&f.base, &f.guest] {
        for number in 0..8 {
            put(root, &format!("edit{number}"), &"old".repeat(20_000));
            put(root, &format!("deep/gone{number}"), "x");
            for directory in ["all", "deep/all", "tofile", "tolink"] {
                put(root, &format!("{directory}/sub{number}/file"), "x");
            }
        }
        link("file", root, "link");
        put(root, "linked", "1");
    }
    fs::hard_link(f.base.join("linked"), f.base.join("other-name")).unwrap();
    put(&f.guest, "other-name", "1");
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    for number in 0..8 {
        put(&f.guest, &format!("edit{number}"), &"new!".repeat(20_000));
        put(&f.guest, &format!("new/{number}/file"), "new");
        fs::remove_file(f.guest.join(format!("deep/gone{number}"))).unwrap();
    }
    for directory in ["all", "deep/all", "tofile", "tolink"] {
        fs::remove_dir_all(f.guest.join(directory)).unwrap();
    }
    put(&f.guest, "tofile", "now a file");
    link("exec", &f.guest, "tolink");
    fs::remove_file(f.guest.join("file")).unwrap();
    put(&f.guest, "file/now/a/directory", "x");
    fs::remove_file(f.guest.join("link")).unwrap();
    link("exec", &f.guest, "link");
    mode(&f.guest.join("exec"), 0o755);
    mode(&f.guest.join("new/3"), 0o500);
    mode(&f.guest.join("file"), 0o555);
    for path in ["linked", "other-name"] {
        put(&f.guest, path, "22");
    }
    let layer = save(&f);
    (f, layer)
}

/// Saves the changes of the guest.
fn save(f: &Fixture) -> PathBuf {
    let path = f.temp.path().join("layer.tar");
    let (now, base) = (File::open(&f.guest).unwrap(), f.open());
    let out = File::create(&path).unwrap();
    capture_comparison(now.as_fd(), base.as_fd(), &f.header, out, &Bounds::default()).unwrap();
    path
}

fn read_set(path: &Path) -> ChangeSet {
    ChangeSet::read(File::open(path).unwrap(), &Bounds::default()).unwrap()
}

fn is_leftover(path: &Path) -> bool {
    path.iter().any(|name| name.to_str().is_some_and(|name| name.starts_with(TEMPORARY)))
}

/// Checks that each path is as before or as after the application.
fn check_whole(found: &BTreeMap<PathBuf, String>, old: &BTreeMap<PathBuf, String>, new: &BTreeMap<PathBuf, String>) {
    // Permissions of directories are set at the end.
    let state = |tree: &BTreeMap<PathBuf, String>, path: &Path| match tree.get(path) {
        Some(text) if text.starts_with("directory") => Some("directory".to_owned()),
        other => other.cloned(),
    };
    for path in found.keys().chain(old.keys()).chain(new.keys()).filter(|path| !is_leftover(path)) {
        let now = state(found, path);
        assert!(now == state(old, path) || now == state(new, path), "{}: {now:?}", path.display());
    }
}

/// Applies the change set of a parent process that kills this one. Returns false in the parent.
fn is_victim() -> bool {
    let Some(root) = std::env::var_os(VICTIM).map(PathBuf::from) else { return false };
    let (set, directory) = (read_set(&root.join("layer.tar")), File::open(root.join("base")).unwrap());
    fs::write(root.join("ready"), "").unwrap();
    let _ = apply(&set, directory.as_fd(), &ApplyOptions::default());
    true
}

/// Kills applications of new workspaces after different times, and completes each.
fn kill_and_complete(test: &str, rounds: u32, create: impl Fn() -> (Fixture, PathBuf)) {
    let (f, layer) = create();
    let begun = Instant::now();
    f.apply_all(&read_set(&layer));
    let whole = begun.elapsed();
    assert_eq!(tree(&f.base), tree(&f.guest));
    let (mut halfway, mut leftovers) = (0, 0);
    for round in 0..rounds {
        let (f, layer) = create();
        let (old, new) = (tree(&f.base), tree(&f.guest));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([&format!("interrupted::{test}"), "--exact"])
            .env(VICTIM, f.temp.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !f.temp.path().join("ready").exists() {
            assert!(child.try_wait().unwrap().is_none_or(|status| status.success()), "the process ended early");
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(whole * round / rounds);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = tree(&f.base);
        check_whole(&found, &old, &new);
        halfway += u32::from(found != old && found != new);
        leftovers += u32::from(found.keys().any(|path| is_leftover(path)));
        f.apply_all(&read_set(&layer));
        let mut found = tree(&f.base);
        if rustix::process::geteuid().is_root() {
            // Root keeps what is in directories with temporary names.
            found.retain(|path, text| !is_leftover(path) || path.iter().count() == 1 && !text.starts_with("directory"));
        }
        assert_eq!(found, new);
    }
    println!("{halfway} of {rounds} applications were killed halfway, {leftovers} left temporary files");
    assert!(halfway > 0, "no application was killed halfway");
}

/// Promise (Files): If an application is killed, each file of the host is whole, and a second application completes it
/// and leaves nothing else.
#[test]
fn a_killed_application_is_completed_by_the_next() {
    if !is_victim() {
        kill_and_complete("a_killed_application_is_completed_by_the_next", 24, changed_in_all_ways);
    }
}

/// Promise (Files): If the deletion of a directory is killed, the directory is whole or gone, and a second application
/// completes it.
#[test]
fn a_killed_deletion_of_a_directory_is_completed_by_the_next() {
    let create = || {
        let f = Fixture::new(&[]);
        for directory in ["gone", "replaced"] {
            for number in 0..1000 {
                put(&f.base, &format!("{directory}/{}/{number}", number % 10), "1");
            }
        }
        put(&f.guest, "replaced", "now a file");
        let f = Fixture { header: start(&f.base), ..f };
        let layer = save(&f);
        (f, layer)
    };
    if !is_victim() {
        kill_and_complete("a_killed_deletion_of_a_directory_is_completed_by_the_next", 8, create);
    }
}

/// Promise (Files): Two applications of one change set at the same time are no conflict.
#[test]
fn applications_at_the_same_time_do_not_conflict() {
    for _ in 0..5 {
        let (f, layer) = changed_in_all_ways();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| f.apply_all(&read_set(&layer)));
            }
        });
        assert_eq!(tree(&f.base), tree(&f.guest));
    }
}

/// Promise (Files): A file that another program writes during an application is no conflict if it is the same.
#[test]
fn the_same_file_that_appears_late_is_no_conflict() {
    let f = Fixture::new(&[]);
    let text = "same".repeat(8 << 20);
    put(&f.guest, "a", "1");
    put(&f.guest, "b", &text);
    let (set, prepared) = (f.set(), f.temp.path().join("prepared"));
    fs::write(&prepared, &text).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !f.base.join("a").exists() && begun.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
            // The application is writing its own version then.
            std::thread::sleep(Duration::from_millis(5));
            fs::rename(&prepared, f.base.join("b")).unwrap();
        });
        f.apply_all(&set);
    });
    assert!(!f.base.join(format!("b{NEW_SUFFIX}")).exists());
    assert_eq!(tree(&f.base), tree(&f.guest));
}

#[test]
fn leftovers_in_written_directories_are_removed() {
    let f = Fixture::new(&[("d/file", "1"), ("e/file", "1")]);
    let set_of = |path: &str| {
        put(&f.guest, path, "22");
        f.set()
    };
    let name = |directory: &str, digit: &str| f.base.join(directory).join(format!("{TEMPORARY}{}", digit.repeat(24)));
    let set = set_of("d/file");
    for directory in ["", "d", "e"] {
        fs::write(name(directory, "0"), "dead").unwrap();
        std::os::unix::fs::symlink("x", name(directory, "1")).unwrap();
        put(&name(directory, "2"), "a/b", "dead");
    }
    let left = |directory: &str| {
        ["0", "1", "2"].iter().filter(|digit| fs::symlink_metadata(name(directory, digit)).is_ok()).count()
    };
    f.apply(&set, &ApplyOptions { dry_run: true, ..ApplyOptions::default() });
    assert_eq!(["", "d", "e"].map(left), [3, 3, 3]);
    f.apply_all(&set);
    let expected = usize::from(rustix::process::geteuid().is_root());
    assert_eq!(["", "d", "e"].map(left), [3, expected, 3]);
}

/// Promise (Files): A guest creates no files that a later application takes for its own leftovers.
#[test]
fn names_of_temporary_files_are_refused() {
    let f = Fixture::new(&[]);
    let name = format!("{TEMPORARY}{}", "a".repeat(24));
    put(&f.guest, &format!("{name}/x"), "1");
    put(&f.guest, &format!("d/{name}"), "1");
    put(&f.guest, &format!("{TEMPORARY}notes"), "1");
    let done = f.apply(&f.set(), &ApplyOptions::default());
    assert!(done.refused.len() == 3 && done.refused.iter().all(|refused| refused.reason == Refusal::ReservedName));
    assert_eq!(done.applied, [PathBuf::from(format!("{TEMPORARY}notes")), "d".into()]);
}

#[test]
fn hard_links_are_applied_one_after_the_other() {
    let (f, layer) = changed_in_all_ways();
    let only = ApplyOptions { only: Globs::new(["linked"]), ..ApplyOptions::default() };
    assert_eq!(f.apply(&read_set(&layer), &only).applied.len(), 1);
    f.apply_all(&read_set(&layer));
    assert_eq!(tree(&f.base), tree(&f.guest));
}

#[test]
fn the_effect_of_each_change_is_reported() {
    let (f, layer) = changed_in_all_ways();
    let (set, directory) = (read_set(&layer), f.open());
    let effect = |path: &str| effect(&set, directory.as_fd(), Path::new(path)).unwrap();
    for (path, expected) in [
        ("edit0", Effect::Replace),
        ("tofile", Effect::Replace),
        ("file", Effect::Replace),
        ("new", Effect::Add),
        ("new/1/file", Effect::Add),
        ("all", Effect::Delete),
        ("deep/gone1", Effect::Delete),
    ] {
        assert_eq!(effect(path), expected, "{path}");
    }
    f.apply_all(&set);
    assert!(["edit0", "tofile", "file", "new", "all"].iter().all(|path| effect(path) == Effect::None));
}

/// A small file system in memory, which is unmounted at the end.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(options: &str, at: &Path) -> bool {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status();
        mounted.is_ok_and(|status| status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Promise (Files): A full disk during an application leaves each file whole and no temporary file, and the application
/// can be completed.
#[test]
fn a_full_disk_leaves_whole_files() {
    let temp = tempfile::tempdir().unwrap();
    let (base, guest) = (temp.path().join("base"), temp.path().join("guest"));
    fs::create_dir(&base).unwrap();
    fs::create_dir(&guest).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !SmallDisk::mount("size=1m,mode=755", &base) {
        println!("SKIP a_full_disk_leaves_whole_files: only root can mount a small file system");
        return;
    }
    let disk = SmallDisk(base.clone());
    mode(&guest, 0o755);
    for (root, text) in [(&base, "old".repeat(20_000)), (&guest, "new".repeat(80_000))] {
        for number in 0..6 {
            put(root, &format!("d/file{number}"), &text);
        }
    }
    put(&base, "tree/x", "1");
    put(&guest, "tree", &"t".repeat(400_000));
    put(&guest, "new/file", "1");
    let header = start(&base);
    let f = Fixture { temp, base, guest, header };
    let (set, old, new) = (f.set(), tree(&f.base), tree(&f.guest));
    let done = f.apply(&set, &ApplyOptions::default());
    assert!(matches!(done.failed, Some((_, ChangesError::NoSpace { .. }))), "{done:?}");
    assert!(!done.applied.is_empty(), "the disk was full before the first file");
    let found = tree(&f.base);
    check_whole(&found, &old, &new);
    assert!(!found.keys().any(|path| is_leftover(path)), "{:?}", found.keys());
    let resized = Command::new("mount").args(["-o", "remount,size=16m"]).arg(&f.base).status().unwrap();
    assert!(resized.success());
    f.apply_all(&set);
    assert_eq!(tree(&f.base), new);
    drop(disk);
}
