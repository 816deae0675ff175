//! Comparison of the tree with a map from paths to files and directories.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_contract::{DirEntry, EntryKind};
use proptest::prelude::*;

use super::*;
use crate::account::Account;

const BASE: Base<'static> = Base { ino: ROOT, name: Some("/") };

#[derive(Debug, Clone, PartialEq, Eq)]
enum Thing {
    File(Vec<u8>),
    Directory,
}

type Model = BTreeMap<String, Thing>;

#[derive(Debug, Clone)]
enum Step {
    Write(String, Vec<u8>),
    Directory(String),
    Rename(String, String),
    Unlink(String),
    RemoveDirectory(String),
    RemoveAll(String),
    Put(String, Vec<u8>),
}

fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(above, _)| above)
}

fn has_parent(model: &Model, path: &str) -> bool {
    parent(path).is_none_or(|above| model.get(above) == Some(&Thing::Directory))
}

fn is_empty(model: &Model, path: &str) -> bool {
    !model.keys().any(|key| key.starts_with(&format!("{path}/")))
}

/// Applies a step to the model; returns `false` if the step must fail.
fn apply(model: &mut Model, step: &Step) -> bool {
    match step {
        Step::Write(path, data) => {
            let ok = has_parent(model, path) && model.get(path) != Some(&Thing::Directory);
            if ok {
                model.insert(path.clone(), Thing::File(data.clone()));
            }
            ok
        }
        Step::Directory(path) => {
            let ok = has_parent(model, path) && !model.contains_key(path);
            if ok {
                model.insert(path.clone(), Thing::Directory);
            }
            ok
        }
        Step::Unlink(path) => {
            let ok = matches!(model.get(path), Some(Thing::File(_)));
            if ok {
                model.remove(path);
            }
            ok
        }
        Step::RemoveDirectory(path) => {
            let ok = model.get(path) == Some(&Thing::Directory) && is_empty(model, path);
            if ok {
                model.remove(path);
            }
            ok
        }
        Step::RemoveAll(path) => {
            let ok = model.contains_key(path);
            model.retain(|key, _| key != path && !key.starts_with(&format!("{path}/")));
            ok
        }
        Step::Put(path, data) => {
            let mut above = parent(path);
            while let Some(directory) = above {
                if matches!(model.get(directory), Some(Thing::File(_))) {
                    return false;
                }
                above = parent(directory);
            }
            if model.get(path) == Some(&Thing::Directory) {
                return false;
            }
            let mut above = parent(path);
            while let Some(directory) = above {
                model.insert(directory.to_owned(), Thing::Directory);
                above = parent(directory);
            }
            model.insert(path.clone(), Thing::File(data.clone()));
            true
        }
        Step::Rename(from, to) => rename(model, from, to),
    }
}

fn rename(model: &mut Model, from: &str, to: &str) -> bool {
    let Some(moved) = model.get(from).cloned() else { return false };
    let below = to.starts_with(&format!("{from}/"));
    if !has_parent(model, to) || (moved == Thing::Directory && below) {
        return false;
    }
    if from == to {
        return true;
    }
    let replaceable = match (&moved, model.get(to)) {
        (_, None) => true,
        (Thing::File(_), Some(Thing::File(_))) => true,
        (Thing::Directory, Some(Thing::Directory)) => is_empty(model, to),
        _ => false,
    };
    if !replaceable {
        return false;
    }
    let prefix = format!("{from}/");
    let keys: Vec<String> = model.keys().filter(|key| *key == from || key.starts_with(&prefix)).cloned().collect();
    for key in keys {
        if let Some(thing) = model.remove(&key) {
            model.insert(format!("{to}{}", &key[from.len()..]), thing);
        }
    }
    true
}

fn carry_out(tree: &mut Tree, step: &Step) -> FsResult<()> {
    match step {
        Step::Write(path, data) => {
            let how = OpenHow { create: true, truncate: true, writes: true, ..OpenHow::default() };
            let ino = tree.open(BASE, path, LastLink::Follow, how, 0)?;
            tree.write(ino, 0, data, 0)
        }
        Step::Directory(path) => tree.make_directory(BASE, path, 0).map(drop),
        Step::Unlink(path) => tree.unlink_file(BASE, path, 0),
        Step::RemoveDirectory(path) => tree.remove_directory(BASE, path, 0),
        Step::RemoveAll(path) => tree.remove_all(BASE, path, 0),
        Step::Rename(from, to) => tree.rename((BASE, from), (BASE, to), 0),
        Step::Put(path, data) => {
            let ino = tree.nameless_file(0)?;
            let done = tree.write(ino, 0, data, 0).and_then(|()| tree.link_file(BASE, path, ino, 0));
            tree.release(ino);
            done
        }
    }
}

