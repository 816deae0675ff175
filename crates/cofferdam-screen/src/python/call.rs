//! What calls of known functions give, and which of them import or run code.

use ruff_python_ast::{Expr, ExprCall};
use ruff_text_size::{Ranged, TextRange};

use super::fold::{NAMESPACE, spread};
use super::handed::{canonical, is_unclear};
use super::walk::Walker;
use crate::value::{MOST_TEXT, Value, Values};

/// Functions that import the module whose name is their first argument.
pub(super) const IMPORTERS: &[&str] = &[
    "builtins.__import__",
    "importlib.__import__",
    "importlib._bootstrap.__import__",
    "importlib._bootstrap._gcd_import",
    "importlib.import_module",
    "importlib._bootstrap._find_and_load",
    "importlib.find_loader",
    "importlib.util.find_spec",
    "imp.find_module",
    "imp.load_module",
    "pkgutil.find_loader",
    "pkgutil.get_loader",
    "pkgutil.resolve_name",
    "runpy.run_module",
];
/// Methods that do so, of whatever object: too many loaders have them.
pub(super) const LOADING_METHODS: &[&str] = &["import_module", "load_module", "__import__", "find_spec", "find_module"];
/// Functions that run their first argument as code, or make code of it.
pub(super) const RUNNERS: &[&str] = &[
    "builtins.eval",
    "builtins.exec",
    "builtins.compile",
    "timeit.timeit",
    "timeit.repeat",
    "timeit.Timer",
    "cProfile.run",
    "profile.run",
    "pdb.run",
    "pdb.runeval",
];
/// Functions whose arguments are names of attributes.
pub(super) const GETTERS: &[&str] = &["operator.attrgetter", "operator.methodcaller"];

/// What a call has to do with modules.
pub(super) enum Imported {
    Nothing,
    /// It imports one of these, or perhaps something else: that, and whether a name is not kept.
    Modules {
        names: Vec<String>,
        open: bool,
        dropped: bool,
    },
    /// It imports something that only the running program knows.
    Something,
}

impl Walker<'_, '_> {
    /// What the call gives.
    pub(super) fn call(&mut self, call: &ExprCall) -> Values {
        if let Expr::Attribute(method) = &*call.func {
            let object = self.value(&method.value);
            let known = self.method(&object, &method.attr, call);
            if !known.is_unknown() {
                return known;
            }
        }
        let function = self.value(&call.func);
        let mut made = Values::unknown();
        for thing in function.things() {
            made.add(&self.called(&thing.path, call));
        }
        made
    }

    fn called(&mut self, path: &str, call: &ExprCall) -> Values {
        let first = self.argument(call, 0, "name");
        if IMPORTERS.contains(&path) {
            let names = first.unwrap_or_default();
            return names.each(|name| match name {
                // `__import__("a.b")` is `a`, as the statement is.
                Value::Text(name) if path.ends_with("__import__") => {
                    Values::thing(canonical(name.split('.').next().unwrap_or_default()))
                }
                Value::Text(name) => Values::thing(canonical(&name.replace(':', "."))),
                _ => Values::unknown(),
            });
        }
        let first = match path {
            "builtins.globals" | "builtins.locals" => return Values::thing(NAMESPACE),
            "builtins.vars" => return first.unwrap_or_else(|| Values::thing(NAMESPACE)),
            "builtins.getattr" => return self.got(call),
            "builtins.object.__getattribute__" => return self.got(call),
            "operator.getitem" => {
                let (object, key) = (first.unwrap_or_default(), self.argument(call, 1, "").unwrap_or_default());
                return self.item_of(&object, &key);
            }
            "operator.attrgetter" | "operator.itemgetter" | "operator.methodcaller" => return self.getter(path, call),
            _ => first.unwrap_or_default(),
        };
        if let Some(names) = path.strip_prefix("attrgetter:") {
            let mut got = Vec::new();
            for name in names.split(',') {
                got.push(name.split('.').fold(first.clone(), |object, name| self.attribute(&object, name)));
            }
            return if got.len() == 1 { got.pop().unwrap_or_default() } else { Values::list(got) };
        }
        if let Some(key) = path.strip_prefix("itemgetter:") {
            return self.item_of(&first, &Values::text(key));
        }
        match path {
            "builtins.chr" => first.each(|value| match value {
                Value::Number(number) => character(*number).map_or_else(Values::unknown, Values::text),
                _ => Values::unknown(),
            }),
            "builtins.ord" => first.each(|value| match value {
                Value::Text(text) => {
                    text.chars().next().map_or_else(Values::unknown, |c| Values::number(i64::from(u32::from(c))))
                }
                _ => Values::unknown(),
            }),
            "builtins.str" | "builtins.compile" => self.collector.append(&Values::text(""), &first),
            "builtins.list" | "builtins.tuple" | "builtins.iter" => {
                spread(&first).map_or_else(Values::unknown, Values::list)
            }
            "builtins.reversed" => spread(&first).map_or_else(Values::unknown, |mut items| {
                items.reverse();
                Values::list(items)
            }),
            "builtins.bytes" | "builtins.bytearray" => spread(&first).map_or_else(Values::unknown, |items| {
                let items: Vec<Values> = items.iter().map(characters).collect();
                self.collector.join("", &items)
            }),
            "builtins.bytes.fromhex" => first.each(|value| match value {
                Value::Text(text) => from_hex(text).map_or_else(Values::unknown, Values::text),
                _ => Values::unknown(),
            }),
            "builtins.map" => self.mapped(call),
            _ => Values::unknown(),
        }
    }

