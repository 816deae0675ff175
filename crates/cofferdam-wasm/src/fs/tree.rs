//! The table of nodes, and their costs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Contents, FsError, FsResult};
use crate::account::Account;

/// The number of a node within its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ino(pub(crate) u64);

/// The root directory, above the workspace.
pub(crate) const ROOT: Ino = Ino(1);
/// The cost of a node besides its contents.
const NODE_COST: u64 = 512;
/// The cost of a directory entry besides its name, which is stored in two maps.
const ENTRY_COST: u64 = 192;
/// The maximum number of nodes of one tree, whatever the limits.
pub(crate) const MAX_NODES: usize = 200_000;

/// The permissions of new files and directories.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// The kind of a node.
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
    /// The position in a listing, which is never reused.
    pub(super) order: u64,
}

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) entries: BTreeMap<Arc<str>, Entry>,
    pub(super) by_order: BTreeMap<u64, Arc<str>>,
    next_order: u64,
    /// The parent directory. The root is its own parent.
    pub(super) above: Ino,
}

/// The listing positions of `.` and `..` come before this one.
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
    /// The number of entries that name it.
    pub(super) links: u64,
    /// The number of references by descriptors.
    pub(super) references: u64,
    pub(super) times: Times,
    /// The permissions, which WASI does not show to guests.
    pub(super) mode: u32,
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
    /// The stored bytes, with all overhead.
    disk: u64,
    disk_limit: u64,
    account: Arc<Account>,
}

impl Tree {
    /// Creates a tree with a root directory only.
    pub(crate) fn new(disk_limit: Option<u64>, account: Arc<Account>) -> Self {
        let top = Node {
            body: Body::Directory(Directory::new(ROOT)),
            links: 1,
            references: 0,
            times: Times::default(),
            mode: DIRECTORY_MODE,
        };
        Self {
            nodes: BTreeMap::from([(ROOT, top)]),
            next: ROOT.0 + 1,
            disk: 0,
            disk_limit: disk_limit.unwrap_or(u64::MAX),
            account,
        }
    }

    /// Returns the stored bytes, with all overhead.
    pub(crate) fn disk(&self) -> u64 {
        self.disk
    }

    pub(super) fn limit(&self) -> u64 {
        self.disk_limit
    }

    /// Charges bytes before they are stored.
    pub(super) fn charge(&mut self, bytes: u64) -> FsResult<()> {
        let disk = self.disk.checked_add(bytes).filter(|sum| *sum <= self.disk_limit).ok_or(FsError::Full)?;
        if !self.account.reserve(bytes) {
            return Err(FsError::NoMemory);
        }
        self.disk = disk;
        Ok(())
    }

    pub(super) fn refund(&mut self, bytes: u64) {
        self.disk = self.disk.saturating_sub(bytes);
        self.account.release(bytes);
    }

    pub(super) fn node(&self, ino: Ino) -> FsResult<&Node> {
        self.nodes.get(&ino).ok_or(FsError::NotFound)
    }

    /// Returns true if a node has names below both directories.
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

    /// Adds a node without a name.
    pub(super) fn add(&mut self, body: Body, now: u64) -> FsResult<Ino> {
        if self.nodes.len() >= MAX_NODES {
            return Err(FsError::TooManyFiles);
        }
        let times = Times { accessed: now, modified: now, changed: now };
        let mode = match body {
            Body::File(_) => FILE_MODE,
            Body::Directory(_) => DIRECTORY_MODE,
            Body::Symlink(_) => 0o777,
        };
        let node = Node { body, links: 0, references: 0, times, mode };
        self.charge(node.cost())?;
        let ino = Ino(self.next);
        self.next += 1;
        self.nodes.insert(ino, node);
        Ok(ino)
    }

    pub(super) fn new_directory(&mut self, above: Ino, now: u64) -> FsResult<Ino> {
        self.add(Body::Directory(Directory::new(above)), now)
    }

    /// Adds an entry. Fails if the name exists.
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

    /// Removes an entry. The caller frees the node by `drop_unused`.
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

    /// Acquires a reference to a node, for a descriptor.
    pub(crate) fn acquire(&mut self, ino: Ino) -> FsResult<()> {
        self.node_mut(ino)?.references += 1;
        Ok(())
    }

    /// Releases a reference to a node.
    pub(crate) fn release(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.references = node.references.saturating_sub(1);
        }
        self.drop_unused(ino);
    }

    /// Frees a node that has neither a name nor a reference. The caller removes its entries first.
    pub(super) fn drop_unused(&mut self, ino: Ino) {
        let unused = |node: &Node| node.links == 0 && node.references == 0;
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
        self.account.release(self.disk);
    }
}
