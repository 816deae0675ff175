//! The watched directories and their paths, as a pure state machine.
//!
//! ```text
//! new directory: wanted --Mark--> watched --its contents are reported--> ... --removed, moved away--> Unmark
//!                          '-- gone meanwhile, not readable, too many: Lost
//! ```
//!
//! Events can be older than the directories that a list found: between both, a guest changes what it likes. A directory
//! is therefore watched before it is listed, and known directories are not reported twice. A path that a step watches
//! may have become another directory: the kernel then returns a known number, or another one, and the tree follows.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::queue::{
    ATTRIB, CREATE, DELETE, DELETE_SELF, DIRECTORY, IGNORED, MODIFY, MOVE_SELF, MOVED_FROM, MOVED_TO, OVERFLOW,
    RawEvent, UNMOUNT,
};

/// The maximum length of a path in bytes.
const MAX_PATH: usize = 4096;
/// The number of latest renames that are compared with a new one.
const MAX_RECENT: usize = 16;

const ENOENT: i32 = 2;
const ENOTDIR: i32 = 20;
const ELOOP: i32 = 40;

/// A change. Paths begin with that of the watched directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// An entry appeared.
    Created(Vec<u8>),
    /// Contents or attributes of an entry changed.
    Changed(Vec<u8>),
    /// An entry disappeared, with all beneath it.
    Removed(Vec<u8>),
    /// An entry has another path, with all beneath it.
    Renamed {
        /// The former path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
        /// True for a directory.
        directory: bool,
    },
    /// Events or watches were lost.
    Lost,
}

/// The number of a directory in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(u32);

/// The entries of a directory that a step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// None.
    Nothing,
    /// The directories.
    Directories,
    /// All.
    All,
}

/// A step that the caller carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Watch the directory at a path, then list it, and call [`Tree::marked`].
    Mark {
        /// The directory.
        node: Node,
        /// Its path.
        path: Vec<u8>,
        /// The entries to return.
        list: List,
    },
    /// End a watch.
    Unmark {
        /// The watch.
        wd: i32,
    },
}

/// A watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The watch.
    pub wd: i32,
    /// The entries.
    pub entries: Vec<Entry>,
    /// False if there are more entries.
    pub complete: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// True for a directory.
    pub directory: bool,
}

/// A directory that cannot be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing is at the path.
    Missing,
    /// The path is no directory.
    Other,
    /// Another failure.
    Refused,
}

impl Failure {
    /// Returns the failure of an error number.
    #[must_use]
    pub fn of(errno: i32) -> Self {
        match errno {
            ENOENT => Self::Missing,
            ENOTDIR | ELOOP => Self::Other,
            _ => Self::Refused,
        }
    }
}

/// The reason to watch a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It was there at the start.
    Found,
    /// It is new: what is in it is reported.
    New,
    /// Its path may have an entry of any kind, or none, which is reported.
    Unsure,
}

#[derive(Debug)]
struct Directory {
    parent: Option<Node>,
    name: Vec<u8>,
    wd: Option<i32>,
    reason: Reason,
}

#[derive(Debug)]
struct Moved {
    cookie: u32,
    parent: Node,
    name: Vec<u8>,
    directory: bool,
}

#[derive(Debug)]
enum Todo {
    Mark(Node),
    Unmark(i32),
}

/// The watched directories of one inotify instance.
#[derive(Debug)]
pub struct Tree {
    path: Vec<u8>,
    recursive: bool,
    max: usize,
    nodes: HashMap<Node, Directory>,
    by_wd: HashMap<i32, Node>,
    children: BTreeMap<(Node, Vec<u8>), Node>,
    next: u32,
    todo: VecDeque<Todo>,
    /// The first event of a rename, until the next event.
    moved: Option<Moved>,
    recent: VecDeque<(Vec<u8>, Vec<u8>)>,
    events: Vec<Event>,
    stale: bool,
    over: bool,
}

const ROOT: Node = Node(0);

impl Tree {
    /// Creates a tree of the directory at `path`, with at most `max` directories if it is recursive.
    #[must_use]
    pub fn new(path: &[u8], recursive: bool, max: usize) -> Self {
        let root = Directory { parent: None, name: Vec::new(), wd: None, reason: Reason::Found };
        Self {
            path: path.to_vec(),
            recursive,
            max,
            nodes: HashMap::from([(ROOT, root)]),
            by_wd: HashMap::new(),
            children: BTreeMap::new(),
            next: 1,
            todo: VecDeque::from([Todo::Mark(ROOT)]),
            moved: None,
            recent: VecDeque::new(),
            events: Vec::new(),
            stale: false,
            over: false,
        }
    }

