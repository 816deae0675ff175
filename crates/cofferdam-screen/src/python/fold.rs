//! What an expression is, as far as that shows without running it.

use ruff_python_ast::{Expr, ExprCall, FStringPart, InterpolatedStringElement, Number, Operator, UnaryOp};

use super::MOST_LEVELS;
use super::handed::{SENSITIVE, canonical};
use super::walk::Walker;
use crate::collect::Collector;
use crate::scope::Seen;
use crate::value::{Thing, Value, Values, joined, sliced};

/// Items of a list that are told apart.
const MOST_ITEMS: usize = 4096;
/// Functions that keep the module that they are of.
#[rustfmt::skip]
const FUNCTIONS: &[&str] = &[
    "__build_class__", "__import__", "abs", "all", "any", "ascii", "bin", "breakpoint", "callable", "chr", "compile", "delattr",
    "dir", "divmod", "eval", "exec", "format", "getattr", "globals", "hasattr", "hash", "hex", "id", "input", "isinstance",
    "issubclass", "iter", "len", "locals", "max", "min", "next", "oct", "open", "ord", "pow", "print", "repr", "round", "setattr",
    "sorted", "sum", "vars",
];
/// What else is followed by its name alone.
const NAMES: &[&str] = &[
    "__builtins__",
    "builtins",
    "bytearray",
    "bytes",
    "importlib",
    "import_module",
    "list",
    "map",
    "object",
    "operator",
    "pkgutil",
    "reversed",
    "runpy",
    "str",
    "sys",
    "timeit",
    "tuple",
];
/// A function of the module that gives its names.
pub(super) const NAMESPACE: &str = "builtins.globals()";

impl Walker<'_, '_> {
    /// What the expression may be.
    pub(super) fn value(&mut self, expression: &Expr) -> Values {
        let key = std::ptr::from_ref(expression).addr();
        if self.temporary.is_empty()
            && let Some(values) = self.memo.get(&key)
        {
            return values.clone();
        }
        if self.folds >= MOST_LEVELS || !self.collector.step(1) {
            self.collector.truncate();
            return Values::unknown();
        }
        self.folds += 1;
        let values = self.fold(expression);
        self.folds -= 1;
        if self.temporary.is_empty() && matches!(expression, Expr::Attribute(_) | Expr::Call(_) | Expr::Subscript(_)) {
            self.memo.insert(key, values.clone());
        }
        values
    }

    fn fold(&mut self, expression: &Expr) -> Values {
        match expression {
            Expr::StringLiteral(literal) => Values::text(literal.value.to_str()),
            Expr::BytesLiteral(literal) => Values::text(literal.value.bytes().map(char::from).collect::<String>()),
            Expr::FString(_) => self.format_string(expression),
            Expr::NumberLiteral(literal) => match &literal.value {
                Number::Int(int) => int.as_i64().map_or_else(Values::unknown, Values::number),
                _ => Values::unknown(),
            },
            Expr::UnaryOp(unary) if unary.op == UnaryOp::USub => self.value(&unary.operand).each(|value| match value {
                Value::Number(number) => number.checked_neg().map_or_else(Values::unknown, Values::number),
                _ => Values::unknown(),
            }),
            Expr::BinOp(binary) => {
                let left = self.value(&binary.left);
                if left.is_unknown() {
                    return left;
                }
                let right = self.value(&binary.right);
                self.binary(&left, binary.op, &right)
            }
            Expr::List(list) => self.items(&list.elts),
            Expr::Tuple(tuple) => self.items(&tuple.elts),
            Expr::Name(name) => self.name(&name.id),
            Expr::Attribute(attribute) => {
                let object = self.value(&attribute.value);
                self.attribute(&object, &attribute.attr)
            }
            Expr::Subscript(subscript) => {
                let object = self.value(&subscript.value);
                self.item(&object, &subscript.slice)
            }
            Expr::Call(call) => {
                let made = self.call(call);
                self.collector.made(made)
            }
            Expr::If(choice) => self.value(&choice.body).or(&self.value(&choice.orelse)),
            Expr::BoolOp(choice) => {
                let mut values = Values::unknown();
                choice.values.iter().for_each(|each| values.add(&self.value(each)));
                values
            }
            Expr::Named(named) => self.value(&named.value),
            Expr::ListComp(each) => self.folded_comprehension(&each.elt, &each.generators),
            Expr::Generator(each) => self.folded_comprehension(&each.elt, &each.generators),
            _ => Values::unknown(),
        }
    }

