//! What names stand for, in the scopes that Python and JavaScript have.

use std::collections::{HashMap, HashSet};

use crate::collect::Collector;
use crate::value::Values;

/// Scopes that a name is looked for in without a charge: more are around few programs that mean well.
const FREE: usize = 16;

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
    /// How many scopes are around.
    depth: usize,
    names: HashMap<String, Binding>,
    /// Declared `global`.
    globals: HashSet<String>,
    nonlocals: HashSet<String>,
}

/// From where on a binding hides what the scopes around have by its name, and what is built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hides {
    /// In all of its scope, also before it.
    Everywhere,
    /// From its place on, in the order of the code.
    FromHere,
    /// It may never be made, or not by the time the name is used.
    Nowhere,
}

/// All that a name was ever bound to in a scope: which of it is there at a time only the running program knows.
#[derive(Debug, Clone, Default)]
struct Binding {
    values: Values,
    everywhere: bool,
    /// The walk has come by a binding that hides from there on.
    from_here: bool,
    /// What is around can be seen again, at a time that only the running program knows.
    deleted: bool,
}

impl Binding {
    fn hides(&self) -> bool {
        (self.everywhere || self.from_here) && !self.deleted
    }
}

/// What a name stands for at a place.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub values: Values,
    /// The program binds the name somewhere.
    pub bound: bool,
    /// What is built in by this name may be meant.
    pub builtin_too: bool,
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
        Self { all: vec![Scope::new(Kind::Module, 0, 0)], current: 0, entered: 1, starred: false }
    }
}

impl Scope {
    fn new(kind: Kind, parent: usize, depth: usize) -> Self {
        Self { kind, parent, depth, names: HashMap::new(), globals: HashSet::new(), nonlocals: HashSet::new() }
    }
}

impl Scopes {
    /// Back to the beginning, with what the names stand for.
    pub fn rewind(&mut self) {
        (self.current, self.entered) = (0, 1);
        for binding in self.all.iter_mut().flat_map(|scope| scope.names.values_mut()) {
            binding.from_here = false;
        }
    }

    /// The steps that it takes at most to find a name from here.
    pub fn steps(&self) -> usize {
        1 + self.all[self.current].depth.saturating_sub(FREE)
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
        own.retain(|at| self.is_seen(*at));
        for at in own.into_iter().rev() {
            for (name, binding) in &self.all[at].names {
                let outer = names.entry(name.clone()).or_default();
                if binding.hides() {
                    *outer = binding.clone();
                } else {
                    outer.values.add(&binding.values);
                }
            }
        }
        // The text is read from its own beginning.
        for binding in names.values_mut() {
            binding.everywhere |= std::mem::take(&mut binding.from_here);
        }
        let mut only = Self::default();
        only.all[0].names = names;
        only.starred = self.starred;
        only
    }

    pub fn enter(&mut self, kind: Kind) -> usize {
        let before = self.current;
        if self.entered == self.all.len() {
            let depth = self.all[before].depth + 1;
            self.all.push(Scope::new(kind, before, depth));
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

    /// Binds a name here.
    pub fn bind(&mut self, name: &str, values: &Values, hides: Hides) {
        let at = self.owner(self.current, name);
        // By `global`, from a function that may run late or never.
        let hides = if at == 0 && self.current != 0 { Hides::Nowhere } else { hides };
        self.bind_in(at, name, values, hides);
    }

    /// Binds a name as statements of Python do; `sure` where no condition is around.
    pub fn bind_in_order(&mut self, name: &str, values: &Values, sure: bool) {
        let hides = match self.all[self.current].kind {
            // A local name never falls back to another.
            Kind::Function | Kind::Block => Hides::Everywhere,
            Kind::Module | Kind::Class if sure => Hides::FromHere,
            Kind::Module | Kind::Class => Hides::Nowhere,
        };
        self.bind(name, values, hides);
    }

    fn bind_in(&mut self, at: usize, name: &str, values: &Values, hides: Hides) {
        let new = || Binding { values: Values::unknown(), ..Binding::default() };
        let binding = self.all[at].names.entry(name.to_owned()).or_insert_with(new);
        binding.values.add(values);
        binding.everywhere |= hides == Hides::Everywhere;
        binding.from_here |= hides == Hides::FromHere;
    }

    /// Lets names be bound around the blocks, as `:=` and `var` do.
    pub fn outside<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.current;
        while self.all[self.current].kind == Kind::Block {
            self.current = self.all[self.current].parent;
        }
        let done = work(self);
        self.current = before;
        done
    }

    /// What the scope is that names are bound in here.
    pub fn kind(&self) -> Kind {
        self.all[self.current].kind
    }

    /// Gives a name another value wherever it may be bound, and in the module if it is bound nowhere for sure.
    pub fn assign(&mut self, name: &str, values: &Values) {
        let mut at = self.current;
        loop {
            let binding = self.all[at].names.get(name);
            let hides = binding.is_some_and(Binding::hides);
            if at == 0 || binding.is_some() {
                self.bind_in(at, name, values, Hides::Nowhere);
            }
            if at == 0 || hides {
                return;
            }
            at = self.all[at].parent;
        }
    }

    pub fn delete(&mut self, name: &str) {
        let at = self.owner(self.current, name);
        self.all[at].names.entry(name.to_owned()).or_default().deleted = true;
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

    /// Whether names of a scope around are seen here: those of a class are in it alone.
    fn is_seen(&self, at: usize) -> bool {
        self.all[at].kind != Kind::Class || at == self.current
    }

    /// What the name stands for here: anything, where there are no steps left to look for it.
    pub fn look_up(&self, name: &str, collector: &mut Collector<'_>) -> Seen {
        let mut seen = Seen::default();
        if !collector.step(self.steps()) {
            seen.builtin_too = true;
            return seen;
        }
        let mut at = self.current;
        while at != 0 {
            let scope = &self.all[at];
            if self.is_seen(at) {
                if scope.globals.contains(name) {
                    break;
                }
                if seen.take(scope.names.get(name)) {
                    return seen;
                }
            }
            at = scope.parent;
        }
        seen.builtin_too = !seen.take(self.all[0].names.get(name));
        seen
    }

    /// The same in the module.
    pub fn of_module(&self, name: &str) -> Values {
        self.all[0].names.get(name).map(|binding| binding.values.clone()).unwrap_or_default()
    }
}

impl Seen {
    /// Adds a binding, and says whether it hides all others.
    fn take(&mut self, binding: Option<&Binding>) -> bool {
        let Some(binding) = binding else { return false };
        if std::mem::replace(&mut self.bound, true) {
            self.values.add(&binding.values);
        } else {
            self.values = binding.values.clone();
        }
        binding.hides()
    }
}
