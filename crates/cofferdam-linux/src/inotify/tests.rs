//! Tests on real directories: the events lead to the files that exist, whatever happens between reads.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::fs::{CWD, RenameFlags};

use super::*;

struct Watching {
    inotify: Inotify,
    tree: Tree,
    queue: Queue,
    seen: BTreeSet<String>,
    lost: bool,
}

fn text(path: &[u8]) -> String {
    String::from_utf8(path.to_vec()).unwrap()
}

impl Watching {
    fn new(root: &Path, max: usize) -> Self {
        Self::of(root, b"", true, max)
    }

    fn of(root: &Path, path: &[u8], recursive: bool, max: usize) -> Self {
        let inotify = Inotify::new(File::open(root).unwrap().into()).unwrap();
        let tree = Tree::new(path, recursive, max);
        let mut watching = Self { inotify, tree, queue: Queue::default(), seen: BTreeSet::new(), lost: false };
        watching.run_steps();
        watching
    }

    fn run_steps(&mut self) {
        while let Some(step) = self.tree.next_step() {
            self.inotify.run(step, &mut self.tree);
        }
    }

    fn remove(&mut self, path: &str) {
        let beneath = format!("{path}/");
        self.seen.retain(|other| other != path && !other.starts_with(&beneath));
    }

    /// Reads all events and applies them to the set of paths.
    fn read(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while self.inotify.read(&mut self.queue).unwrap() {
            while let Some(raw) = self.queue.take().unwrap() {
                self.tree.handle(raw);
            }
            self.run_steps();
        }
        self.tree.settle();
        self.run_steps();
        for event in self.tree.take_events() {
            match &event {
                Event::Created(path) => drop(self.seen.insert(text(path))),
                Event::Removed(path) => self.remove(&text(path)),
                Event::Renamed { from, to, .. } => {
                    let (from, to) = (text(from), text(to));
                    self.remove(&to);
                    let beneath = format!("{from}/");
                    let moved: Vec<_> = self.seen.iter().filter(|path| path.starts_with(&beneath)).cloned().collect();
                    self.remove(&from);
                    self.seen.extend(moved.iter().map(|path| format!("{to}{}", &path[from.len()..])));
                    self.seen.insert(to);
                }
                Event::Changed(_) => {}
                Event::Lost => self.lost = true,
            }
            all.push(event);
        }
        all
    }
}

fn existing(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    crate::walk::walk(File::open(root).unwrap(), &mut |path, _, _| {
        found.insert(path.to_str().unwrap().to_owned());
        Ok(())
    })
    .unwrap();
    found
}

/// Changes a tree, if the change is possible.
fn change(root: &Path, kind: u8, one: &str, other: &str) {
    let (one, other) = (root.join(one), root.join(other));
    let rename = |flags| {
        let _ = rustix::fs::renameat_with(CWD, &one, CWD, &other, flags);
    };
    match kind {
        0 | 1 => drop(std::fs::create_dir(&one)),
        2 if !one.is_dir() => drop(std::fs::write(&one, "x")),
        3 if one.is_dir() => drop(std::fs::remove_dir_all(&one)),
        3 => drop(std::fs::remove_file(&one)),
        4 | 5 => rename(RenameFlags::empty()),
        6 => rename(RenameFlags::EXCHANGE),
        _ => drop(symlink("nowhere", &one)),
    }
}

