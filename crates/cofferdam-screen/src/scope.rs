//! What names stand for, in the scopes that Python and JavaScript have.

use std::collections::{HashMap, HashSet};

use crate::value::Values;

/// What opens a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Module,
    Function,
    /// Of Python: its names are not seen from the functions in it.
    Class,
    /// A comprehension, whose `:=` binds outside; in JavaScript a block, whose `var` does.
    Block,
}

#[derive(Debug, Clone)]
struct Scope {
    kind: Kind,
    parent: usize,
    names: HashMap<String, Binding>,
    /// Declared `global`.
    globals: HashSet<String>,
    nonlocals: HashSet<String>,
}

/// All that a name was ever bound to in a scope: which of it is there at a time only the running program knows.
#[derive(Debug, Clone, Default)]
struct Binding {
    values: Values,
    /// The built-in one can be seen: the name was deleted, or is bound only on some condition.
    builtin_too: bool,
}

/// All scopes of a program, in the order in which a walk enters them, so that a second walk finds those of the first.
#[derive(Debug, Clone)]
pub(crate) struct Scopes {
    all: Vec<Scope>,
    current: usize,
    entered: usize,
    /// A statement has bound names that do not stand in it.
    pub starred: bool,
}

impl Default for Scopes {
    fn default() -> Self {
        Self { all: vec![Scope::new(Kind::Module, 0)], current: 0, entered: 1, starred: false }
    }
}

impl Scope {
    fn new(kind: Kind, parent: usize) -> Self {
        Self { kind, parent, names: HashMap::new(), globals: HashSet::new(), nonlocals: HashSet::new() }
    }
}

impl Scopes {
    /// Back to the beginning, with what the names stand for.
    pub fn rewind(&mut self) {
        (self.current, self.entered) = (0, 1);
    }

    /// How many names there are from here outwards.
    pub fn count_from_here(&self) -> usize {
        let (mut count, mut at) = (self.all[0].names.len(), self.current);
        while at != 0 {
            count += self.all[at].names.len() + 1;
            at = self.all[at].parent;
        }
        count
    }

    /// The names that code in a text sees, with no other scope.
    pub fn seen_from_here(&self) -> Self {
        let mut names = self.all[0].names.clone();
        let mut at = self.current;
        let mut own = Vec::new();
        while at != 0 {
            own.push(at);
            at = self.all[at].parent;
        }
        for at in own.into_iter().rev() {
            names.extend(self.all[at].names.iter().map(|(name, binding)| (name.clone(), binding.clone())));
        }
        let mut only = Self::default();
        only.all[0].names = names;
        only.starred = self.starred;
        only
    }

    pub fn enter(&mut self, kind: Kind) -> usize {
        let before = self.current;
        if self.entered == self.all.len() {
            self.all.push(Scope::new(kind, before));
        }
        self.current = self.entered;
        self.entered += 1;
        before
    }

    /// Whether names that are bound here are attributes of a class.
    pub fn in_class(&self) -> bool {
        self.all[self.current].kind == Kind::Class
    }

    pub fn leave(&mut self, before: usize) {
        self.current = before;
    }

    pub fn declare_global(&mut self, name: &str) {
        self.all[self.current].globals.insert(name.to_owned());
    }

    pub fn declare_nonlocal(&mut self, name: &str) {
        self.all[self.current].nonlocals.insert(name.to_owned());
    }

    /// Binds a name here; `sure` if nothing else can stand for it, as where no condition is around.
    pub fn bind(&mut self, name: &str, values: &Values, sure: bool) {
        let at = self.owner(self.current, name);
        let in_module = at == 0;
        let binding = self.all[at].names.entry(name.to_owned()).or_insert_with(|| Binding {
            values: Values::unknown(),
            // A local name never falls back to a built-in one.
            builtin_too: in_module && !sure,
        });
        binding.values.add(values);
    }

    /// Binds around the blocks, as `:=` and `var` do.
    pub fn bind_outside(&mut self, name: &str, values: &Values, sure: bool) {
        let before = self.current;
        while self.all[self.current].kind == Kind::Block {
            self.current = self.all[self.current].parent;
        }
        self.bind(name, values, sure);
        self.current = before;
    }

    /// Gives a name another value where it is bound, and in the module if it is bound nowhere.
    pub fn assign(&mut self, name: &str, values: &Values) {
        let before = self.current;
        while self.current != 0 && !self.all[self.current].names.contains_key(name) {
            self.current = self.all[self.current].parent;
        }
        self.bind(name, values, false);
        self.current = before;
    }

    pub fn delete(&mut self, name: &str) {
        let at = self.owner(self.current, name);
        self.all[at].names.entry(name.to_owned()).or_default().builtin_too = true;
    }

    /// The scope that a name belongs to which is bound here.
    fn owner(&self, from: usize, name: &str) -> usize {
        let scope = &self.all[from];
        if scope.globals.contains(name) {
            return 0;
        }
        if scope.nonlocals.contains(name) {
            let mut at = scope.parent;
            while at != 0 && !self.all[at].names.contains_key(name) {
                at = self.all[at].parent;
            }
            return at;
        }
        from
    }

    /// What the name stands for here, and whether the built-in one may be meant.
    pub fn look_up(&self, name: &str) -> (Values, bool) {
        let mut at = self.current;
        if self.all[at].globals.contains(name) {
            return self.of_module(name);
        }
        loop {
            let scope = &self.all[at];
            // Names of a class are seen in it alone.
            let seen = scope.kind != Kind::Class || at == self.current;
            if let Some(Binding { values, builtin_too }) = scope.names.get(name).filter(|_| seen) {
                return (values.clone(), *builtin_too);
            }
            if at == 0 {
                return (Values::unknown(), true);
            }
            at = scope.parent;
        }
    }

    /// The same in the module.
    pub fn of_module(&self, name: &str) -> (Values, bool) {
        let binding = self.all[0].names.get(name);
        binding.map_or((Values::unknown(), true), |Binding { values, builtin_too }| (values.clone(), *builtin_too))
    }
}