    fn format_string(&mut self, expression: &Expr) -> Values {
        let Expr::FString(string) = expression else { return Values::unknown() };
        let mut text = Values::text("");
        for part in string.value.iter() {
            let FStringPart::FString(part) = part else {
                if let FStringPart::Literal(literal) = part {
                    text = self.collector.append(&text, &Values::text(literal.as_str()));
                }
                continue;
            };
            for element in &part.elements {
                let piece = match element {
                    InterpolatedStringElement::Literal(literal) => Values::text(&*literal.value),
                    InterpolatedStringElement::Interpolation(inner)
                        if inner.format_spec.is_none() && inner.debug_text.is_none() =>
                    {
                        self.value(&inner.expression)
                    }
                    InterpolatedStringElement::Interpolation(_) => Values::unknown(),
                };
                text = self.collector.append(&text, &piece);
            }
        }
        text
    }

    fn binary(&mut self, left: &Values, operator: Operator, right: &Values) -> Values {
        // The work is that of the texts, not of the tree.
        let ((left_bytes, left_items), (right_bytes, right_items)) = (left.size(), right.size());
        let pairs = |bytes: usize, others: &Values| bytes.saturating_mul(others.iter().count());
        let bytes = pairs(left_bytes, right).saturating_add(pairs(right_bytes, left));
        if !self.collector.step((bytes / 16).saturating_add(left_items + right_items)) {
            return Values::unknown();
        }
        let made = left.with(right, |left, right| match (left, operator, right) {
            (Value::Text(left), Operator::Add, Value::Text(right)) => joined(left, right),
            (Value::List(left), Operator::Add, Value::List(right)) => {
                let both: Vec<Values> = left.iter().chain(right.iter()).take(MOST_ITEMS).cloned().collect();
                Value::list(both)
            }
            (Value::Text(text), Operator::Mult, Value::Number(times))
            | (Value::Number(times), Operator::Mult, Value::Text(text)) => {
                let times = usize::try_from(*times).unwrap_or(0);
                let fits = text.len().saturating_mul(times) <= 1024;
                fits.then(|| Value::Text(text.repeat(times).into()))
            }
            (Value::Text(format), Operator::Mod, right) => percent(self.collector, format, right),
            (Value::Number(left), operator, Value::Number(right)) => {
                let number = match operator {
                    Operator::Add => left.checked_add(*right),
                    Operator::Sub => left.checked_sub(*right),
                    Operator::Mult => left.checked_mul(*right),
                    Operator::BitXor => Some(left ^ right),
                    _ => None,
                };
                number.map(Value::Number)
            }
            _ => None,
        });
        self.collector.made(made)
    }