fn any_path() -> impl Strategy<Value = String> {
    prop::collection::vec("[abc]", 1..4).prop_map(|parts| parts.join("/"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Promise (Files): The events of a recursive watch lead to the files that exist, in new, moved and exchanged
    /// directories as well.
    #[test]
    fn events_lead_to_the_files_that_exist(
        steps in prop::collection::vec((0u8..8, any_path(), any_path(), prop::bool::weighted(0.2)), 1..60),
    ) {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("a/b/c")).unwrap();
        let mut watching = Watching::new(temp.path(), 1000);
        watching.seen = existing(temp.path());
        for (kind, one, other, read) in &steps {
            change(temp.path(), *kind, one, other);
            if *read {
                watching.read();
                prop_assert_eq!(&watching.seen, &existing(temp.path()));
            }
        }
        watching.read();
        prop_assert!(!watching.lost);
        prop_assert_eq!(&watching.seen, &existing(temp.path()));
        // Every directory is still watched.
        let mut directories = vec![PathBuf::new()];
        crate::walk::walk(File::open(temp.path()).unwrap(), &mut |path, _, entry| {
            if matches!(entry, crate::walk::Entry::Directory) {
                directories.push(path.to_owned());
            }
            Ok(())
        }).unwrap();
        for directory in directories {
            std::fs::write(temp.path().join(&directory).join("probe"), "").unwrap();
            let probe = directory.join("probe").to_str().unwrap().as_bytes().to_vec();
            let events = watching.read();
            prop_assert!(events.contains(&Event::Created(probe.clone())), "{:?} {:?}", text(&probe), events);
        }
    }

    /// Promise (Files): Events and lists that a guest agent invents cost bounded memory.
    #[test]
    fn invented_events_are_bounded(
        all in prop::collection::vec((0i32..6, 0usize..12, 0u32..3, "[ab]{0,1}", any::<bool>(), 0i32..6), 1..200),
    ) {
        const MASKS: [u32; 6] = [queue::CREATE, queue::DELETE, queue::MOVED_FROM, queue::MOVED_TO, queue::ATTRIB, queue::IGNORED];
        let mut tree = Tree::new(b"w", true, 5);
        for (wd, mask, cookie, name, directory, marked) in all {
            let mask = MASKS[mask % 6] | if mask < 6 { queue::DIRECTORY } else { 0 };
            tree.handle(RawEvent { wd, mask, cookie, name: name.into_bytes() });
            for _ in 0..3 {
                if let Some(Step::Mark { node, path, .. }) = tree.next_step() {
                    prop_assert!(path.len() <= 4096);
                    let entry = |name: &str| Entry { name: name.into(), directory };
                    let entries = vec![entry("a"), entry("b")];
                    tree.marked(node, if directory { Ok(Marked { wd: marked, entries, complete: true }) } else { Err(Failure::Other) });
                }
            }
            prop_assert!(tree.take_events().len() <= 20);
            prop_assert!(tree.len() <= 5);
        }
    }
}

#[test]
fn too_many_directories_are_reported_as_lost() {
    let temp = tempfile::tempdir().unwrap();
    let mut watching = Watching::new(temp.path(), 10);
    for number in 0..1000 {
        std::fs::create_dir(temp.path().join(number.to_string())).unwrap();
    }
    watching.read();
    assert!(watching.lost);
    assert_eq!(watching.tree.len(), 10);
    assert_eq!(watching.seen.len(), 1000);
}

#[test]
fn the_end_of_the_watched_directory_ends_the_tree() {
    for rename in [false, true] {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("d");
        std::fs::create_dir(&path).unwrap();
        let mut watching = Watching::of(temp.path(), b"d", true, 10);
        std::fs::write(path.join("f"), "").unwrap();
        std::fs::remove_file(path.join("f")).unwrap();
        assert!(!watching.tree.is_over());
        if rename {
            std::fs::rename(&path, temp.path().join("e")).unwrap();
        } else {
            std::fs::remove_dir(&path).unwrap();
        }
        let events = watching.read();
        assert_eq!(events.last(), Some(&Event::Removed(b"d".to_vec())), "{events:?}");
        assert!(watching.tree.is_over());
    }
}

#[test]
fn a_single_directory_is_watched_without_those_beneath() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("d")).unwrap();
    let mut watching = Watching::of(temp.path(), b"", false, 10);
    std::fs::write(temp.path().join("d/f"), "").unwrap();
    std::fs::create_dir(temp.path().join("e")).unwrap();
    std::fs::write(temp.path().join("e/f"), "").unwrap();
    assert_eq!(watching.read(), [Event::Created(b"e".to_vec())]);
    assert_eq!(watching.tree.len(), 1);
}

/// Promise (Files): A directory that becomes a link while it is being watched leads a watch to nothing outside.
#[test]
fn a_directory_that_becomes_a_link_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
    for directory in [root.join("d"), outside.join("secret")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    symlink(&outside, root.join("away")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, root.join("d"), CWD, root.join("away"), RenameFlags::EXCHANGE).unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::fs::write(outside.join("secret/f"), "x").unwrap();
            }
        });
        let until = Instant::now() + Duration::from_secs(1);
        let mut restarts = 0;
        while Instant::now() < until || restarts < 2 {
            let mut watching = Watching::new(&root, 100);
            for _ in 0..20 {
                let events = watching.read();
                assert!(!events.iter().any(|event| format!("{event:?}").contains("115, 101, 99")), "{events:?}");
                if watching.tree.is_stale() {
                    break;
                }
            }
            restarts += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    let inotify = Inotify::new(File::open(&root).unwrap().into()).unwrap();
    let link = if root.join("d").is_symlink() { "d" } else { "away" };
    for path in [link.to_owned(), format!("{link}/secret"), "../outside".to_owned()] {
        assert!(inotify.mark(path.as_bytes(), List::All).is_err(), "{path}");
    }
}
