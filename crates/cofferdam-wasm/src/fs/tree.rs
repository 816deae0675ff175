//! The table of nodes, and what each costs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Contents, FsError, FsResult};
use crate::account::Account;

/// Names a node within its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ino(pub(crate) u64);

/// The top, above the workspace.
pub(crate) const ROOT: Ino = Ino(1);
/// What a node costs besides its contents.
const NODE_COST: u64 = 512;
/// What an entry of a directory costs besides its name, which stands in two maps.
const ENTRY_COST: u64 = 192;
/// The most nodes of one tree, whatever the limits say.
pub(crate) const MAX_NODES: usize = 200_000;

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
}

/// Nanoseconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) accessed: u64,
    pub(crate) modified: u64,
    pub(crate) changed: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) ino: Ino,
    /// Its place in the order of a listing, which no other entry ever has.
    pub(super) order: u64,
}

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) entries: BTreeMap<Arc<str>, Entry>,
    pub(super) by_order: BTreeMap<u64, Arc<str>>,
    next_order: u64,
    /// The directory above; itself for the top.
    pub(super) above: Ino,
}

/// Places in a listing that `.` and `..` take.
pub(super) const FIRST_ORDER: u64 = 2;

impl Directory {
    fn new(above: Ino) -> Self {
        Self { entries: BTreeMap::new(), by_order: BTreeMap::new(), next_order: FIRST_ORDER, above }
    }
}

#[derive(Debug)]
pub(super) enum Body {
    File(Contents),
    Directory(Directory),
    Symlink(Arc<str>),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    /// Entries that name it.
    pub(super) links: u64,
    /// Descriptors that hold it.
    pub(super) held: u64,
    pub(super) times: Times,
}

impl Node {
    pub(super) fn kind(&self) -> Kind {
        match self.body {
            Body::File(_) => Kind::File,
            Body::Directory(_) => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
        }
    }

    fn cost(&self) -> u64 {
        NODE_COST
            + match &self.body {
                Body::File(contents) => contents.cost(),
                Body::Directory(_) => 0,
                Body::Symlink(target) => target.len() as u64,
            }
    }
}

/// The files of one sandbox.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(super) nodes: BTreeMap<Ino, Node>,
    next: u64,
    /// Bytes on the pretended disk, everything included.
    disk: u64,
    disk_limit: u64,
    account: Arc<Account>,
}

impl Tree {
    /// A top directory alone.
    pub(crate) fn new(disk_limit: Option<u64>, account: Arc<Account>) -> Self {
        let top = Node { body: Body::Directory(Directory::new(ROOT)), links: 1, held: 0, times: Times::default() };
        Self {
            nodes: BTreeMap::from([(ROOT, top)]),
            next: ROOT.0 + 1,
            disk: 0,
            disk_limit: disk_limit.unwrap_or(u64::MAX),
            account,
        }
    }

    /// Bytes stored, everything included.
    pub(crate) fn disk(&self) -> u64 {
        self.disk
    }

    pub(super) fn limit(&self) -> u64 {
        self.disk_limit
    }

    /// Charges before anything is kept.
    pub(super) fn charge(&mut self, bytes: u64) -> FsResult<()> {
        let disk = self.disk.checked_add(bytes).filter(|sum| *sum <= self.disk_limit).ok_or(FsError::Full)?;
        if !self.account.take(bytes) {
            return Err(FsError::NoMemory);
        }
        self.disk = disk;
        Ok(())
    }

    pub(super) fn refund(&mut self, bytes: u64) {
        self.disk = self.disk.saturating_sub(bytes);
        self.account.give(bytes);
    }

    pub(super) fn node(&self, ino: Ino) -> FsResult<&Node> {
        self.nodes.get(&ino).ok_or(FsError::NotFound)
    }

    /// Whether something has names below both directories.
    pub(crate) fn share_a_node(&self, one: Ino, other: Ino) -> bool {
        let below = self.below(one);
        self.below(other).iter().any(|ino| below.contains(ino))
    }

    fn below(&self, top: Ino) -> BTreeSet<Ino> {
        let (mut seen, mut pending) = (BTreeSet::new(), vec![top]);
        while let Some(ino) = pending.pop() {
            if seen.insert(ino)
                && let Ok(directory) = self.directory(ino)
            {
                pending.extend(directory.entries.values().map(|entry| entry.ino));
            }
        }
        seen
    }

