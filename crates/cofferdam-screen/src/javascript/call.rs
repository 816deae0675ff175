//! What calls of known functions give, and which of them import or run code.

use oxc_ast::ast::{Argument, CallExpression, Expression};

use super::fold::{MOST_ITEMS, item};
use super::object::{Called, MODULE, PROTOTYPE, called, module};
use super::walk::Walker;
use crate::collect::Collector;
use crate::value::{MOST_TEXT, Value, Values, sliced};

/// Functions that run their first argument as code.
const RUNNERS: &[&str] = &[
    "module._compile",
    "vm.runInThisContext",
    "vm.runInNewContext",
    "vm.runInContext",
    "vm.Script",
    "vm.compileFunction",
];

/// A function and what it is given.
pub(super) struct Use {
    pub path: String,
    pub arguments: Vec<Values>,
}

impl Walker<'_, '_> {
    /// What the call gives.
    pub(super) fn call(&mut self, call: &CallExpression<'_>) -> Values {
        let mut made = Values::unknown();
        if let Some(known) = self.method(call) {
            made.add(&known);
        }
        for Use { path, arguments } in self.uses(&call.callee, &call.arguments) {
            made.add(&result(self.collector, &path, &arguments));
        }
        made
    }

    /// All functions that a call may be of, with the arguments that they get.
    pub(super) fn uses(&mut self, callee: &Expression<'_>, arguments: &[Argument<'_>]) -> Vec<Use> {
        let function = self.value(callee);
        let things: Vec<_> = function.things().map(|thing| thing.path.clone()).collect();
        if things.is_empty() {
            return Vec::new();
        }
        let given: Vec<Values> = arguments.iter().take(MOST_ITEMS).map(|argument| self.argument(argument)).collect();
        things.iter().map(|path| used(path, given.clone())).collect()
    }

    fn argument(&mut self, argument: &Argument<'_>) -> Values {
        argument.as_expression().map(|expression| self.value(expression)).unwrap_or_default()
    }

    /// A method of a text or of a list.
    fn method(&mut self, call: &CallExpression<'_>) -> Option<Values> {
        let member = call.callee.as_member_expression()?;
        let object = self.value(member.object());
        if object.texts().next().is_none() && object.lists().next().is_none() {
            return None;
        }
        let name = match member.static_property_name() {
            Some(name) => name.to_owned(),
            None => return None,
        };
        let arguments: Vec<Values> = call.arguments.iter().take(4).map(|argument| self.argument(argument)).collect();
        let length = object.size().0 + arguments.iter().map(|argument| argument.size().0).sum::<usize>();
        if !self.collector.step(length) {
            return None;
        }
        let numbers = [0, 1].map(|place| arguments.get(place).and_then(|values| values.numbers().next()));
        Some(object.each(|value| match value {
            Value::Text(text) => text_method(self.collector, text, &name, &arguments, numbers),
            Value::List(items) => list_method(self.collector, items, &name, &arguments, numbers),
            _ => Values::unknown(),
        }))
    }
}

fn list_method(
    collector: &mut Collector<'_>,
    items: &[Values],
    name: &str,
    arguments: &[Values],
    numbers: [Option<i64>; 2],
) -> Values {
    let first = arguments.first().cloned().unwrap_or_default();
    match name {
        "join" if arguments.is_empty() => collector.join(",", items),
        "join" => first.texts().next().map(|separator| collector.join(separator, items)).unwrap_or_default(),
        "reverse" | "toReversed" => Values::list(items.iter().rev().cloned().collect()),
        "concat" => {
            let added = first.lists().next().map_or_else(|| vec![first.clone()], |list| list.to_vec());
            Values::list(items.iter().cloned().chain(added).take(MOST_ITEMS).collect())
        }
        "slice" => Values::list(sliced(items, numbers[0], numbers[1], 1)),
        "at" => item(&Values::list(items.to_vec()), &first),
        "map" if first.is_thing("String") => Values::list(items.to_vec()),
        "map" if first.is_thing("String.fromCharCode") || first.is_thing("String.fromCodePoint") => {
            Values::list(items.iter().map(character).collect())
        }
        _ => Values::unknown(),
    }
}