fn observe(tree: &Tree) -> Model {
    let mut model = Model::new();
    let mut pending = vec![(ROOT, String::new())];
    while let Some((ino, prefix)) = pending.pop() {
        for DirEntry { name, kind, size, .. } in tree.list(ino, usize::MAX).unwrap().unwrap() {
            let path = format!("{prefix}{name}");
            let found = tree.lookup(BASE, &path, LastLink::Keep).unwrap();
            let thing = match kind {
                EntryKind::Directory => {
                    pending.push((found, format!("{path}/")));
                    Thing::Directory
                }
                _ => {
                    let mut data = vec![0; size as usize];
                    tree.read(found, 0, &mut data).unwrap();
                    Thing::File(data)
                }
            };
            model.insert(path, thing);
        }
    }
    model
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec("[abc]", 1..4).prop_map(|parts| parts.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    let data = || prop::collection::vec(any::<u8>(), 0..600);
    prop_oneof![
        3 => (path(), data()).prop_map(|(path, data)| Step::Write(path, data)),
        3 => path().prop_map(Step::Directory),
        3 => (path(), path()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => path().prop_map(Step::Unlink),
        1 => path().prop_map(Step::RemoveDirectory),
        1 => path().prop_map(Step::RemoveAll),
        2 => (path(), data()).prop_map(|(path, data)| Step::Put(path, data)),
    ]
}

proptest! {
    /// Promise (WebAssembly): The file tree in memory behaves like a simple model of paths and contents.
    #[test]
    fn the_tree_is_the_same_as_a_map_of_paths(steps in prop::collection::vec(step(), 0..40)) {
        let account = Arc::new(Account::new(None));
        let mut tree = Tree::new(None, Arc::clone(&account));
        let mut model = Model::new();
        for step in &steps {
            let expected = apply(&mut model, step);
            let got = carry_out(&mut tree, step);
            prop_assert_eq!(got.is_ok(), expected, "{:?}: {:?}", step, got);
            prop_assert_eq!(observe(&tree), model.clone(), "after {:?}", step);
            prop_assert_eq!(tree.disk(), tree.cost_of_all(), "charged bytes after {:?}", step);
            prop_assert_eq!(account.used(), tree.disk());
        }
        for DirEntry { name, .. } in tree.list(ROOT, usize::MAX).unwrap().unwrap() {
            tree.remove_all(BASE, &name, 0).unwrap();
        }
        prop_assert_eq!(tree.disk(), 0);
    }

    #[test]
    fn no_path_and_no_links_lead_out(links in prop::collection::vec(("[ab]{1,2}", "(/|/in|\\.\\.|a|b|/){0,5}"), 0..8), path in "[ab./]{0,12}") {
        let mut tree = Tree::new(None, Arc::new(Account::new(None)));
        let base = Base { ino: tree.make_directory(BASE, "in", 0).unwrap(), name: Some("/in") };
        tree.make_directory(BASE, "out", 0).unwrap();
        tree.make_directory(base, "a", 0).unwrap();
        for (link, target) in links {
            let _ = tree.make_symlink(base, &link, &target, 0);
        }
        if let Ok(ino) = tree.lookup(base, &path, LastLink::Follow) {
            let mut at = ino;
            while at != base.ino {
                prop_assert!(at != ROOT, "{} leads out", path);
                at = match tree.stat(at).unwrap().kind {
                    Kind::Directory => tree.list_from(at, 1, 1).unwrap()[0].ino,
                    _ => base.ino,
                };
            }
        }
    }
}

fn small(limit: u64) -> Tree {
    Tree::new(Some(limit), Arc::new(Account::new(None)))
}

#[test]
fn empty_files_fill_the_disk_too() {
    let mut tree = small(64 << 10);
    let how = OpenHow { create: true, writes: true, ..OpenHow::default() };
    let created =
        (0..10_000).take_while(|n| tree.open(BASE, &format!("f{n}"), LastLink::Follow, how, 0).is_ok()).count();
    assert!((10..128).contains(&created), "{created} files in 64 KiB");
    assert_eq!(tree.open(BASE, "more", LastLink::Follow, how, 0), Err(FsError::Full));
    assert_eq!(tree.make_symlink(BASE, "more", "x", 0), Err(FsError::Full));
    assert_eq!(tree.disk(), tree.cost_of_all());
}

#[test]
fn a_removed_open_file_is_charged_until_it_is_closed() {
    let mut tree = small(1 << 20);
    let how = OpenHow { create: true, writes: true, ..OpenHow::default() };
    let ino = tree.open(BASE, "f", LastLink::Follow, how, 0).unwrap();
    tree.acquire(ino).unwrap();
    tree.write(ino, 0, &[1; 100_000], 0).unwrap();
    tree.unlink_file(BASE, "f", 0).unwrap();
    assert!(tree.disk() >= 100_000);
    let mut buffer = [0; 4];
    assert_eq!(tree.read(ino, 99_998, &mut buffer), Ok(2));
    tree.release(ino);
    assert_eq!(tree.disk(), 0);
    assert_eq!(tree.stat(ino), Err(FsError::NotFound));
}

#[test]
fn a_directory_cannot_move_below_itself_by_any_descriptor() {
    let mut tree = small(1 << 20);
    tree.make_directory(BASE, "a", 0).unwrap();
    let inner = tree.make_directory(BASE, "a/b", 0).unwrap();
    let inner = Base { ino: inner, name: None };
    assert_eq!(tree.rename((BASE, "a"), (inner, "c"), 0), Err(FsError::Invalid));
    assert_eq!(tree.rename((BASE, "a"), (BASE, "a/b/c"), 0), Err(FsError::Invalid));
}

#[test]
fn a_removed_directory_takes_no_new_entries() {
    let mut tree = small(1 << 20);
    let gone = tree.make_directory(BASE, "d", 0).unwrap();
    tree.acquire(gone).unwrap();
    tree.remove_directory(BASE, "d", 0).unwrap();
    let gone_base = Base { ino: gone, name: None };
    assert_eq!(tree.make_directory(gone_base, "x", 0), Err(FsError::NotFound));
    tree.make_directory(BASE, "e", 0).unwrap();
    assert_eq!(tree.rename((BASE, "e"), (gone_base, "x"), 0), Err(FsError::NotFound));
    tree.release(gone);
    assert_eq!(tree.disk(), tree.cost_of_all());
}

#[test]
fn a_deep_tree_is_made_and_removed_without_recursion() {
    let mut tree = Tree::new(None, Arc::new(Account::new(None)));
    let mut base = BASE;
    for _ in 0..50_000 {
        base = Base { ino: tree.make_directory(base, "d", 0).unwrap(), name: None };
    }
    tree.remove_all(BASE, "d", 0).unwrap();
    assert_eq!(tree.disk(), 0);
}

#[test]
fn guests_create_absolute_links_only_where_they_can_be_followed() {
    let mut tree = small(1 << 20);
    let nameless = Base { name: None, ..BASE };
    for target in ["/", "/workspace/x"] {
        assert_eq!(tree.make_guest_symlink(nameless, "link", target, 0), Err(FsError::NotPermitted));
    }
    tree.make_guest_symlink(nameless, "relative", "x/y", 0).unwrap();
    let workspace = Base { name: Some("/workspace"), ..BASE };
    tree.make_guest_symlink(workspace, "link", "/workspace/x", 0).unwrap();
    assert_eq!(tree.lookup(workspace, "link", LastLink::Follow), Err(FsError::NotFound));
}

#[test]
fn links_are_followed_only_so_far() {
    let mut tree = small(1 << 20);
    tree.make_symlink(BASE, "a", "b", 0).unwrap();
    tree.make_symlink(BASE, "b", "a", 0).unwrap();
    assert_eq!(tree.lookup(BASE, "a", LastLink::Follow), Err(FsError::TooManyLinks));
    for (path, error) in [
        ("", FsError::NotFound),
        ("/a", FsError::Escape),
        ("..", FsError::Escape),
        ("a\0", FsError::Invalid),
        (&"x".repeat(256), FsError::NameTooLong),
        (&"x/".repeat(3000), FsError::NameTooLong),
    ] {
        assert_eq!(tree.lookup(BASE, path, LastLink::Keep), Err(error), "{path:.20}");
    }
}

#[test]
fn listing_continues_after_entries_are_removed() {
    let mut tree = small(1 << 20);
    for name in ["a", "b", "c", "d"] {
        tree.make_directory(BASE, name, 0).unwrap();
    }
    let mut seen = Vec::new();
    let mut from = FIRST;
    while let Some(entry) = tree.list_from(ROOT, from, 1).unwrap().pop() {
        tree.remove_directory(BASE, &entry.name, 0).unwrap();
        from = entry.next;
        seen.push(entry.name.to_string());
    }
    assert_eq!(seen, ["a", "b", "c", "d"]);
}

const FIRST: u64 = 2;