    pub(super) fn node_mut(&mut self, ino: Ino) -> FsResult<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::NotFound)
    }

    pub(crate) fn is_directory(&self, ino: Ino) -> bool {
        self.directory(ino).is_ok()
    }

    pub(super) fn directory(&self, ino: Ino) -> FsResult<&Directory> {
        match &self.node(ino)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(FsError::NotADirectory),
        }
    }

    pub(super) fn directory_mut(&mut self, ino: Ino) -> FsResult<&mut Directory> {
        match &mut self.node_mut(ino)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(FsError::NotADirectory),
        }
    }

    pub(super) fn contents(&self, ino: Ino) -> FsResult<&Contents> {
        match &self.node(ino)?.body {
            Body::File(contents) => Ok(contents),
            Body::Directory(_) => Err(FsError::IsADirectory),
            Body::Symlink(_) => Err(FsError::TooManyLinks),
        }
    }

    pub(super) fn contents_mut(&mut self, ino: Ino) -> FsResult<&mut Contents> {
        match &mut self.node_mut(ino)?.body {
            Body::File(contents) => Ok(contents),
            Body::Directory(_) => Err(FsError::IsADirectory),
            Body::Symlink(_) => Err(FsError::TooManyLinks),
        }
    }

    /// A node that no entry names yet.
    pub(super) fn add(&mut self, body: Body, now: u64) -> FsResult<Ino> {
        if self.nodes.len() >= MAX_NODES {
            return Err(FsError::TooManyFiles);
        }
        let times = Times { accessed: now, modified: now, changed: now };
        let node = Node { body, links: 0, held: 0, times };
        self.charge(node.cost())?;
        let ino = Ino(self.next);
        self.next += 1;
        self.nodes.insert(ino, node);
        Ok(ino)
    }

    pub(super) fn new_directory(&mut self, above: Ino, now: u64) -> FsResult<Ino> {
        self.add(Body::Directory(Directory::new(above)), now)
    }

    /// Puts an entry where there is none.
    pub(super) fn link(&mut self, parent: Ino, name: &str, ino: Ino, now: u64) -> FsResult<()> {
        if self.node(parent)?.links == 0 {
            return Err(FsError::NotFound);
        }
        if self.directory(parent)?.entries.contains_key(name) {
            return Err(FsError::Exists);
        }
        self.charge(ENTRY_COST + name.len() as u64)?;
        let name: Arc<str> = name.into();
        let directory = self.directory_mut(parent)?;
        let order = directory.next_order;
        directory.next_order += 1;
        directory.by_order.insert(order, Arc::clone(&name));
        directory.entries.insert(name, Entry { ino, order });
        self.touch(parent, now);
        let node = self.node_mut(ino)?;
        node.links += 1;
        node.times.changed = now;
        if let Body::Directory(directory) = &mut node.body {
            directory.above = parent;
        }
        Ok(())
    }

    /// Takes an entry away; the node goes when nothing holds it.
    pub(super) fn unlink(&mut self, parent: Ino, name: &str, now: u64) -> FsResult<Ino> {
        let directory = self.directory_mut(parent)?;
        let (name, entry) = directory.entries.remove_entry(name).ok_or(FsError::NotFound)?;
        directory.by_order.remove(&entry.order);
        self.refund(ENTRY_COST + name.len() as u64);
        self.touch(parent, now);
        let node = self.node_mut(entry.ino)?;
        node.links = node.links.saturating_sub(1);
        node.times.changed = now;
        Ok(entry.ino)
    }

    pub(super) fn touch(&mut self, ino: Ino, now: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.times.modified = now;
            node.times.changed = now;
        }
    }

    /// Holds a node for a descriptor.
    pub(crate) fn hold(&mut self, ino: Ino) -> FsResult<()> {
        self.node_mut(ino)?.held += 1;
        Ok(())
    }

    /// Lets it go again.
    pub(crate) fn let_go(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.held = node.held.saturating_sub(1);
        }
        self.drop_unused(ino);
    }

    /// Frees a node that has neither a name nor a holder. Its entries, if it has any, are its owner's to take first.
    pub(super) fn drop_unused(&mut self, ino: Ino) {
        let unused = |node: &Node| node.links == 0 && node.held == 0;
        if ino != ROOT
            && self.nodes.get(&ino).is_some_and(unused)
            && let Some(node) = self.nodes.remove(&ino)
        {
            self.refund(node.cost());
        }
    }

    #[cfg(test)]
    pub(super) fn cost_of_all(&self) -> u64 {
        let entries = |node: &Node| match &node.body {
            Body::Directory(directory) => {
                directory.entries.keys().map(|name| ENTRY_COST + name.len() as u64).sum::<u64>()
            }
            _ => 0,
        };
        let nodes = self.nodes.iter().filter(|(ino, _)| **ino != ROOT).map(|(_, node)| node.cost()).sum::<u64>();
        nodes + self.nodes.values().map(entries).sum::<u64>()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.account.give(self.disk);
    }
}
