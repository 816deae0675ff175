//! The content of the root file system so far, and the rules for additions. Pure, because packages may be hostile.

use std::collections::BTreeMap;

use super::path::GuestPath;

/// The origin of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This crate.
    Ours,
    /// A package, by its index.
    Package(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory,
    File(Origin),
    Symlink(Vec<u8>, Origin),
}

/// The action for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// Write these missing directories first, then the entry.
    New(Vec<GuestPath>),
    /// The same entry exists already.
    Existing,
}

#[derive(Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<GuestPath, Node>,
}

impl Tree {
    pub(crate) fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(&GuestPath::ours(path))
    }

    pub(crate) fn directory(&mut self, path: &GuestPath) -> Result<Inserted, String> {
        match self.nodes.get(path) {
            _ if path.is_root() => Ok(Inserted::Existing),
            // If this crate created a link, as for `/var/run`, packages may still contain the empty directory.
            Some(Node::Directory | Node::Symlink(_, Origin::Ours)) => Ok(Inserted::Existing),
            Some(_) => Err(format!("its directory {path} is something else in another package")),
            None => self.insert(path, Node::Directory),
        }
    }

    pub(crate) fn file(&mut self, path: &GuestPath, origin: Origin) -> Result<Inserted, String> {
        if path.is_root() || self.nodes.contains_key(path) {
            return Err(format!("{path} is there twice"));
        }
        self.insert(path, Node::File(origin))
    }

    pub(crate) fn symlink(&mut self, path: &GuestPath, target: &[u8], origin: Origin) -> Result<Inserted, String> {
        match self.nodes.get(path) {
            Some(Node::Symlink(found, _)) if same_target(found, target) => Ok(Inserted::Existing),
            Some(_) => Err(format!("{path} is there twice")),
            None if path.is_root() => Err("its root is a link".to_owned()),
            None if path.climbs_out(target) => {
                Err(format!("the link {path} leads out of the root, to {}", target.escape_ascii()))
            }
            None => self.insert(path, Node::Symlink(target.to_vec(), origin)),
        }
    }

    /// Adds another name for a file of the same package.
    pub(crate) fn hard_link(&mut self, path: &GuestPath, to: &GuestPath, origin: Origin) -> Result<Inserted, String> {
        if self.nodes.get(to) != Some(&Node::File(origin)) {
            return Err(format!("{path} is a hard link to {to}, which is no earlier file of the package"));
        }
        self.file(path, origin)
    }

    fn insert(&mut self, path: &GuestPath, node: Node) -> Result<Inserted, String> {
        let mut missing = Vec::new();
        for parent in path.parents() {
            match self.nodes.get(&parent) {
                Some(Node::Directory) => {}
                Some(_) => return Err(format!("{path} is below {parent}, which is no directory")),
                None => missing.push(parent),
            }
        }
        self.nodes.extend(missing.iter().map(|parent| (parent.clone(), Node::Directory)));
        self.nodes.insert(path.clone(), node);
        Ok(Inserted::New(missing))
    }
}

/// Compares targets. A trailing slash has no effect.
fn same_target(one: &[u8], other: &[u8]) -> bool {
    let plain = |target: &[u8]| target.strip_suffix(b"/").unwrap_or(target).to_vec();
    plain(one) == plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Origin = Origin::Package(0);
    const B: Origin = Origin::Package(1);

    fn path(text: &str) -> GuestPath {
        GuestPath::parse(text.as_bytes()).expect(text)
    }

    #[test]
    fn missing_directories_are_named_once() {
        let mut tree = Tree::default();
        assert_eq!(tree.file(&path("a/b/c"), A), Ok(Inserted::New(vec![path("a"), path("a/b")])));
        assert_eq!(tree.file(&path("a/b/d"), B), Ok(Inserted::New(vec![])));
        assert_eq!(tree.directory(&path("a/b")), Ok(Inserted::Existing));
    }

    #[test]
    fn nothing_comes_twice() {
        let mut tree = Tree::default();
        tree.file(&path("f"), A).expect("new");
        tree.symlink(&path("l"), b"f", A).expect("new");
        assert!(tree.file(&path("f"), A).is_err() && tree.file(&path("f"), B).is_err());
        assert!(tree.file(&path("l"), B).is_err());
        assert!(tree.symlink(&path("f"), b"x", B).is_err());
        assert!(tree.symlink(&path("l"), b"x", B).is_err());
        assert_eq!(tree.symlink(&path("l"), b"f", B), Ok(Inserted::Existing));
        assert!(tree.directory(&path("f")).is_err() && tree.directory(&path("l")).is_err());
    }

    #[test]
    fn nothing_goes_through_a_link() {
        let mut tree = Tree::default();
        tree.symlink(&path("l"), b"/etc", A).expect("new");
        assert!(tree.file(&path("l/passwd"), A).is_err());
        assert!(tree.directory(&path("l/x")).is_err());
        tree.symlink(&path("run"), b"/run", Origin::Ours).expect("new");
        assert_eq!(tree.directory(&path("run")), Ok(Inserted::Existing));
        assert!(tree.file(&path("run/x"), A).is_err());
    }

    #[test]
    fn hard_links_stay_within_a_package() {
        let mut tree = Tree::default();
        tree.file(&path("f"), A).expect("new");
        tree.symlink(&path("l"), b"f", A).expect("new");
        assert!(tree.hard_link(&path("x"), &path("f"), B).is_err());
        assert!(tree.hard_link(&path("x"), &path("l"), A).is_err());
        assert!(tree.hard_link(&path("x"), &path("later"), A).is_err());
        assert_eq!(tree.hard_link(&path("x"), &path("f"), A), Ok(Inserted::New(vec![])));
    }

    #[test]
    fn links_out_are_refused() {
        let mut tree = Tree::default();
        assert!(tree.symlink(&path("a/b"), b"../../x", A).is_err());
        assert!(tree.symlink(&path("a/b"), b"../x", A).is_ok());
    }
}
