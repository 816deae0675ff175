//! What leads to any module, and where it is handed on so that nobody sees what for.

use ruff_python_ast::{Expr, ExprCall, ExprContext};

use super::call::{GETTERS, IMPORTERS, RUNNERS};
use super::fold::spread;
use super::walk::Walker;
use crate::value::{Thing, Value, Values};

/// Modules, and what is like them, of which no name may be got that only the running program knows: behind one of the names is
/// what imports or runs code.
pub(super) const SENSITIVE: &[&str] = &[
    "builtins",
    "importlib",
    "importlib.util",
    "importlib._bootstrap",
    "imp",
    "pkgutil",
    "runpy",
    "sys",
    "sys.modules",
];
/// The dictionary of all modules.
pub(super) const MODULES: &str = "sys.modules";
/// Functions that take an object and give what it has under a name or a key.
const TAKERS: &[&str] = &["builtins.getattr", "operator.getitem", "builtins.object.__getattribute__"];
/// What functions are called that `operator` makes.
const GETTING: &[&str] = &["attrgetter:", "itemgetter:", "methodcaller:"];
/// Other names of modules.
const TWINS: &[(&str, &str)] = &[
    ("_operator", "operator"),
    ("_frozen_importlib", "importlib._bootstrap"),
    ("_frozen_importlib_external", "importlib._bootstrap_external"),
];
/// Names that say which module the code itself is in.
const OWN: &[&str] = &["__name__", "__module__", "__package__"];
/// What a function tells about itself.
const TOLD: &[&str] = &["__call__", "__name__", "__qualname__", "__doc__", "__module__"];
/// Functions that only count or list the names of a dictionary.
const LISTERS: &[&str] = &["len", "list", "set", "frozenset", "tuple", "sorted", "iter", "dir", "print", "id", "bool"];

/// Functions that may have such a module without giving anything of it.
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    "callable", "delattr", "dir", "getattr", "hasattr", "hash", "help", "id", "isinstance", "len", "print", "repr", "setattr",
    "str", "type", "vars",
];
/// Methods likewise: `patch.object`, `monkeypatch.setattr`, `importlib.reload`.
const HARMLESS_METHODS: &[&str] = &["object", "setattr", "delattr", "reload", "patch", "__getattribute__"];
/// Methods of a dictionary that give what is in it.
const GIVING: &[&str] = &["values", "items", "copy", "popitem"];
/// Those that give it by name.
const GIVING_BY_NAME: &[&str] = &["get", "pop", "setdefault", "__getitem__", "__getattribute__"];

/// The path of a module, by whichever name.
pub(super) fn canonical(module: &str) -> &str {
    TWINS.iter().find(|(twin, _)| *twin == module).map_or(module, |(_, known)| known)
}

/// The names of a module that lead somewhere, which is what `import *` may bind.
pub(super) fn known_names(module: &str, calls: &[String]) -> Vec<String> {
    let module = canonical(module);
    let paths = [IMPORTERS, RUNNERS, GETTERS, &[MODULES, "operator.getitem", "operator.itemgetter"]].concat();
    let paths = paths.into_iter().chain(calls.iter().map(String::as_str));
    let names = paths.filter_map(|path| path.strip_prefix(module)?.strip_prefix('.'));
    let mut names: Vec<String> = names.filter(|name| !name.contains('.')).map(str::to_owned).collect();
    names.dedup();
    names
}

/// Whether it takes an object and gives what it has.
fn takes(thing: &Thing) -> bool {
    TAKERS.contains(&&*thing.path) || GETTING.iter().any(|begin| thing.path.starts_with(begin))
}

fn is_importer(thing: &Thing) -> bool {
    IMPORTERS.contains(&&*thing.path)
}

impl Walker<'_, '_> {
    /// Says of an expression that its value is known where it goes: it is called, or a name is bound to it.
    pub(super) fn follow(&mut self, expression: &Expr) {
        self.followed.insert(std::ptr::from_ref(expression).addr());
        match expression {
            Expr::If(choice) => {
                self.follow(&choice.body);
                self.follow(&choice.orelse);
            }
            Expr::BoolOp(choice) => choice.values.iter().for_each(|value| self.follow(value)),
            Expr::Named(named) => self.follow(&named.value),
            _ => {}
        }
    }

