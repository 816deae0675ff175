//! An in-memory workspace. It resolves paths and links and counts bytes, independently of sandboxes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use cofferdam_contract::{COPIED_MODE, DirEntry, EntryKind, WORKSPACE_PATH};

/// Maximum number of links followed during the resolution of a path.
const MAX_LINKS: u32 = 40;

#[derive(Debug, Clone)]
enum Node {
    File(Arc<Vec<u8>>),
    Directory(Entries),
    Symlink(String),
    Fifo,
}

type Entries = BTreeMap<String, Node>;

/// An error of an operation on the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeError {
    NotFound,
    Escape,
    NotADirectory,
    IsADirectory,
    NotAFile,
    Exists,
    TooManyLinks,
    Full,
    IsTheWorkspace,
    IntoItself,
}

type Result<T> = std::result::Result<T, TreeError>;

/// Directories, files, links and FIFOs, with a limit on the bytes in files.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: Node,
    bytes: u64,
    limit: u64,
    /// Permissions and times in seconds of what [`Self::put`] created. All others have the usual ones.
    properties: BTreeMap<Vec<String>, (u32, i64)>,
}

impl Tree {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            root: Node::Directory(Entries::new()),
            bytes: 0,
            limit: limit.unwrap_or(u64::MAX),
            properties: BTreeMap::new(),
        }
    }

    /// Returns the same files under another limit, or `None` if they are too large.
    pub(crate) fn with_limit(&self, limit: Option<u64>) -> Option<Self> {
        let limit = limit.unwrap_or(u64::MAX);
        (self.bytes <= limit).then(|| Self { limit, ..self.clone() })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the number of bytes until the limit.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.limit - self.bytes
    }

    /// Resolves a path, link by link. A missing component resolves to its name.
    fn resolve(&self, path: &str, follow_last: bool) -> Result<Vec<String>> {
        let mut pending: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        let mut at: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = pending.pop_front() {
            if part.is_empty() || part == "." {
                continue;
            }
            if part == ".." {
                at.pop().ok_or(TreeError::Escape)?;
                continue;
            }
            let last = pending.iter().all(|part| part.is_empty() || part == ".");
            match self.child(&at, &part)? {
                Some(Node::Symlink(target)) if follow_last || !last => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(TreeError::TooManyLinks);
                    }
                    let target = match target.strip_prefix('/') {
                        Some(_) => {
                            at.clear();
                            inside(target).ok_or(TreeError::Escape)?
                        }
                        None => target,
                    };
                    for part in target.split('/').rev() {
                        pending.push_front(part.to_owned());
                    }
                }
                Some(Node::File(_) | Node::Fifo) if !last => return Err(TreeError::NotADirectory),
                _ => at.push(part),
            }
        }
        Ok(at)
    }

    fn child(&self, directory: &[String], name: &str) -> Result<Option<&Node>> {
        match self.node(directory) {
            Some(Node::Directory(entries)) => Ok(entries.get(name)),
            Some(_) => Err(TreeError::NotADirectory),
            None => Ok(None),
        }
    }

    fn node(&self, at: &[String]) -> Option<&Node> {
        at.iter().try_fold(&self.root, |node, name| match node {
            Node::Directory(entries) => entries.get(name),
            _ => None,
        })
    }

    /// Returns the entries of the directory above `at`, created if missing and requested, and the last name.
    fn parent<'a>(&mut self, at: &'a [String], make: Parents) -> Result<(&mut Entries, &'a str)> {
        let (name, above) = at.split_last().ok_or(TreeError::IsTheWorkspace)?;
        let mut node = &mut self.root;
        for part in above {
            let Node::Directory(entries) = node else { return Err(TreeError::NotADirectory) };
            node = match make {
                Parents::Make => entries.entry(part.clone()).or_insert_with(|| Node::Directory(Entries::new())),
                Parents::MustExist => entries.get_mut(part).ok_or(TreeError::NotFound)?,
            };
        }
        match node {
            Node::Directory(entries) => Ok((entries, name)),
            _ => Err(TreeError::NotADirectory),
        }
    }

    pub(crate) fn read(&self, path: &str) -> Result<Arc<Vec<u8>>> {
        match self.node(&self.resolve(path, true)?) {
            Some(Node::File(contents)) => Ok(Arc::clone(contents)),
            Some(Node::Directory(_)) => Err(TreeError::IsADirectory),
            Some(_) => Err(TreeError::NotAFile),
            None => Err(TreeError::NotFound),
        }
    }

    pub(crate) fn write(&mut self, path: &str, contents: Vec<u8>, parents: Parents) -> Result<()> {
        let at = self.resolve(path, true)?;
        let old = match self.node(&at) {
            Some(Node::File(old)) => old.len() as u64,
            Some(Node::Directory(_)) => return Err(TreeError::IsADirectory),
            Some(_) => return Err(TreeError::NotAFile),
            None => 0,
        };
        let bytes = self.bytes - old + contents.len() as u64;
        if bytes > self.limit {
            return Err(TreeError::Full);
        }
        let (entries, name) = self.parent(&at, parents)?;
        entries.insert(name.to_owned(), Node::File(Arc::new(contents)));
        self.bytes = bytes;
        Ok(())
    }

    pub(crate) fn append(&mut self, path: &str, more: &[u8]) -> Result<()> {
        let mut contents = match self.read(path) {
            Ok(contents) => contents.to_vec(),
            Err(TreeError::NotFound) => Vec::new(),
            Err(error) => return Err(error),
        };
        contents.extend_from_slice(more);
        self.write(path, contents, Parents::MustExist)
    }

    pub(crate) fn make_directory(&mut self, path: &str) -> Result<()> {
        self.make(path, Node::Directory(Entries::new()))
    }

    pub(crate) fn make_fifo(&mut self, path: &str) -> Result<()> {
        self.make(path, Node::Fifo)
    }

    pub(crate) fn make_symlink(&mut self, path: &str, target: &str, replace: bool) -> Result<()> {
        let at = self.resolve(path, false)?;
        if replace && matches!(self.node(&at), Some(Node::Symlink(_))) {
            let (entries, name) = self.parent(&at, Parents::MustExist)?;
            entries.insert(name.to_owned(), Node::Symlink(target.to_owned()));
            return Ok(());
        }
        self.make(path, Node::Symlink(target.to_owned()))
    }

    fn make(&mut self, path: &str, node: Node) -> Result<()> {
        let at = self.resolve(path, false)?;
        if self.node(&at).is_some() {
            return Err(TreeError::Exists);
        }
        let (entries, name) = self.parent(&at, Parents::MustExist)?;
        entries.insert(name.to_owned(), node);
        Ok(())
    }

    /// Moves a node to another name. Follows no link at both names.
    pub(crate) fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let (old, new) = (self.resolve(from, false)?, self.resolve(to, false)?);
        if old.is_empty() || new.is_empty() {
            return Err(TreeError::IsTheWorkspace);
        }
        let moved = self.node(&old).ok_or(TreeError::NotFound)?.clone();
        let is_directory = matches!(moved, Node::Directory(_));
        if is_directory && new.len() > old.len() && new.starts_with(&old) {
            return Err(TreeError::IntoItself);
        }
        match self.node(&new) {
            _ if old == new => return Ok(()),
            Some(Node::Directory(_)) if !is_directory => return Err(TreeError::IsADirectory),
            Some(Node::Directory(entries)) if !entries.is_empty() => return Err(TreeError::Exists),
            Some(Node::File(_) | Node::Symlink(_) | Node::Fifo) if is_directory => {
                return Err(TreeError::NotADirectory);
            }
            _ => {}
        }
        // The directory above may be missing, which must not lose the node.
        self.parent(&new, Parents::MustExist)?;
        self.parent(&old, Parents::MustExist)?.0.remove(old.last().map_or("", String::as_str));
        let (entries, name) = self.parent(&new, Parents::MustExist)?;
        if let Some(replaced) = entries.insert(name.to_owned(), moved) {
            self.bytes -= size(&replaced);
        }
        let properties = std::mem::take(&mut self.properties);
        self.properties = properties
            .into_iter()
            .filter(|(path, _)| !path.starts_with(&new))
            .map(|(path, value)| match path.strip_prefix(old.as_slice()) {
                Some(rest) => ([new.as_slice(), rest].concat(), value),
                None => (path, value),
            })
            .collect();
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &str) -> Result<()> {
        let at = self.resolve(path, false)?;
        let (entries, name) = self.parent(&at, Parents::MustExist)?;
        let node = entries.remove(name).ok_or(TreeError::NotFound)?;
        self.bytes -= size(&node);
        self.properties.retain(|path, _| !path.starts_with(&at));
        Ok(())
    }

    /// Creates a file, directory or link with its permissions and time. Follows no link, and replaces files and links.
    pub(crate) fn put(&mut self, path: &str, new: NewNode, (mode, modified): (u32, i64)) -> Result<()> {
        let at: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let above = at.split_last().ok_or(TreeError::IsADirectory)?.1;
        for depth in 1..=above.len() {
            match self.node(&above[..depth]) {
                Some(Node::Symlink(_)) => return Err(TreeError::Escape),
                Some(Node::Directory(_)) | None => {}
                Some(_) => return Err(TreeError::NotADirectory),
            }
        }
        let old = match (self.node(&at), &new) {
            (Some(Node::Directory(_)), NewNode::Directory) => {
                self.properties.insert(at, (mode & COPIED_MODE, modified));
                return Ok(());
            }
            (Some(Node::Directory(_)), _) => return Err(TreeError::IsADirectory),
            (Some(Node::Fifo), _) | (Some(_), NewNode::Directory) => return Err(TreeError::NotAFile),
            (old, _) => old.map_or(0, size),
        };
        let node = match new {
            NewNode::File(contents) => Node::File(Arc::new(contents)),
            NewNode::Directory => Node::Directory(Entries::new()),
            NewNode::Symlink(target) => Node::Symlink(target),
        };
        let bytes = self.bytes - old + size(&node);
        if bytes > self.limit {
            return Err(TreeError::Full);
        }
        let (entries, name) = self.parent(&at, Parents::Make)?;
        entries.insert(name.to_owned(), node);
        self.bytes = bytes;
        self.properties.insert(at, (mode & COPIED_MODE, modified));
        Ok(())
    }

    pub(crate) fn list(&self, path: &str) -> Result<Vec<DirEntry>> {
        let at = self.resolve(path, true)?;
        let Some(node) = self.node(&at) else { return Err(TreeError::NotFound) };
        let Node::Directory(entries) = node else { return Err(TreeError::NotADirectory) };
        let entry = |(name, node): (&String, &Node)| {
            let (kind, size, usual) = match node {
                Node::File(contents) => (EntryKind::File, contents.len() as u64, 0o644),
                Node::Directory(_) => (EntryKind::Directory, 0, 0o755),
                Node::Symlink(_) => (EntryKind::Symlink, 0, 0o777),
                Node::Fifo => (EntryKind::Other, 0, 0o644),
            };
            let target = match node {
                Node::Symlink(target) => Some(target.clone()),
                _ => None,
            };
            let path = [&at[..], std::slice::from_ref(name)].concat();
            let (mode, modified) = self.properties.get(&path).copied().unwrap_or((usual, 0));
            DirEntry { name: name.clone(), kind, size, mode, modified, target }
        };
        Ok(entries.iter().map(entry).collect())
    }

    pub(crate) fn is_directory(&self, path: &str) -> Result<bool> {
        Ok(matches!(self.node(&self.resolve(path, true)?), Some(Node::Directory(_))))
    }
}