    /// `getattr(object, "name")`.
    fn got(&mut self, call: &ExprCall) -> Values {
        let (Some(object), Some(names)) = (self.argument(call, 0, ""), self.argument(call, 1, "")) else {
            return Values::unknown();
        };
        let mut found = Values::unknown();
        for name in names.texts() {
            found.add(&self.attribute(&object, name));
        }
        found
    }

    /// `operator.attrgetter("eval")`: a function that gets that of whatever it is given.
    fn getter(&mut self, path: &str, call: &ExprCall) -> Values {
        let kind = path.rsplit('.').next().unwrap_or(path);
        let given = self.all_given(call);
        let taken = if kind == "attrgetter" { given.len() } else { 1 };
        let names: Vec<Vec<_>> = given.iter().take(taken).map(|each| each.texts().cloned().collect()).collect();
        let open = names.is_empty() || given.iter().take(taken).any(is_unclear);
        let mut made = Values::unknown();
        if open {
            made.add(&Values::thing(format!("{kind}:?")));
        }
        match &names[..] {
            [alternatives] => alternatives.iter().for_each(|name| made.add(&Values::thing(format!("{kind}:{name}")))),
            several if !open => {
                let first: Vec<&str> = several.iter().filter_map(|names| names.first().map(|name| &**name)).collect();
                made.add(&Values::thing(format!("{kind}:{}", first.join(","))));
            }
            _ => {}
        }
        made
    }

    /// `map(chr, [111, 115])`.
    fn mapped(&mut self, call: &ExprCall) -> Values {
        let (Some(function), Some(items)) = (self.argument(call, 0, ""), self.argument(call, 1, "")) else {
            return Values::unknown();
        };
        match spread(&items) {
            Some(items) if function.is_thing("builtins.chr") => Values::list(items.iter().map(characters).collect()),
            Some(items) if function.is_thing("builtins.str") => Values::list(items),
            _ => Values::unknown(),
        }
    }

    /// A method of a text, or of a dictionary of names.
    fn method(&mut self, object: &Values, method: &str, call: &ExprCall) -> Values {
        if object.is_unknown() {
            return Values::unknown();
        }
        if Self::is_dictionary(object) && ["get", "__getitem__", "pop", "setdefault"].contains(&method) {
            let key = self.argument(call, 0, "").unwrap_or_default();
            return self.item_of(object, &key);
        }
        if method == "__getattribute__" {
            // Of the class, the object is an argument, too.
            let (first, second) = (self.argument(call, 0, "").unwrap_or_default(), self.argument(call, 1, ""));
            let (object, names) = match &second {
                Some(second) => (&first, second),
                None => (object, &first),
            };
            let mut found = Values::unknown();
            for name in names.texts() {
                found.add(&self.attribute(object, name));
            }
            return found;
        }
        if object.texts().next().is_none() {
            return Values::unknown();
        }
        let first = self.argument(call, 0, "").unwrap_or_default();
        let second = self.argument(call, 1, "").unwrap_or_default();
        // Each text is put together with each item.
        let items = first.size();
        let length = (object.size().0 + items.0).saturating_mul(object.iter().count());
        if !self.collector.step(length) {
            return Values::unknown();
        }
        object.each(|text| {
            let Value::Text(text) = text else { return Values::unknown() };
            match method {
                "join" => spread(&first).map_or_else(Values::unknown, |items| self.collector.join(text, &items)),
                "lower" | "casefold" => Values::text(text.to_lowercase()),
                "upper" => Values::text(text.to_uppercase()),
                "strip" if call.arguments.is_empty() => Values::text(text.trim()),
                "decode" | "encode" | "__str__" => Values::text(text.clone()),
                "replace" => first.with(&second, |from, to| match (from, to) {
                    (Value::Text(from), Value::Text(to)) => {
                        let most = text.len().saturating_add(1).saturating_mul(to.len().max(1));
                        (most <= MOST_TEXT).then(|| Value::Text(text.replace(&**from, to).into()))
                    }
                    _ => None,
                }),
                "format" => self.formatted(text, call),
                _ => Values::unknown(),
            }
        })
    }

