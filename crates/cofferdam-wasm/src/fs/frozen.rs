//! Serialization of a tree, for copies and for snapshot files. Data from a file is untrusted and fully validated.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::contents::MAX_LENGTH;
use super::tree::{Body, Ino, ROOT, Times, Tree};
use super::walk::MAX_NAME;
use super::{Contents, FsError, FsResult};
use crate::account::Account;
use crate::budget;

/// The maximum length of a symlink target.
const MAX_TARGET: usize = 4096;

/// A serializable tree. Files share their bytes with the original tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FrozenTree {
    /// The nodes in order, the root first. A node is linked by nodes before it, or not at all.
    #[serde(deserialize_with = "budget::list")]
    nodes: Vec<FrozenNode>,
    disk_limit: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FrozenNode {
    ino: u64,
    times: [u64; 3],
    mode: u32,
    body: FrozenBody,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum FrozenBody {
    File {
        length: u64,
        #[serde(deserialize_with = "budget::list")]
        pieces: Vec<(u64, Arc<Vec<u8>>)>,
    },
    /// The entries in listing order.
    Directory(#[serde(deserialize_with = "budget::list")] Vec<(String, u64)>),
    Symlink(String),
}

impl Tree {
    /// Freezes the current tree, including nodes that have no name but are open.
    pub(crate) fn freeze(&self) -> FrozenTree {
        let mut order = vec![ROOT];
        let mut known: HashMap<Ino, ()> = HashMap::from([(ROOT, ())]);
        let mut at = 0;
        while let Some(ino) = order.get(at).copied() {
            at += 1;
            let Ok(directory) = self.directory(ino) else { continue };
            for entry in directory.entries.values() {
                if known.insert(entry.ino, ()).is_none() {
                    order.push(entry.ino);
                }
            }
        }
        let mut nameless: Vec<Ino> = self.nodes.keys().filter(|ino| !known.contains_key(ino)).copied().collect();
        nameless.sort_unstable();
        order.extend(nameless);
        let nodes = order.iter().filter_map(|ino| self.freeze_node(*ino)).collect();
        FrozenTree { nodes, disk_limit: self.limit() }
    }

    fn freeze_node(&self, ino: Ino) -> Option<FrozenNode> {
        let node = self.nodes.get(&ino)?;
        let body = match &node.body {
            Body::File(contents) => FrozenBody::File { length: contents.length(), pieces: contents.pieces() },
            Body::Symlink(target) => FrozenBody::Symlink(target.to_string()),
            Body::Directory(directory) => {
                let listed = directory.by_order.values();
                let named = |name: &Arc<str>| Some((name.to_string(), directory.entries.get(name)?.ino.0));
                FrozenBody::Directory(listed.filter_map(named).collect())
            }
        };
        let Times { accessed, modified, changed } = node.times;
        Some(FrozenNode { ino: ino.0, times: [accessed, modified, changed], mode: node.mode, body })
    }
}

impl FrozenTree {
    /// Creates an equal tree, charged to `account`, and returns the new inode numbers. Each node without a name is
    /// acquired once, and the caller releases it.
    ///
    /// # Errors
    ///
    /// [`FsError::Invalid`] if this is not a valid tree; else the error of a limit.
    pub(crate) fn thaw(&self, disk_limit: Option<u64>, account: Arc<Account>) -> FsResult<(Tree, Renumbered)> {
        let mut tree = Tree::new(disk_limit, account);
        let mut numbers = BTreeMap::new();
        let (first, rest) = self.nodes.split_first().ok_or(FsError::Invalid)?;
        if first.ino != ROOT.0 || !matches!(first.body, FrozenBody::Directory(_)) {
            return Err(FsError::Invalid);
        }
        numbers.insert(first.ino, ROOT);
        let mut bodies = BTreeMap::new();
        for node in rest {
            let ino = node.add_to(&mut tree)?;
            if numbers.insert(node.ino, ino).is_some() {
                return Err(FsError::Invalid);
            }
            bodies.insert(ino, node);
            // The reference is released when the node has a name.
            tree.acquire(ino)?;
        }
        let mut named = std::collections::BTreeSet::new();
        for node in &self.nodes {
            let FrozenBody::Directory(entries) = &node.body else { continue };
            let parent = *numbers.get(&node.ino).ok_or(FsError::Invalid)?;
            for (name, number) in entries {
                let child = *numbers.get(number).ok_or(FsError::Invalid)?;
                // A directory has one name, and its parent comes before it, so there are no cycles.
                let again = !named.insert(child);
                let directory = bodies.get(&child).is_some_and(|node| matches!(node.body, FrozenBody::Directory(_)));
                if child == ROOT || (directory && (again || child <= parent)) || !is_name(name) {
                    return Err(FsError::Invalid);
                }
                tree.link(parent, name, child, 0)?;
            }
        }
        for (ino, node) in &bodies {
            if named.contains(ino) {
                tree.release(*ino);
            } else if matches!(node.body, FrozenBody::Directory(ref entries) if !entries.is_empty()) {
                return Err(FsError::Invalid);
            }
        }
        for node in &self.nodes {
            let [accessed, modified, changed] = node.times;
            if let Some(ino) = numbers.get(&node.ino) {
                let thawed = tree.node_mut(*ino)?;
                thawed.times = Times { accessed, modified, changed };
                thawed.mode = node.mode & 0o1777;
            }
        }
        let nameless = bodies.keys().filter(|ino| !named.contains(ino)).copied().collect();
        Ok((tree, Renumbered { numbers, nameless }))
    }
}

/// The inode numbers of a thawed tree.
#[derive(Debug)]
pub(crate) struct Renumbered {
    numbers: BTreeMap<u64, Ino>,
    /// The nodes without a name. Each is acquired once, and the caller releases it.
    pub(crate) nameless: Vec<Ino>,
}

impl Renumbered {
    /// Returns the new inode number of a node of the frozen tree.
    pub(crate) fn of(&self, ino: u64) -> FsResult<Ino> {
        self.numbers.get(&ino).copied().ok_or(FsError::Invalid)
    }
}

impl FrozenNode {
    fn add_to(&self, tree: &mut Tree) -> FsResult<Ino> {
        match &self.body {
            // Its parent is set when it is linked.
            FrozenBody::Directory(_) => tree.new_directory(ROOT, 0),
            FrozenBody::Symlink(target) if target.is_empty() || target.len() > MAX_TARGET || target.contains('\0') => {
                Err(FsError::Invalid)
            }
            FrozenBody::Symlink(target) => tree.add(Body::Symlink(target.as_str().into()), 0),
            FrozenBody::File { length, .. } if *length > MAX_LENGTH => Err(FsError::Invalid),
            FrozenBody::File { length, pieces } => {
                tree.add(Body::File(Contents::of_pieces(*length, pieces).ok_or(FsError::Invalid)?), 0)
            }
        }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && name != "." && name != ".." && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Base, LastLink, OpenHow};

    type Names = Vec<(String, u64)>;

    const TOP: Base<'static> = Base { ino: ROOT, name: None };

    fn account() -> Arc<Account> {
        Arc::new(Account::new(None))
    }

    fn sample() -> Tree {
        let mut tree = Tree::new(None, account());
        tree.make_directory(TOP, "a", 1).unwrap();
        tree.make_directory(TOP, "a/b", 2).unwrap();
        let how = OpenHow { create: true, writes: true, ..OpenHow::default() };
        let file = tree.open(TOP, "a/b/f", LastLink::Keep, how, 3).unwrap();
        tree.write(file, 100_000, b"hello", 4).unwrap();
        tree.link(tree.lookup(TOP, "a", LastLink::Keep).unwrap(), "g", file, 5).unwrap();
        tree
    }

    #[test]
    fn a_thawed_tree_is_the_frozen_one() {
        let tree = sample();
        let frozen = tree.freeze();
        let (thawed, renumbered) = frozen.thaw(None, account()).unwrap();
        assert!(renumbered.nameless.is_empty());
        assert_eq!(thawed.disk(), tree.disk());
        assert_eq!(thawed.cost_of_all(), thawed.disk());
        let file = thawed.lookup(TOP, "a/g", LastLink::Keep).unwrap();
        assert_eq!(file, thawed.lookup(TOP, "a/b/f", LastLink::Keep).unwrap());
        let mut bytes = [0; 5];
        assert_eq!(thawed.read(file, 100_000, &mut bytes).unwrap(), 5);
        assert_eq!(&bytes, b"hello");
        assert_eq!(thawed.stat(file).unwrap().links, 2);
        assert_eq!(thawed.freeze(), renumbered_again(&thawed));
    }

    /// Freezes a thawed tree again, which must not change it.
    fn renumbered_again(tree: &Tree) -> FrozenTree {
        let (again, _) = tree.freeze().thaw(None, account()).unwrap();
        again.freeze()
    }

    #[test]
    fn invalid_frozen_tree_is_refused() {
        let good = sample().freeze();
        let spoil = |change: &dyn Fn(&mut Vec<FrozenNode>)| {
            let mut bad = good.clone();
            change(&mut bad.nodes);
            bad.thaw(None, account()).map(drop)
        };
        assert_eq!(spoil(&|_| {}), Ok(()));
        assert_eq!(spoil(&Vec::clear), Err(FsError::Invalid));
        let entries = |node: &mut FrozenNode, change: &dyn Fn(&mut Names)| {
            if let FrozenBody::Directory(entries) = &mut node.body {
                change(entries);
            }
        };
        for name in ["", ".", "..", "x/y", "x\0", &"n".repeat(256)] {
            let bad = spoil(&|nodes| entries(&mut nodes[0], &|entries| entries[0].0 = name.to_owned()));
            assert_eq!(bad, Err(FsError::Invalid), "{name:?}");
        }
        // A directory in itself, above itself, twice, or missing.
        for number in [1, 2, 3, 99] {
            let bad = spoil(&|nodes| entries(&mut nodes[2], &|entries| entries.push(("z".to_owned(), number))));
            assert_eq!(bad, Err(FsError::Invalid), "{number}");
        }
        assert_eq!(spoil(&|nodes| nodes[1].ino = 1), Err(FsError::Invalid));
        let twice = |names: &mut Names| names.push(names[0].clone());
        assert!(spoil(&|nodes| entries(&mut nodes[0], &twice)).is_err());
        let small = good.thaw(Some(50_000), account());
        assert_eq!(small.map(drop), Err(FsError::Full));
    }
}
