//! Applications while another process changes the workspace.

use std::fs;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_changes::{ApplyOptions, Bounds, Marks, Workspace, apply, capture_overlay};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::*;

const ROUNDS: usize = 200;

/// Promise (Files): Directories that become symbolic links during the application of a change set lead it nowhere else.
#[test]
fn directories_that_become_links_lead_nowhere_else() {
    let f = Fixture::new(&[("dir/file", "1"), ("dir/gone", "1"), ("dir/tree/a/b", "1")]);
    let outside = f.temp.path().join("outside");
    for path in ["file", "gone", "tree/a/b"] {
        put(&outside, path, "secret");
    }
    put(&f.guest, "dir/file", "guest");
    put(&f.guest, "dir/new/x", "guest");
    fs::remove_file(f.guest.join("dir/gone")).unwrap();
    fs::remove_dir_all(f.guest.join("dir/tree")).unwrap();
    let set = f.set();
    let (before, pristine) = (tree(&outside), f.temp.path().join("pristine"));
    let copied = std::process::Command::new("cp").arg("-a").arg(&f.base).arg(&pristine).status().unwrap();
    assert!(copied.success());
    let mut written = 0;
    for _ in 0..ROUNDS {
        let work = f.temp.path().join("work");
        let copied = std::process::Command::new("cp").arg("-a").arg(&pristine).arg(&work).status().unwrap();
        assert!(copied.success());
        std::os::unix::fs::symlink(&outside, work.join("away")).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let (one, other) = (work.join("dir"), work.join("away"));
                    renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let options = ApplyOptions { workspace: Workspace::Any, ..ApplyOptions::default() };
            let directory = fs::File::open(&work).unwrap();
            for _ in 0..5 {
                if let Ok(applied) = apply(&set, directory.as_fd(), &options) {
                    written += applied.applied.len();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(tree(&outside), before);
        fs::remove_dir_all(&work).unwrap();
    }
    assert!(written > 0, "no round wrote anything");
}

#[test]
fn a_capture_ends_while_the_guest_changes_its_files() {
    let f = Fixture::new(&[("dir/file", "1")]);
    let secret = f.temp.path().join("secret");
    put(&secret, "file", "secret");
    std::os::unix::fs::symlink(&secret, f.guest.join("away")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut size = 0;
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, f.guest.join("dir"), CWD, f.guest.join("away"), RenameFlags::EXCHANGE).unwrap();
                size = (size + 40_000) % 400_000;
                fs::write(f.guest.join("growing"), vec![b'x'; size]).unwrap();
            }
        });
        for _ in 0..ROUNDS {
            let file = tempfile::tempfile().unwrap();
            let (upper, base) = (fs::File::open(&f.guest).unwrap(), f.open());
            if capture_overlay(upper.as_fd(), base.as_fd(), Marks::User, &f.header, &file, &Bounds::default()).is_ok() {
                let set = cofferdam_changes::ChangeSet::read(file, &Bounds::default()).unwrap();
                for change in set.changes().iter().filter(|change| change.path.ends_with("file")) {
                    let mut text = String::new();
                    std::io::Read::read_to_string(&mut set.content(change.node.as_ref().unwrap()), &mut text).unwrap();
                    assert_ne!(text, "secret");
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