    pub(super) fn items(&mut self, items: &[Expr]) -> Values {
        if items.len() > MOST_ITEMS || !self.collector.step(items.len()) {
            return Values::unknown();
        }
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            let Expr::Starred(starred) = item else {
                values.push(self.value(item));
                continue;
            };
            let inner = self.value(&starred.value);
            // Behind one of which nobody knows how many there are, no place is known.
            let Some(inner) = spread(&inner) else { return Values::unknown() };
            if values.len() + inner.len() > MOST_ITEMS || !self.collector.step(inner.len()) {
                return Values::unknown();
            }
            values.extend(inner);
        }
        self.collector.made(Values::list(values))
    }

    /// What a name stands for here.
    pub(super) fn name(&mut self, name: &str) -> Values {
        if let Some((_, values)) = self.temporary.iter().rev().find(|(temporary, _)| temporary == name) {
            return values.clone();
        }
        let Seen { values, bound, builtin_too } = self.scopes.look_up(name, self.collector);
        let mut all = values;
        if builtin_too {
            if !bound || self.is_built_in(name) {
                all.add(&builtin(name));
            }
            if self.scopes.starred && self.collector.lists.unwanted_import(name).is_some() {
                all.add(&Values::thing(name));
            }
        }
        all
    }

    /// Whether Python has something by this name that leads anywhere, or is followed.
    fn is_built_in(&self, name: &str) -> bool {
        FUNCTIONS.contains(&name) || NAMES.contains(&name) || self.collector.lists.unwanted_call(name).is_some()
    }

    /// An attribute of a thing.
    pub(super) fn attribute(&self, object: &Values, name: &str) -> Values {
        let mut found = Values::unknown();
        for thing in object.things() {
            found.add(&self.attribute_of(thing, name));
        }
        // It is the same dictionary, whatever it is got from.
        if name == "__builtins__" {
            found.add(&Values::thing("builtins"));
        }
        found
    }

    fn attribute_of(&self, thing: &Thing, name: &str) -> Values {
        let path = &*thing.path;
        match name {
            // A module's dictionary has what the module has.
            "__dict__" => return thing.clone().into(),
            // Modules keep what they import.
            "builtins" | "sys" | "importlib" => return Values::thing(name),
            "__call__" => return thing.clone().into(),
            "__self__" if path.strip_prefix("builtins.").is_some_and(|name| FUNCTIONS.contains(&name)) => {
                return Values::thing("builtins");
            }
            _ if path == "__main__" => return self.global(name),
            _ => {}
        }
        let imported = name.trim_start_matches('_');
        let is_module = path != "builtins" && !path.starts_with("builtins.");
        for module in [name, imported] {
            if is_module && self.collector.lists.imports.iter().any(|entry| entry == module) {
                return Values::thing(module);
            }
        }
        Thing { path: format!("{path}.{name}").into(), open: thing.open }.into()
    }

    /// What stands behind a key or a number.
    pub(super) fn item(&mut self, object: &Values, key: &Expr) -> Values {
        if object.is_unknown() {
            return Values::unknown();
        }
        if let Expr::Slice(slice) = key {
            let mut number = |part: &Option<Box<Expr>>| -> Option<Option<i64>> {
                let Some(part) = part else { return Some(None) };
                self.value(part).numbers().next().map(Some)
            };
            let (Some(start), Some(end), Some(step)) =
                (number(&slice.lower), number(&slice.upper), number(&slice.step))
            else {
                return Values::unknown();
            };
            // A text is taken apart first.
            let (bytes, items) = object.size();
            if !self.collector.step(bytes / 16 + items) {
                return Values::unknown();
            }
            let part = object.each(|value| slice_of(value, start, end, step.unwrap_or(1)));
            return self.collector.made(part);
        }
        let key = self.value(key);
        self.item_of(object, &key)
    }

    /// The same for a key that is known.
    pub(super) fn item_of(&mut self, object: &Values, key: &Values) -> Values {
        let mut found = Values::unknown();
        for thing in object.things() {
            for name in key.texts() {
                found.add(&match &*thing.path {
                    NAMESPACE => self.global(name),
                    "sys.modules" => Values::thing(canonical(name)),
                    _ => self.attribute_of(thing, name),
                });
            }
        }
        for list in object.lists() {
            for number in key.numbers() {
                let at = sliced(list, Some(number), None, 1);
                found.add(&at.into_iter().next().unwrap_or_default());
            }
        }
        for text in object.texts() {
            for number in key.numbers() {
                let characters: Vec<char> = text.chars().take(MOST_ITEMS).collect();
                if let Some(one) = sliced(&characters, Some(number), None, 1).first() {
                    found.add(&Values::text(one.to_string()));
                }
            }
        }
        found.open_as(&[object, key])
    }

    fn global(&self, name: &str) -> Values {
        if name == "__builtins__" {
            return Values::thing("builtins");
        }
        self.scopes.of_module(name)
    }

    /// What a dictionary of names gives through `get` and its like.
    pub(super) fn is_dictionary(values: &Values) -> bool {
        values.things().any(|thing| SENSITIVE.contains(&&*thing.path) || &*thing.path == NAMESPACE)
    }

    fn folded_comprehension(&mut self, element: &Expr, generators: &[ruff_python_ast::Comprehension]) -> Values {
        let [generator] = generators else { return Values::unknown() };
        let (Expr::Name(target), true) = (&generator.target, generator.ifs.is_empty()) else {
            return Values::unknown();
        };
        let items = self.value(&generator.iter);
        let (bytes, _) = items.size();
        if !self.collector.step(bytes) {
            return Values::unknown();
        }
        let Some(items) = spread(&items) else { return Values::unknown() };
        let mut made = Vec::new();
        for item in items {
            self.temporary.push((target.id.to_string(), item));
            made.push(self.value(element));
            self.temporary.pop();
        }
        self.collector.made(Values::list(made))
    }

    /// The first argument, by place or by one of its names.
    pub(super) fn argument(&mut self, call: &ExprCall, place: usize, name: &str) -> Option<Values> {
        if call.arguments.args.iter().take(place.saturating_add(1)).any(Expr::is_starred_expr)
            && let Some(given) = self.all_given(call).into_iter().nth(place)
        {
            return Some(given);
        }
        let by_place = call.arguments.args.get(place).filter(|argument| !matches!(argument, Expr::Starred(_)));
        let by_name =
            call.arguments.keywords.iter().find(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg == name));
        let expression = by_place.or_else(|| by_name.map(|keyword| &keyword.value))?;
        Some(self.value(expression))
    }
}