/// A file, directory or link to create.
#[derive(Debug)]
pub(crate) enum NewNode {
    File(Vec<u8>),
    Directory,
    Symlink(String),
}

/// The handling of missing directories above a new entry.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Parents {
    Make,
    MustExist,
}

fn size(node: &Node) -> u64 {
    match node {
        Node::File(contents) => contents.len() as u64,
        Node::Directory(entries) => entries.values().map(size).sum(),
        Node::Symlink(_) | Node::Fifo => 0,
    }
}

/// Converts an absolute path to one relative to the workspace, if it is inside.
pub(crate) fn inside(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(WORKSPACE_PATH)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn links_lead_inside_or_are_refused() {
        let mut tree = Tree::new(None);
        tree.write("a/b", b"x".to_vec(), Parents::Make).unwrap();
        for (link, target, expected) in [
            ("1", "a/b", Ok(())),
            ("a/2", "../a/b", Ok(())),
            ("3", "/workspace/a/b", Ok(())),
            ("4", "..", Err(TreeError::Escape)),
            ("5", "a/../../a/b", Err(TreeError::Escape)),
            ("6", "/etc/passwd", Err(TreeError::Escape)),
            ("7", "/workspacex/a/b", Err(TreeError::Escape)),
            ("8", "8", Err(TreeError::TooManyLinks)),
            ("9", "a/b/c", Err(TreeError::NotADirectory)),
            ("10", "gone", Err(TreeError::NotFound)),
        ] {
            tree.make_symlink(link, target, false).unwrap();
            assert_eq!(tree.read(link).map(drop), expected, "{link} -> {target}");
        }
    }

    #[test]
    fn size_limit_counts_stored_bytes() {
        let mut tree = Tree::new(Some(10));
        tree.write("a", vec![0; 8], Parents::Make).unwrap();
        assert_eq!(tree.write("b", vec![0; 3], Parents::Make), Err(TreeError::Full));
        tree.write("a", vec![0; 2], Parents::Make).unwrap();
        tree.write("d/b", vec![0; 8], Parents::Make).unwrap();
        assert_eq!(tree.free_bytes(), 0);
        tree.remove("d").unwrap();
        assert_eq!(tree.bytes(), 2);
        assert!(tree.with_limit(Some(1)).is_none());
    }

    proptest! {
        #[test]
        fn no_path_and_no_links_lead_out(links in prop::collection::vec(("[ab]{1,2}", "(/|/workspace|\\.\\.|a|b|/){0,5}"), 0..8), path in "[ab./]{0,12}") {
            let mut tree = Tree::new(None);
            tree.write("a/a", b"x".to_vec(), Parents::Make).unwrap();
            for (link, target) in links {
                let _ = tree.make_symlink(&link, &target, true);
            }
            if let Ok(at) = tree.resolve(&path, true) {
                prop_assert!(at.iter().all(|part| part != ".." && part != "." && !part.is_empty()));
            }
        }
    }
}