    /// The same for what is assigned, unless it goes where no name is.
    pub(super) fn follow_to(&mut self, target: &Expr, value: &Expr) {
        // Names of a class are attributes.
        if self.scopes.in_class() {
            return;
        }
        match target {
            Expr::Name(_) => self.follow(value),
            Expr::Tuple(_) | Expr::List(_) => {
                let (targets, values) = (elements(target), elements(value));
                if targets.len() == values.len() && !values.iter().any(Expr::is_starred_expr) {
                    targets.iter().zip(values).for_each(|(target, value)| self.follow_to(target, value));
                }
            }
            _ => {}
        }
    }

    /// The same for what a loop runs through.
    pub(super) fn follow_each(&mut self, target: &Expr, iter: &Expr) {
        self.follow(iter);
        for value in elements(iter) {
            self.follow_to(target, value);
        }
    }

    /// What is followed by the expression around it.
    pub(super) fn follow_in(&mut self, expression: &Expr) {
        match expression {
            Expr::Call(call) => {
                self.follow(&call.func);
                self.called.insert(std::ptr::from_ref(&*call.func).addr());
                let lists = match &*call.func {
                    Expr::Name(name) => LISTERS.contains(&name.id.as_str()),
                    // `patch.dict(sys.modules, …)`
                    Expr::Attribute(method) => method.attr.as_str() == "dict",
                    _ => false,
                };
                if let Some(first) = call.arguments.args.first().filter(|_| lists)
                    && self.value(first).is_thing(MODULES)
                {
                    self.follow(first);
                }
            }
            // Methods of dictionaries are looked at by themselves.
            Expr::Attribute(attribute)
                if TOLD.contains(&attribute.attr.as_str())
                    || !self.value(&attribute.value).things().any(is_importer) =>
            {
                self.follow(&attribute.value);
            }
            Expr::Subscript(subscript) => self.follow(&subscript.value),
            Expr::Compare(compare) => {
                self.follow(&compare.left);
                compare.comparators.iter().for_each(|each| self.follow(each));
            }
            Expr::Named(named) => self.follow(&named.value),
            _ => {}
        }
    }

    /// Whether a way to any module is handed on here.
    pub(super) fn hands_on(&mut self, expression: &Expr) -> bool {
        let loads = match expression {
            Expr::Name(name) => name.ctx == ExprContext::Load,
            Expr::Attribute(attribute) => attribute.ctx == ExprContext::Load,
            Expr::Subscript(subscript) => subscript.ctx == ExprContext::Load,
            Expr::Call(_) => true,
            _ => false,
        };
        if !loads {
            return false;
        }
        let here = std::ptr::from_ref(expression).addr();
        let values = self.value(expression);
        if let Expr::Attribute(method) = expression
            && !self.called.contains(&here)
            && !values.things().any(is_importer)
        {
            let name = method.attr.as_str();
            // Too many loaders have these.
            if ["import_module", "load_module"].contains(&name) {
                return true;
            }
            // Nobody follows what such a method is of.
            if (GIVING.contains(&name) || GIVING_BY_NAME.contains(&name))
                && self.value(&method.value).things().any(|thing| self.is_sensitive(thing))
            {
                return true;
            }
        }
        if self.followed.contains(&here) {
            return false;
        }
        let dictionary = match expression {
            Expr::Attribute(attribute) => attribute.attr.as_str() == "__dict__",
            Expr::Call(call) => self.value(&call.func).is_thing("builtins.vars"),
            _ => false,
        };
        values
            .things()
            .any(|thing| is_importer(thing) || &*thing.path == MODULES || (dictionary && self.is_sensitive(thing)))
    }

    fn is_sensitive(&self, thing: &Thing) -> bool {
        let path = &*thing.path;
        let listed = |call: &String| call.rsplit_once('.').is_some_and(|(module, _)| module == path);
        SENSITIVE.contains(&path) || self.collector.lists.calls.iter().any(listed)
    }

    /// Whether the subject of `match` is what has names that lead anywhere, which patterns bind.
    pub(super) fn is_taken_apart(&mut self, subject: &Expr) -> bool {
        self.value(subject).things().any(|thing| self.is_sensitive(thing))
    }

    /// Whether an argument is such a module, given to what nobody follows.
    fn gives_away(&self, call: &ExprCall, function: &Values, given: &[Values]) -> bool {
        let harmless = match &*call.func {
            Expr::Name(name) => HARMLESS.contains(&name.id.as_str()),
            Expr::Attribute(method) => HARMLESS_METHODS.contains(&method.attr.as_str()),
            _ => false,
        };
        let modules = |each: &Values| each.things().any(|thing| &*thing.path != MODULES && self.is_sensitive(thing));
        !harmless && !function.things().any(takes) && given.iter().any(modules)
    }