/// The items of a list, or the characters of a text.
pub(super) fn spread(values: &Values) -> Option<Vec<Values>> {
    // Of more values than one, only the first is gone through.
    let mut rest = values.clone();
    if values.iter().nth(1).is_some() {
        rest.add(&Values::unknown());
    }
    match values.iter().next()? {
        Value::List(items) => Some(items.iter().map(|item| item.clone().open_as(&[&rest])).collect()),
        Value::Text(text) => {
            Some(text.chars().take(MOST_ITEMS).map(|c| Values::text(c.to_string()).open_as(&[&rest])).collect())
        }
        _ => None,
    }
}

/// What a name stands for that the program does not bind.
fn builtin(name: &str) -> Values {
    match name {
        "__builtins__" => Values::thing("builtins"),
        // In a session an earlier program has imported them.
        "builtins" | "importlib" | "operator" | "pkgutil" | "runpy" | "sys" | "timeit" => Values::thing(name),
        "import_module" => Values::thing("importlib.import_module"),
        _ => Values::thing(format!("builtins.{name}")),
    }
}

fn slice_of(value: &Value, start: Option<i64>, end: Option<i64>, step: i64) -> Values {
    match value {
        Value::Text(text) => {
            let characters: Vec<char> = text.chars().collect();
            Values::text(sliced(&characters, start, end, step).into_iter().collect::<String>())
        }
        Value::List(items) => Values::list(sliced(items, start, end, step)),
        _ => Values::unknown(),
    }
}

/// `"%s%s" % ("o", "s")`, for `%s` and `%d` alone.
fn percent(collector: &mut Collector<'_>, format: &str, right: &Value) -> Option<Value> {
    let single = [right_values(right)];
    let items: &[Values] = match right {
        Value::List(items) => items,
        _ => &single,
    };
    let mut items = items.iter();
    let mut text = Values::text("");
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        text = collector.append(&text, &Values::text(before));
        text = match after.as_bytes().first()? {
            b's' | b'd' => collector.append(&text, items.next()?),
            b'%' => collector.append(&text, &Values::text("%")),
            _ => return None,
        };
        rest = &after[1..];
    }
    collector.append(&text, &Values::text(rest)).iter().next().cloned()
}

fn right_values(value: &Value) -> Values {
    match value {
        Value::Text(text) => Values::text(text.clone()),
        Value::Number(number) => Values::number(*number),
        _ => Values::unknown(),
    }
}
