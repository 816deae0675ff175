//! The store of kept change sets.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cofferdam_changes::{ChangesError, Header, Id, LayerWriter, Store, StoreLimits};

fn header() -> Header {
    Header { workspace: PathBuf::from("/work/space"), started: 1, device: 2, inode: 3 }
}

fn open(path: &Path) -> Store {
    Store::open(path, StoreLimits::default()).unwrap()
}

fn keep(store: &Store, size: usize) -> Result<Id, ChangesError> {
    let contents = vec![7; size];
    let (id, ()) = store.keep(|out| {
        let mut writer = LayerWriter::new(out, &header())?;
        writer.file(Path::new("file"), 0o644, size as u64, &*contents, None)?;
        writer.finish()?.flush().unwrap();
        Ok(())
    })?;
    Ok(id)
}

fn age(path: &Path, id: &Id, seconds: u64) {
    let file = File::options().write(true).open(path.join(format!("{id}.tar"))).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
}

fn names(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

#[test]
fn change_sets_are_kept_listed_opened_and_discarded() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("a/store");
    let store = open(&path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let (one, two) = (keep(&store, 10).unwrap(), keep(&store, 20).unwrap());
    age(&path, &one, 60);
    let stored = open(&path).list().unwrap();
    assert_eq!(stored.iter().map(|stored| &stored.id).collect::<Vec<_>>(), [&one, &two]);
    let contents = stored[0].contents.as_ref().unwrap();
    assert_eq!((contents.workspace.as_path(), contents.changes), (Path::new("/work/space"), 1));
    let (found, set) = store.get(&one.as_str()[..8]).unwrap();
    assert_eq!((found, set.bytes()), (one.clone(), 10));
    for bad in ["", "../x", "zz", "\u{1b}[2J", "0000000000000"] {
        assert!(matches!(store.get(bad), Err(ChangesError::NotFound { .. })), "{bad}");
    }
    assert_eq!(store.discard(one.as_str()).unwrap(), one);
    assert!(matches!(store.discard(one.as_str()), Err(ChangesError::NotFound { .. })));
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn a_prefix_of_two_ids_is_ambiguous() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    for id in ["00000000000a", "00000000000b"] {
        fs::write(temp.path().join(format!("{id}.tar")), "damaged").unwrap();
    }
    assert!(matches!(store.get("0000"), Err(ChangesError::Ambiguous { .. })));
    assert!(store.list().unwrap().iter().all(|stored| stored.contents.is_none()));
    assert!(matches!(store.get("00000000000a"), Err(ChangesError::Malformed { .. })));
    store.discard("00000000000a").unwrap();
}

#[test]
fn old_and_large_change_sets_are_pruned() {
    let temp = tempfile::tempdir().unwrap();
    let limits = StoreLimits { max_bytes: 40_500, max_age: Duration::from_secs(1000), ..StoreLimits::default() };
    let store = Store::open(temp.path(), limits).unwrap();
    let ids: Vec<Id> = (0..3).map(|_| keep(&store, 6000).unwrap()).collect();
    for (id, seconds) in ids.iter().zip([2000, 100, 50]) {
        age(temp.path(), id, seconds);
    }
    let newest = keep(&store, 20_000).unwrap();
    let left = |store: &Store| store.list().unwrap().into_iter().map(|stored| stored.id).collect::<Vec<_>>();
    assert_eq!(left(&store), [ids[1].clone(), ids[2].clone(), newest.clone()]);
    let last = keep(&store, 10_000).unwrap();
    assert_eq!(left(&store), [newest.clone(), last.clone()]);
    assert!(matches!(keep(&store, 50_000), Err(ChangesError::TooLarge { .. })));
    assert_eq!(left(&store), [newest.clone(), last.clone()]);
    assert_eq!(store.prune(15_000, Duration::from_secs(1000)).unwrap(), [newest]);
    assert_eq!(store.prune(u64::MAX, Duration::ZERO).unwrap(), [last]);
}

#[test]
fn files_of_killed_processes_are_removed_and_those_of_living_ones_stay() {
    let temp = tempfile::tempdir().unwrap();
    let store = open(temp.path());
    fs::write(temp.path().join(".tmp-0123456789ab"), "half").unwrap();
    store
        .keep(|out| {
            out.write_all(b"begun").unwrap();
            assert!(!temp.path().join(".tmp-0123456789ab").exists());
            // Another process keeps one meanwhile.
            let other = open(temp.path());
            keep(&other, 5)?;
            assert_eq!(
                fs::read_dir(temp.path())
                    .unwrap()
                    .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".tmp-"))
                    .count(),
                1
            );
            Ok(())
        })
        .unwrap();
    // The lock, and two change sets.
    assert_eq!(names(temp.path()), 3);
    let failed = store.keep(|_| Err::<(), _>(ChangesError::NotFound { id: "x".into() }));
    assert!(failed.is_err());
    assert_eq!(names(temp.path()), 3);
}

#[test]
fn threads_keep_at_the_same_time() {
    let temp = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = open(temp.path());
                (0..25).for_each(|_| drop(keep(&store, 100).unwrap()));
            });
        }
    });
    let stored = open(temp.path()).list().unwrap();
    assert_eq!((stored.len(), names(temp.path())), (100, 101));
    assert!(stored.iter().all(|stored| stored.contents.is_some()));
}

#[test]
fn a_store_that_other_users_can_change_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = Store::open(temp.path(), StoreLimits::default()).unwrap_err();
    assert!(matches!(error, ChangesError::Exposed { .. }), "{error}");
    std::os::unix::fs::symlink(temp.path(), temp.path().join("link")).unwrap();
    assert!(Store::open(&temp.path().join("link"), StoreLimits::default()).is_err());
}

const VICTIM: &str = "COFFERDAM_CHANGES_VICTIM";

/// Promise (Files): The store of change sets has no part of a change set whose process was killed.
#[test]
fn a_killed_process_leaves_nothing() {
    if let Some(path) = std::env::var_os(VICTIM) {
        let path = PathBuf::from(path);
        let store = open(&path);
        let _ = store.keep(|out| {
            out.write_all(b"begun").unwrap();
            fs::write(path.with_extension("ready"), "").unwrap();
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        });
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("store");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["store::a_killed_process_leaves_nothing", "--exact"])
        .env(VICTIM, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !path.with_extension("ready").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the process ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Its lock protects its file while it lives.
    let store = open(&path);
    keep(&store, 5).unwrap();
    assert_eq!(names(&path), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(&path), 3);
    keep(&store, 5).unwrap();
    assert_eq!((names(&path), store.list().unwrap().len()), (3, 2));
}
