//! The names that a program binds, and the functions and modules that they are aliases of.
//!
//! A program is walked twice: the first walk binds, the second one reports with all aliases known. Both enter the same
//! scopes in the same order. A name is looked up in time that does not depend on the number of scopes around it.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// The maximum number of aliases of one name. Further ones are ignored.
const MAX_PATHS: usize = 8;
/// The maximum number of bytes of a path. A longer one is unknown.
const MAX_PATH: usize = 200;

/// Dotted paths of functions and modules, such as `os.system`. An empty list stands for an unknown value.
pub(crate) type Paths = Vec<Rc<str>>;

/// Appends an attribute to a path.
pub(crate) fn join(path: &str, name: &str) -> Option<Rc<str>> {
    (path.len() + name.len() < MAX_PATH).then(|| format!("{path}.{name}").into())
}

/// The construct that opens a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Function,
    /// A class of Python, whose names are not visible in its methods.
    Class,
    /// A block of JavaScript, from which a `var` escapes.
    Block,
}

#[derive(Debug, Default)]
struct Binding {
    paths: Paths,
    /// The byte from which on the binding hides outer bindings and built-in names, if it does.
    hides_from: Option<usize>,
}

#[derive(Debug)]
struct Scope {
    kind: Kind,
    names: HashMap<Rc<str>, Binding>,
    /// Names that Python's `global` statement declares.
    globals: HashSet<Rc<str>>,
}

/// All scopes of a program, numbered in the order of the walk.
#[derive(Debug)]
pub(crate) struct Scopes {
    all: Vec<Scope>,
    open: Vec<usize>,
    entered: usize,
    /// For each name the open scopes that bind it, from the outermost to the innermost.
    visible: HashMap<Rc<str>, Vec<usize>>,
}

impl Scopes {
    pub fn new() -> Self {
        let mut scopes = Self { all: Vec::new(), open: Vec::new(), entered: 0, visible: HashMap::new() };
        scopes.enter(Kind::Function);
        scopes
    }

    /// Returns to the start of the program and keeps the bindings.
    pub fn rewind(&mut self) {
        (self.entered, self.open, self.visible) = (0, Vec::new(), HashMap::new());
        self.enter(Kind::Function);
    }

    pub fn enter(&mut self, kind: Kind) {
        let id = self.entered;
        self.entered += 1;
        if id == self.all.len() {
            self.all.push(Scope { kind, names: HashMap::new(), globals: HashSet::new() });
        }
        for name in self.all[id].names.keys() {
            self.visible.entry(name.clone()).or_default().push(id);
        }
        self.open.push(id);
    }

    pub fn leave(&mut self) {
        let Some(id) = self.open.pop() else { return };
        for name in self.all[id].names.keys() {
            self.visible.get_mut(name).map(Vec::pop);
        }
    }

    fn current(&self) -> usize {
        self.open.last().copied().unwrap_or(0)
    }

    /// Returns true if names bound here are local to a function.
    pub fn in_function(&self) -> bool {
        self.current() != 0 && self.all[self.current()].kind == Kind::Function
    }

    pub fn declare_global(&mut self, name: &str) {
        let current = self.current();
        self.all[current].globals.insert(name.into());
    }

    /// Binds a name in the innermost scope, or in the module for a name that is declared global.
    pub fn bind(&mut self, name: &str, paths: &[Rc<str>], hides_from: Option<usize>) {
        let current = self.current();
        if self.all[current].globals.contains(name) {
            // The function may never run.
            self.bind_in(0, name, paths, None);
        } else {
            self.bind_in(current, name, paths, hides_from);
        }
    }

    /// Binds a `var`, which belongs to the function around.
    pub fn bind_var(&mut self, name: &str, paths: &[Rc<str>]) {
        let function = self.open.iter().rev().find(|id| self.all[**id].kind != Kind::Block).copied().unwrap_or(0);
        // A `var` of a script keeps the value that Node.js has given to the name.
        self.bind_in(function, name, paths, (function != 0).then_some(0));
    }

    /// Adds aliases to the nearest binding of a name.
    pub fn assign(&mut self, name: &str, paths: &[Rc<str>]) {
        let nearest = self.visible.get(name).and_then(|ids| ids.last()).copied().unwrap_or(0);
        self.bind_in(nearest, name, paths, None);
    }

    fn bind_in(&mut self, id: usize, name: &str, paths: &[Rc<str>], hides_from: Option<usize>) {
        let name: Rc<str> = name.into();
        let binding = self.all[id].names.entry(name.clone()).or_insert_with(|| {
            let ids = self.visible.entry(name).or_default();
            ids.insert(ids.partition_point(|other| *other < id), id);
            Binding::default()
        });
        for path in paths {
            if binding.paths.len() < MAX_PATHS && !binding.paths.contains(path) {
                binding.paths.push(path.clone());
            }
        }
        binding.hides_from = [binding.hides_from, hides_from].into_iter().flatten().min();
    }

    /// Returns all values that a name may have at a byte of the code. A name that is not hidden also stands for itself.
    pub fn look_up(&self, name: &str, at: usize) -> Paths {
        let mut paths = Paths::new();
        for id in self.visible.get(name).into_iter().flatten().rev() {
            let scope = &self.all[*id];
            if scope.kind == Kind::Class && *id != self.current() {
                continue;
            }
            let Some(binding) = scope.names.get(name) else { continue };
            paths.extend(binding.paths.iter().cloned());
            if binding.hides_from.is_some_and(|from| from <= at) {
                return paths;
            }
        }
        paths.push(name.into());
        paths
    }
}