    fn has_sensitive(&mut self, values: &Values) -> bool {
        values.iter().any(|value| match value {
            Value::Thing(thing) => self.is_sensitive(thing),
            Value::List(items) if !self.collector.step(items.len()) => true,
            Value::List(items) => items.iter().any(|item| item.things().any(|thing| self.is_sensitive(thing))),
            _ => false,
        })
    }

    /// Whether something is got by a name that only the running program knows, of what has names that lead anywhere.
    pub(super) fn gets_anything(&mut self, expression: &Expr) -> bool {
        let (object, name) = match expression {
            Expr::Subscript(subscript) if subscript.ctx == ExprContext::Load => {
                if subscript.slice.is_slice_expr() || is_own(&subscript.slice) {
                    return false;
                }
                (self.value(&subscript.value), self.value(&subscript.slice))
            }
            Expr::Call(call) => return self.call_gets_anything(call),
            _ => return false,
        };
        is_unclear(&name) && object.things().any(|thing| self.is_sensitive(thing))
    }

    fn call_gets_anything(&mut self, call: &ExprCall) -> bool {
        let function = self.value(&call.func);
        let given = self.all_given(call);
        if function.things().any(|thing| TAKERS.contains(&&*thing.path)) {
            return given.get(1).is_none_or(|name| is_unclear(name) && !self.is_own_argument(call, 1))
                && given.first().is_some_and(|object| self.has_sensitive(object));
        }
        // What takes is itself handed on, with what is taken from.
        let takers = given.iter().any(|each| each.things().any(takes));
        if takers && given.iter().any(|each| self.has_sensitive(each)) {
            return true;
        }
        if self.gives_away(call, &function, &given) {
            return true;
        }
        if function.things().any(|thing| thing.path.ends_with(":?")) {
            return given.first().is_some_and(|object| self.has_sensitive(object));
        }
        // `operator.methodcaller("import_module", "os")(importlib)`
        let by_name: Vec<String> =
            function.things().filter_map(|thing| Some(thing.path.strip_prefix("methodcaller:")?.to_owned())).collect();
        let called = by_name.iter().any(|name| {
            let method = given.first().map(|object| self.attribute(object, name)).unwrap_or_default();
            method.things().any(|thing| is_importer(thing) || RUNNERS.contains(&&*thing.path))
        });
        if called {
            return true;
        }
        let Expr::Attribute(method) = &*call.func else { return false };
        let object = self.value(&method.value);
        if !object.things().any(|thing| self.is_sensitive(thing)) {
            return false;
        }
        match method.attr.as_str() {
            name if GIVING.contains(&name) => true,
            name if GIVING_BY_NAME.contains(&name) => {
                given.first().is_none_or(is_unclear) && !self.is_own_argument(call, 0)
            }
            _ => false,
        }
    }

    fn is_own_argument(&self, call: &ExprCall, place: usize) -> bool {
        call.arguments.args.get(place).is_some_and(is_own)
    }

    /// All arguments by place. What stands behind a star is taken apart, if it is known, and ends the list if it is not.
    pub(super) fn all_given(&mut self, call: &ExprCall) -> Vec<Values> {
        let mut given = Vec::new();
        for argument in &call.arguments.args {
            match argument {
                Expr::Starred(starred) => {
                    let list = self.value(&starred.value);
                    let Some(items) = spread(&list) else { break };
                    if !self.collector.step(items.len()) {
                        break;
                    }
                    given.extend(items);
                }
                argument => given.push(self.value(argument)),
            }
        }
        given
    }
}

/// Whether a name is not among the texts that are known.
pub(super) fn is_unclear(name: &Values) -> bool {
    name.is_open() || name.texts().next().is_none()
}

/// Whether an expression names the module that it stands in, as `sys.modules[__name__]`.
fn is_own(key: &Expr) -> bool {
    match key {
        Expr::Name(name) => OWN.contains(&name.id.as_str()),
        Expr::Attribute(attribute) => OWN.contains(&attribute.attr.as_str()),
        _ => false,
    }
}

fn elements(expression: &Expr) -> &[Expr] {
    match expression {
        Expr::Tuple(tuple) => &tuple.elts,
        Expr::List(list) => &list.elts,
        Expr::Set(set) => &set.elts,
        _ => &[],
    }
}