    /// `"{}{}".format("o", "s")`, for places without a format.
    fn formatted(&mut self, format: &str, call: &ExprCall) -> Values {
        let mut text = Values::text("");
        let mut rest = format;
        let mut next = 0;
        while let Some((before, after)) = rest.split_once('{') {
            text = self.collector.append(&text, &Values::text(before));
            let Some((place, after)) = after.split_once('}') else { return Values::unknown() };
            let argument = if place.is_empty() {
                next += 1;
                self.argument(call, next - 1, "")
            } else {
                let number = place.parse().unwrap_or(usize::MAX);
                self.argument(call, number, place)
            };
            text = self.collector.append(&text, &argument.unwrap_or_default());
            rest = after;
            if text.is_unknown() {
                return text;
            }
        }
        self.collector.append(&text, &Values::text(rest))
    }

    /// What the call imports.
    pub(super) fn imported(&mut self, call: &ExprCall) -> Imported {
        let function = self.value(&call.func);
        let known = function.things().any(|thing| IMPORTERS.contains(&&*thing.path));
        let method = match &*call.func {
            Expr::Attribute(method) => LOADING_METHODS.contains(&&*method.attr),
            _ => false,
        };
        if !known && !method {
            return Imported::Nothing;
        }
        let names = self.argument(call, 0, "name").unwrap_or_default();
        let (open, dropped) = (known && names.is_open(), names.has_dropped());
        let names: Vec<String> = names.texts().map(|name| name.replace(':', ".")).collect();
        match names.is_empty() {
            false => Imported::Modules { names, open, dropped },
            true if known => Imported::Something,
            true => Imported::Nothing,
        }
    }

    /// Code in a text that the call runs, and who runs it.
    pub(super) fn run(&mut self, call: &ExprCall) -> Option<(String, Vec<std::rc::Rc<str>>)> {
        let function = self.value(&call.func);
        let path = function.things().find(|thing| RUNNERS.contains(&&*thing.path))?.path.clone();
        let code = self.argument(call, 0, if path.starts_with("timeit") { "stmt" } else { "source" })?;
        let name = path.strip_prefix("builtins.").unwrap_or(&path).to_owned();
        if code.has_dropped() {
            self.collector.truncate();
        }
        Some((name, code.texts().cloned().collect()))
    }

    /// Names of attributes that the call gets, with the argument that says so.
    pub(super) fn attributes_got(&mut self, call: &ExprCall) -> Vec<(TextRange, std::rc::Rc<str>)> {
        let function = self.value(&call.func);
        let is = |paths: &[&str]| function.things().any(|thing| paths.contains(&&*thing.path));
        let method = matches!(&*call.func, Expr::Attribute(method) if method.attr.as_str() == "__getattribute__");
        let (from, until) = match () {
            () if is(&["builtins.getattr"]) => (1, 2),
            () if is(GETTERS) || method => (0, usize::MAX),
            () => return Vec::new(),
        };
        let mut got = Vec::new();
        for (place, texts) in self.all_given(call).into_iter().enumerate().take(until).skip(from) {
            if texts.has_dropped() {
                self.collector.truncate();
            }
            // What was behind a star has no place of its own.
            let argument =
                call.arguments.args.get(place).filter(|_| !call.arguments.args.iter().any(Expr::is_starred_expr));
            let range = argument.map_or_else(|| call.range(), Ranged::range);
            got.extend(texts.texts().flat_map(|text| text.split('.')).map(|name| (range, name.into())));
        }
        got
    }
}

fn character(number: i64) -> Option<String> {
    char::from_u32(u32::try_from(number).ok()?).map(|c| c.to_string())
}

/// A number as the character that it is the code of.
fn characters(values: &Values) -> Values {
    values.each(|value| match value {
        Value::Number(number) => character(*number).map_or_else(Values::unknown, Values::text),
        _ => Values::unknown(),
    })
}

fn from_hex(text: &str) -> Option<String> {
    let digits: Vec<u32> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let pairs = digits.chunks(2).map(|pair| char::from_u32(pair.first()? * 16 + pair.get(1)?));
    pairs.collect()
}