fn text_method(
    collector: &mut Collector<'_>,
    text: &str,
    name: &str,
    arguments: &[Values],
    numbers: [Option<i64>; 2],
) -> Values {
    let first = arguments.first().cloned().unwrap_or_default();
    let characters = || -> Vec<char> { text.chars().collect() };
    let part = |start, end| Values::text(sliced(&characters(), start, end, 1).into_iter().collect::<String>());
    match name {
        "concat" => arguments.iter().fold(Values::text(text), |text, more| collector.append(&text, more)),
        "toLowerCase" => Values::text(text.to_lowercase()),
        "toUpperCase" => Values::text(text.to_uppercase()),
        "trim" => Values::text(text.trim()),
        "toString" | "valueOf" | "normalize" => Values::text(text),
        "slice" => part(numbers[0], numbers[1]),
        "substring" | "substr" if name == "substring" => {
            part(numbers[0].map(|at| at.max(0)), numbers[1].map(|at| at.max(0)))
        }
        "charAt" | "at" => numbers[0].map_or_else(Values::unknown, |at| item(&Values::text(text), &Values::number(at))),
        "split" => first.each(|separator| match separator {
            Value::Text(separator) if separator.is_empty() => {
                Values::list(text.chars().take(MOST_ITEMS).map(|c| Values::text(c.to_string())).collect())
            }
            Value::Text(separator) => {
                Values::list(text.split(&**separator).take(MOST_ITEMS).map(Values::text).collect())
            }
            _ => Values::unknown(),
        }),
        "repeat" => {
            let times = usize::try_from(numbers[0].unwrap_or(-1)).unwrap_or(usize::MAX);
            let fits = text.len().saturating_mul(times) <= 1024;
            if fits { Values::text(text.repeat(times)) } else { Values::unknown() }
        }
        "replace" | "replaceAll" => first.with(&arguments.get(1).cloned().unwrap_or_default(), |from, to| {
            let (Value::Text(from), Value::Text(to)) = (from, to) else { return None };
            let most = text.len().saturating_add(1).saturating_mul(to.len().max(1));
            let replaced = || match name {
                "replace" => text.replacen(&**from, to, 1),
                _ => text.replace(&**from, to),
            };
            (most <= MOST_TEXT).then(|| Value::Text(replaced().into()))
        }),
        _ => Values::unknown(),
    }
}

/// The function behind `call` and its like, and `Reflect`.
fn used(path: &str, mut arguments: Vec<Values>) -> Use {
    let shift = |arguments: &mut Vec<Values>| {
        if arguments.is_empty() { Values::unknown() } else { arguments.remove(0) }
    };
    let listed = |values: &Values| values.lists().next().map(|list| list.to_vec()).unwrap_or_default();
    match path {
        "Reflect.apply" | "Reflect.construct" => {
            let function = shift(&mut arguments);
            if path == "Reflect.apply" {
                shift(&mut arguments);
            }
            let list = listed(&shift(&mut arguments));
            let path = function.things().next().map_or_else(|| path.to_owned(), |thing| thing.path.to_string());
            Use { path, arguments: list }
        }
        _ => {
            let (function, how) = called(path);
            if matches!(how, Called::Call | Called::Apply) {
                shift(&mut arguments);
            }
            let arguments = match how {
                Called::Apply => listed(&shift(&mut arguments)),
                _ => arguments,
            };
            let path = if how == Called::Bind { path } else { function };
            Use { path: path.to_owned(), arguments }
        }
    }
}

fn result(collector: &mut Collector<'_>, path: &str, arguments: &[Values]) -> Values {
    let first = arguments.first().cloned().unwrap_or_default();
    match path {
        "require" => first.each(|name| match name {
            Value::Text(name) => module(name),
            _ => Values::unknown(),
        }),
        "createRequire" => Values::thing("require"),
        "Reflect.get" => arguments.get(1).map(|key| item(&first, key)).unwrap_or_default(),
        "Object.getPrototypeOf" | "Reflect.getPrototypeOf" if first.is_thing("module") => Values::thing("module"),
        "Object.getPrototypeOf" | "Reflect.getPrototypeOf" if first.things().next().is_some() => {
            Values::thing(PROTOTYPE)
        }
        "String" => collector.append(&Values::text(""), &first),
        "String.fromCharCode" | "String.fromCodePoint" => {
            let characters: Vec<Values> = arguments.iter().map(character).collect();
            collector.join("", &characters)
        }
        _ => match path.strip_suffix(".bind") {
            Some(function) => Values::thing(function),
            None => Values::unknown(),
        },
    }
}

fn character(values: &Values) -> Values {
    values.each(|value| match value {
        Value::Number(number) => {
            let c = u32::try_from(*number).ok().and_then(char::from_u32);
            c.map_or_else(Values::unknown, |c| Values::text(c.to_string()))
        }
        _ => Values::unknown(),
    })
}

impl Use {
    /// What it imports, if it imports: unknown is something that only the running program knows.
    pub fn imported(&self) -> Option<Values> {
        (self.path == "require").then(|| self.arguments.first().cloned().unwrap_or_default())
    }

    /// The code in a text that it runs, and its name.
    pub fn run(&self) -> Option<(&str, Values)> {
        let name = self.path.strip_prefix(MODULE).unwrap_or(&self.path);
        let code = match name {
            "eval" => self.arguments.first(),
            // The last is the body, the others are names of arguments.
            "Function" => self.arguments.last(),
            _ if RUNNERS.contains(&name) => self.arguments.first(),
            _ => None,
        }?;
        Some((name, code.clone()))
    }
}
