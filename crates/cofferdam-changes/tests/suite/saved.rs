//! Files of change sets that a caller saved.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cofferdam_changes::{
    Bounds, ChangesError, Globs, RenderOptions, SavedFile, Store, StoreLimits, capture_comparison, document,
    open_saved, render,
};

use crate::common::*;

/// Saves the changes of the guest.
fn save(f: &Fixture) -> PathBuf {
    let path = f.temp.path().join("saved.tar");
    let (now, base) = (File::open(&f.guest).unwrap(), f.open());
    let out = File::create(&path).unwrap();
    capture_comparison(now.as_fd(), base.as_fd(), &f.header, out, &Bounds::default()).unwrap();
    path
}

fn open(path: &Path) -> Result<SavedFile, ChangesError> {
    open_saved(path, &Bounds::default())
}

/// Promise (Files): Discarding a saved change set deletes that file, and no file that is not a change set.
#[test]
fn only_change_sets_are_discarded() {
    let f = Fixture::new(&[]);
    put(&f.guest, "a", "1");
    let path = save(&f);
    let (plain, link) = (f.temp.path().join("plain"), f.temp.path().join("link"));
    fs::write(&plain, "precious").unwrap();
    symlink(&path, &link).unwrap();
    for other in [&plain, &link, &f.base, &f.base.join("..")] {
        let error = open(other).unwrap_err();
        assert!(matches!(error, ChangesError::NotAChangeSet { .. }), "{}: {error}", other.display());
    }
    assert!(matches!(open(&f.base.join("missing")), Err(ChangesError::Io { .. })));
    let saved = open(&path).unwrap();
    assert_eq!(saved.set().changes().len(), 1);
    // Another file has its name now.
    fs::rename(&path, f.temp.path().join("moved.tar")).unwrap();
    fs::write(&path, "precious").unwrap();
    assert!(matches!(saved.discard(), Err(ChangesError::NotAChangeSet { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let moved = f.temp.path().join("moved.tar");
    open(&moved).unwrap().discard().unwrap();
    assert!(!moved.exists() && plain.exists());
}

#[test]
fn a_review_is_restricted_to_selected_paths() {
    let f = Fixture::new(&[("src/a.rs", "1\n"), ("old/b.txt", "contents b")]);
    put(&f.guest, "src/a.rs", "2\n");
    put(&f.guest, "notes", "n\n");
    fs::rename(f.guest.join("old"), f.guest.join("new")).unwrap();
    let select = |pattern| f.set().select(Globs::new([pattern]));
    let paths = |pattern| {
        let found = document(&select(pattern), f.open().as_fd()).unwrap();
        let paths: Vec<_> = found.changes.iter().map(|change| (change.kind.clone(), change.path.clone())).collect();
        assert_eq!(found.summary.files, paths.len());
        paths
    };
    let expected = |rows: &[(&str, &str)]| -> Vec<_> {
        rows.iter().map(|(kind, path)| ((*kind).to_owned(), (*path).to_owned())).collect()
    };
    assert_eq!(paths("src/**"), expected(&[("modified", "src/a.rs")]));
    // An application of these paths alone does not delete the old file.
    assert_eq!(paths("b.txt"), expected(&[("added", "new/b.txt")]));
    assert_eq!(paths("missing"), expected(&[]));
    let mut text = Vec::new();
    render(&select("*.rs"), f.open().as_fd(), &RenderOptions::default(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("+2\n")
            && !text.contains("notes")
            && text.ends_with("1 file changed, 1 insertion(+), 1 deletion(-)\n"),
        "{text}"
    );
    f.apply_all(&select("src/**"));
    assert_eq!((read(&f.base, "src/a.rs"), f.base.join("notes").exists()), ("2\n".into(), false));
}

/// Promise (Files): The list of change sets counts files as the review of a change set does.
#[test]
fn the_store_counts_files_as_reviews_do() {
    let f = Fixture::new(&[("old/a", "contents a"), ("old/b", "contents b"), ("c", "1")]);
    fs::rename(f.guest.join("old"), f.guest.join("new")).unwrap();
    put(&f.guest, "c", "22");
    let (path, set) = (save(&f), f.set());
    let reviewed = document(&set, f.open().as_fd()).unwrap().summary.files;
    assert!(reviewed == 5 && set.changes().len() == 5, "one deletion of a directory: {reviewed}");
    put(&f.base, "single", "contents d");
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    put(&f.guest, "moved", "contents d");
    let path = save(&f).parent().unwrap().join(path.file_name().unwrap());
    let store = Store::open(&f.temp.path().join("store"), StoreLimits::default()).unwrap();
    let bytes = fs::read(path).unwrap();
    let write = |out: &mut dyn std::io::Write| {
        out.write_all(&bytes).unwrap();
        Ok(())
    };
    store.keep(write).unwrap();
    let reviewed = document(&f.set(), f.open().as_fd()).unwrap().summary.files;
    let counted = || store.list().unwrap().remove(0).contents.unwrap().changes;
    assert_eq!((counted(), reviewed, f.set().changes().len()), (reviewed, 6, 7));
    // Without its workspace, each change counts.
    fs::rename(&f.base, f.temp.path().join("elsewhere")).unwrap();
    assert_eq!(counted(), 7);
}
