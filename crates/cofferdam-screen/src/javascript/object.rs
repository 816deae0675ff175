//! The objects of JavaScript and Node.js that lead to modules and to code, and what stands behind their names.

use std::rc::Rc;

use crate::value::{Thing, Value, Values};

/// What Node gives to the function that it makes of a script.
pub(super) const ARGUMENTS: &str = "?.arguments";
/// How the path of a module begins.
pub(super) const MODULE: &str = "module:";
/// The constructor of nobody knows what.
const CONSTRUCTOR: &str = "?.constructor";
/// The prototype of functions.
pub(super) const PROTOTYPE: &str = "Function.prototype";

/// What is known to be a function, besides those that the program writes.
const FUNCTIONS: &[&str] = &[
    "function",
    "Function",
    "eval",
    "require",
    "Array",
    "Boolean",
    "Date",
    "Error",
    "Map",
    "Number",
    "Object",
    "Promise",
    "Proxy",
    "RegExp",
    "Set",
    "String",
    "Symbol",
    "parseInt",
    "setTimeout",
];

/// What a name stands for that nothing bound.
pub(super) fn global(name: &str) -> Values {
    match name {
        "globalThis" | "global" | "window" | "self" => Values::thing("globalThis"),
        "undefined" | "NaN" | "Infinity" => Values::unknown(),
        _ => Values::thing(name),
    }
}

/// Whether a global of this name leads anywhere, or is followed.
pub(super) fn is_known(name: &str) -> bool {
    const OBJECTS: &[&str] = &["Reflect", "exports", "global", "globalThis", "module", "process", "self", "window"];
    FUNCTIONS.contains(&name) || OBJECTS.contains(&name)
}

/// What Node gives to a script in this place: `exports`, `require` and `module`; to one that awaits, without the first.
pub(super) fn given(place: i64) -> Values {
    let each: &[&str] = match place {
        0 => &["require"],
        1 => &["require", "module"],
        2 => &["module"],
        _ => &[],
    };
    let mut values = Values::unknown();
    each.iter().for_each(|name| values.add(&Values::thing(*name)));
    values
}

/// The module of this name, as `require` and `import` understand it.
pub(super) fn module(name: &str) -> Values {
    match plain(name) {
        "process" => Values::thing("process"),
        name => Values::thing(format!("{MODULE}{name}")),
    }
}

/// The name without what says that it is a module of Node.js.
pub(super) fn plain(name: &str) -> &str {
    name.strip_prefix("node:").unwrap_or(name)
}

/// The module that a thing is, or belongs to.
pub(super) fn module_of(thing: &Thing) -> Option<&str> {
    let name = thing.path.strip_prefix(MODULE)?;
    Some(name.split_once('.').map_or(name, |(module, _)| module))
}

/// Objects whose items are loaded modules.
pub(super) const LOADED: &[&str] = &["require.cache", "module.children", "module:module._cache"];

/// A property of whatever it may be.
pub(super) fn property(object: &Values, name: &str) -> Values {
    let mut found = Values::unknown();
    if name == "constructor" && !object.things().any(|_| true) {
        found.add(&Values::thing(CONSTRUCTOR));
    }
    // Nothing else has these, whatever it came from: `import("module").then((m) => m.createRequire("/"))`.
    if !object.things().any(|_| true) {
        match name {
            "createRequire" => found.add(&Values::thing("createRequire")),
            "getBuiltinModule" => found.add(&Values::thing("require")),
            _ => {}
        }
    }
    for value in object.iter() {
        match value {
            Value::Thing(thing) => found.add(&property_of(&thing.path, name)),
            Value::Text(text) if name == "length" => {
                found.add(&Values::number(i64::try_from(text.chars().count()).unwrap_or(0)));
            }
            _ => {}
        }
    }
    found
}

fn property_of(path: &str, name: &str) -> Values {
    match (path, name) {
        ("globalThis", name) => global(name),
        // At the top of a script, and in functions that are no methods, it is the global object.
        ("this", "process" | "global" | "globalThis" | "require" | "module") => global(name),
        ("module:module" | "module", "prototype" | "__proto__") => Values::thing("module"),
        ("module:module", "createRequire") => Values::thing("createRequire"),
        ("module:module", "_load") => Values::thing("require"),
        ("module:module", "Module" | "default") | ("module", "constructor") => Values::thing("module:module"),
        (path, "default") if path.starts_with(MODULE) => Values::thing(path),
        ("module" | "process.mainModule", "require") => Values::thing("require"),
        ("process", "mainModule") | ("require", "main") | ("module", "parent") => Values::thing("module"),
        ("process", "getBuiltinModule") => Values::thing("require"),
        (PROTOTYPE | CONSTRUCTOR, "constructor") => Values::thing("Function"),
        (path, "constructor") if FUNCTIONS.contains(&path) => Values::thing("Function"),
        // Of an object, it is a function; and its own is that of functions.
        (_, "constructor") => Values::thing(CONSTRUCTOR),
        (path, name) => Values::thing(format!("{path}.{name}")),
    }
}

/// A function and how it is called: `f.call`, `f.apply` and `f.bind` are `f`.
pub(super) fn called(path: &str) -> (&str, Called) {
    for (end, how) in [(".call", Called::Call), (".apply", Called::Apply), (".bind", Called::Bind)] {
        if let Some(function) = path.strip_suffix(end).filter(|function| *function != "Reflect") {
            return (function, how);
        }
    }
    (path, Called::Plainly)
}

/// Where the arguments of a call are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Called {
    Plainly,
    /// Behind one for `this`.
    Call,
    /// In a list, behind one for `this`.
    Apply,
    /// Kept for later.
    Bind,
}

/// All texts of values, as the names of modules.
pub(super) fn names(values: &Values) -> Vec<Rc<str>> {
    values.texts().cloned().collect()
}