    /// Returns the next step.
    pub fn next_step(&mut self) -> Option<Step> {
        loop {
            match self.todo.pop_front()? {
                Todo::Unmark(wd) => return Some(Step::Unmark { wd }),
                Todo::Mark(node) => {
                    let Some(directory) = self.nodes.get(&node) else { continue };
                    let list = match directory.reason {
                        _ if !self.recursive => List::Nothing,
                        Reason::Found => List::Directories,
                        Reason::New | Reason::Unsure => List::All,
                    };
                    match self.path_of(node, b"") {
                        Some(path) => return Some(Step::Mark { node, path, list }),
                        None => {
                            self.remove(node);
                            self.events.push(Event::Lost);
                        }
                    }
                }
            }
        }
    }

    /// Returns true if steps are left.
    #[must_use]
    pub fn has_steps(&self) -> bool {
        !self.todo.is_empty()
    }

    /// Returns the number of directories.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Takes the events so far.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns true if the kernel lost events: paths may be wrong, and a new tree is needed.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns true if the watched directory itself is gone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Returns true if the first event of a rename waits for the second. [`Self::settle`] ends that.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.moved.is_some()
    }

    /// Processes the result of [`Step::Mark`].
    pub fn marked(&mut self, node: Node, result: Result<Marked, Failure>) {
        let Some(directory) = self.nodes.get(&node) else {
            // Removed meanwhile.
            if let Ok(Marked { wd, .. }) = result
                && !self.by_wd.contains_key(&wd)
            {
                self.todo.push_back(Todo::Unmark(wd));
            }
            return;
        };
        let reason = directory.reason;
        let unsure = (reason == Reason::Unsure).then(|| self.path_of(node, b"")).flatten();
        match result {
            Ok(marked) => {
                self.events.extend(unsure.map(Event::Created));
                if node == ROOT || self.recursive {
                    self.watch(node, marked.wd);
                } else {
                    self.remove(node);
                    self.todo.push_back(Todo::Unmark(marked.wd));
                }
                self.add_entries(node, reason, marked);
            }
            Err(_) if node == ROOT => {
                self.events.push(Event::Removed(self.path.clone()));
                self.over = true;
            }
            Err(failure) => {
                self.remove(node);
                match failure {
                    // Its events follow.
                    Failure::Missing => {}
                    Failure::Other => self.events.extend(unsure.map(Event::Created)),
                    Failure::Refused => self.events.push(Event::Lost),
                }
            }
        }
    }

    fn watch(&mut self, node: Node, wd: i32) {
        if let Some(other) = self.by_wd.insert(wd, node).filter(|other| *other != node)
            && let Some(other) = self.nodes.get_mut(&other)
        {
            // The directory has moved here. The events of its former path follow.
            other.wd = None;
        }
        let before = self.nodes.get_mut(&node).and_then(|directory| directory.wd.replace(wd));
        if let Some(before) = before.filter(|before| *before != wd) {
            self.by_wd.remove(&before);
            self.todo.push_back(Todo::Unmark(before));
        }
    }

    fn add_entries(&mut self, node: Node, reason: Reason, marked: Marked) {
        let silent = reason == Reason::Found;
        for Entry { name, directory } in marked.entries {
            let known = self.children.contains_key(&(node, name.clone()));
            if !silent && !known {
                self.report(node, &name, Event::Created);
            }
            if directory && !known {
                self.add(node, name, if silent { Reason::Found } else { Reason::New });
            }
        }
        if !marked.complete {
            self.events.push(Event::Lost);
        }
    }

    /// Ends a wait for the second event of a rename: the entry has left the watched directories, unless it was exchanged
    /// with one outside.
    pub fn settle(&mut self) {
        if let Some(Moved { parent, name, .. }) = self.moved.take() {
            self.remove_child(parent, &name);
            self.report(parent, &name, Event::Removed);
            self.add(parent, name, Reason::Unsure);
        }
    }

    /// Processes an event.
    pub fn handle(&mut self, raw: RawEvent) {
        let RawEvent { wd, mask, cookie, name } = raw;
        if mask & OVERFLOW != 0 {
            self.stale = true;
            return;
        }
        let node = self.by_wd.get(&wd).copied();
        if mask & MOVED_TO != 0
            && let Some(node) = node
            && let Some(moved) = self.moved.take_if(|moved| moved.cookie == cookie)
        {
            self.rename(moved, node, name);
            return;
        }
        self.settle();
        let Some(node) = node else { return };
        if mask & IGNORED != 0 {
            self.by_wd.remove(&wd);
            if let Some(directory) = self.nodes.get_mut(&node) {
                directory.wd = None;
            }
        }
        if name.is_empty() {
            // The parent's watch reports all other events of a directory itself.
            if node == ROOT && mask & (IGNORED | UNMOUNT | DELETE_SELF | MOVE_SELF) != 0 && !self.over {
                // The file system ends with its sandbox.
                let removed = (mask & UNMOUNT == 0).then(|| Event::Removed(self.path.clone()));
                self.events.extend(removed);
                self.over = true;
            }
            return;
        }
        self.handle_entry(node, mask, cookie, name);
    }

    fn handle_entry(&mut self, node: Node, mask: u32, cookie: u32, name: Vec<u8>) {
        let directory = mask & DIRECTORY != 0;
        if mask & MOVED_FROM != 0 {
            self.moved = Some(Moved { cookie, parent: node, name, directory });
        } else if mask & DELETE != 0 {
            self.remove_child(node, &name);
            self.report(node, &name, Event::Removed);
        } else if mask & (CREATE | MOVED_TO) != 0 {
            if mask & MOVED_TO != 0 {
                self.remove_child(node, &name);
            }
            // A list may have found it already.
            if !(directory && self.children.contains_key(&(node, name.clone()))) {
                self.report(node, &name, Event::Created);
                if directory {
                    self.add(node, name, Reason::New);
                }
            }
        } else if mask & (MODIFY | ATTRIB) != 0 {
            self.report(node, &name, Event::Changed);
            // It may be readable now.
            if directory && !self.children.contains_key(&(node, name.clone())) {
                self.add(node, name, Reason::New);
            }
        }
    }

    fn rename(&mut self, moved: Moved, parent: Node, name: Vec<u8>) {
        let Moved { parent: before, name: old, directory, .. } = moved;
        self.remove_child(parent, &name);
        let node = self.children.remove(&(before, old.clone()));
        let (Some(from), Some(to)) = (self.path_of(before, &old), self.path_of(parent, &name)) else {
            node.into_iter().for_each(|node| self.remove(node));
            self.events.push(Event::Lost);
            return;
        };
        let reverse = self.recent.iter().any(|(one, other)| *one == to && *other == from);
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((from.clone(), to.clone()));
        // Two names that are exchanged look like a rename and its reverse.
        if reverse {
            node.into_iter().for_each(|node| self.remove(node));
            self.events.extend([Event::Removed(from), Event::Removed(to)]);
            self.add(before, old, Reason::Unsure);
            self.add(parent, name, Reason::Unsure);
            return;
        }
        self.events.push(Event::Renamed { from, to, directory });
        match node {
            Some(node) => {
                if let Some(moved) = self.nodes.get_mut(&node) {
                    moved.parent = Some(parent);
                    moved.name.clone_from(&name);
                }
                self.children.insert((parent, name), node);
            }
            None if directory => self.add(parent, name, Reason::New),
            None => {}
        }
    }

    /// Adds a directory that is to be watched.
    fn add(&mut self, parent: Node, name: Vec<u8>, reason: Reason) {
        if !self.recursive && reason != Reason::Unsure {
            return;
        }
        if self.nodes.len() >= self.max.max(2) {
            self.events.push(Event::Lost);
            return;
        }
        if self.children.contains_key(&(parent, name.clone())) {
            return;
        }
        let node = Node(self.next);
        self.next = self.next.wrapping_add(1).max(1);
        self.children.insert((parent, name.clone()), node);
        self.nodes.insert(node, Directory { parent: Some(parent), name, wd: None, reason });
        self.todo.push_back(Todo::Mark(node));
    }

    fn remove_child(&mut self, parent: Node, name: &[u8]) {
        if let Some(node) = self.children.remove(&(parent, name.to_vec())) {
            self.remove(node);
        }
    }

    /// Removes a directory with all beneath it.
    fn remove(&mut self, node: Node) {
        let mut all = vec![node];
        while let Some(node) = all.pop() {
            let Some(Directory { parent, name, wd, .. }) = self.nodes.remove(&node) else { continue };
            if let Some(parent) = parent
                && self.children.get(&(parent, name.clone())) == Some(&node)
            {
                self.children.remove(&(parent, name));
            }
            if let Some(wd) = wd {
                self.by_wd.remove(&wd);
                self.todo.push_back(Todo::Unmark(wd));
            }
            let beneath = self.children.range((node, Vec::new())..(Node(node.0.saturating_add(1)), Vec::new()));
            all.extend(beneath.map(|(_, child)| *child));
        }
    }

    fn report(&mut self, parent: Node, name: &[u8], event: fn(Vec<u8>) -> Event) {
        self.events.push(self.path_of(parent, name).map_or(Event::Lost, event));
    }

    /// Returns the path of a name in a directory, or of the directory itself for an empty name. `None` if it is too
    /// long.
    fn path_of(&self, node: Node, name: &[u8]) -> Option<Vec<u8>> {
        let mut parts = vec![name];
        let mut length = self.path.len() + name.len();
        let mut at = self.nodes.get(&node)?;
        while let Some(parent) = at.parent {
            parts.push(&at.name);
            length += at.name.len() + 1;
            if length > MAX_PATH {
                return None;
            }
            at = self.nodes.get(&parent)?;
        }
        parts.push(&self.path);
        let parts: Vec<&[u8]> = parts.into_iter().rev().filter(|part| !part.is_empty()).collect();
        Some(parts.join(&b'/')).filter(|path| path.len() <= MAX_PATH)
    }
}
