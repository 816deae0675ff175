//! What imports modules, and where it is handed on so that nobody sees what for; and what assignments bind.

use oxc_ast::ast::{
    Argument, AssignmentTarget, AssignmentTargetMaybeDefault, AssignmentTargetProperty, CallExpression, Expression,
    PropertyKey,
};
use oxc_span::{GetSpan, Span};

use super::call::Use;
use super::fold::item;
use super::object::{LOADED, MODULE, called, property};
use super::walk::Walker;
use crate::value::Values;

/// Functions that import, or give one that does.
const IMPORTERS: &[&str] = &["require", "createRequire"];
/// Objects of which one name or another leads to modules and code.
const SENSITIVE: &[&str] = &["globalThis", "process", "module", "module:module"];
/// Functions that give what is in an object.
const TAKING_APART: &[&str] = &[
    "Object.assign",
    "Object.create",
    "Object.entries",
    "Object.getOwnPropertyDescriptor",
    "Object.getOwnPropertyDescriptors",
    "Object.values",
    "Reflect.getOwnPropertyDescriptor",
];

impl Walker<'_, '_> {
    /// What a call is given: what imports goes with it where nobody follows.
    pub(super) fn hand_on_arguments(&mut self, callee: &Expression<'_>, arguments: &[Argument<'_>]) {
        let function = self.value(callee);
        if function.things().any(|thing| TAKING_APART.contains(&&*thing.path)) {
            for argument in arguments.iter().filter_map(Argument::as_expression) {
                self.take_apart(argument);
            }
        }
        // What these do with it is known.
        if function.things().any(|thing| thing.path.starts_with("Reflect.")) {
            return;
        }
        for argument in arguments.iter().filter_map(Argument::as_expression) {
            self.hand_on(argument);
        }
    }

    /// Says that all that is in an object goes where nobody follows, if something there leads anywhere.
    pub(super) fn take_apart(&mut self, expression: &Expression<'_>) {
        let leads = self
            .value(expression)
            .things()
            .any(|thing| SENSITIVE.contains(&&*thing.path) || LOADED.contains(&&*thing.path));
        if leads {
            self.dynamic(expression.span(), "takes apart what can import or run anything");
        }
    }

    /// Says that what imports modules is handed on here, if it is.
    pub(super) fn hand_on(&mut self, expression: &Expression<'_>) {
        let imports = self.value(expression).things().any(|thing| IMPORTERS.contains(&called(&thing.path).0));
        if imports {
            self.dynamic(expression.span(), "hands on what can import any module");
        }
    }

    /// Says that something is got by a name that only the running program knows, of what has names that lead anywhere.
    pub(super) fn check_key(&mut self, object: &Values, key: &Values, span: Span) {
        let written = self.written.take_if(|written| *written == span).is_some();
        let unclear = key.is_open() || (key.texts().next().is_none() && key.numbers().next().is_none());
        if unclear && !written && object.things().any(|thing| SENSITIVE.contains(&&*thing.path)) {
            self.dynamic(span, "gets by a name that only the running program knows what can import or run anything");
        }
    }

    /// The same of `Reflect.get`, however it is called, and where it is bound to what has such names.
    pub(super) fn check_got(&mut self, used: &Use, span: Span) {
        let first = used.arguments.first().cloned().unwrap_or_default();
        match used.path.as_str() {
            "Reflect.get" => {
                let key = used.arguments.get(1).cloned().unwrap_or_default();
                self.check_key(&first, &key, span);
            }
            "Reflect.get.bind" => {
                let bound = used.arguments.get(1).cloned().unwrap_or_default();
                self.check_key(&bound, &Values::unknown(), span);
            }
            _ => {}
        }
    }

    /// The object that a call takes something from, if it is a module, or what it imports by itself.
    pub(super) fn first_module(&mut self, call: &CallExpression<'_>) -> Values {
        // What `require` gives was reported as an import.
        if self.uses(&call.callee, &call.arguments).iter().any(|used| used.imported().is_some()) {
            return Values::thing(MODULE);
        }
        let first = call.arguments.first().and_then(|argument| argument.as_expression());
        first.map(|first| self.value(first)).unwrap_or_default()
    }

    /// Binds the names in what is given a value, as `({ eval: x, y = require } = globalThis)`.
    pub(super) fn assign(&mut self, target: &AssignmentTarget<'_>, values: &Values) {
        match target {
            AssignmentTarget::AssignmentTargetIdentifier(name) => self.assign_name(&name.name, values),
            AssignmentTarget::ObjectAssignmentTarget(object) => {
                for each in &object.properties {
                    self.assign_property(each, values);
                }
                if let Some(rest) = &object.rest {
                    self.assign(&rest.target, values);
                }
            }
            AssignmentTarget::ArrayAssignmentTarget(array) => {
                for (index, each) in array.elements.iter().enumerate() {
                    let at = Values::number(i64::try_from(index).unwrap_or(i64::MAX));
                    if let Some(each) = each {
                        self.assign_or_default(each, &item(values, &at));
                    }
                }
            }
            _ => {}
        }
    }

    /// Gives a name another value.
    pub(super) fn assign_name(&mut self, name: &str, values: &Values) {
        if self.collector.step(self.scopes.steps()) {
            self.scopes.assign(name, values);
        }
    }

    fn assign_property(&mut self, each: &AssignmentTargetProperty<'_>, values: &Values) {
        match each {
            AssignmentTargetProperty::AssignmentTargetPropertyIdentifier(each) => {
                let mut taken = property(values, &each.binding.name);
                self.check_thing(&taken, values, each.span);
                if let Some(default) = &each.init {
                    taken = self.value(default).or(&taken);
                }
                self.assign_name(&each.binding.name, &taken);
            }
            AssignmentTargetProperty::AssignmentTargetPropertyProperty(each) => {
                let key = self.key(&each.name);
                let taken = item(values, &key);
                self.check_key(values, &key, each.name.span());
                self.check_thing(&taken, values, each.span);
                self.assign_or_default(&each.binding, &taken);
            }
        }
    }

    fn assign_or_default(&mut self, target: &AssignmentTargetMaybeDefault<'_>, values: &Values) {
        match target {
            AssignmentTargetMaybeDefault::AssignmentTargetWithDefault(with) => {
                let values = self.value(&with.init).or(values);
                self.assign(&with.binding, &values);
            }
            target => {
                if let Some(target) = target.as_assignment_target() {
                    self.assign(target, values);
                }
            }
        }
    }

    fn key(&mut self, key: &PropertyKey<'_>) -> Values {
        match key.static_name() {
            Some(name) => Values::text(&*name),
            None => key.as_expression().map(|key| self.value(key)).unwrap_or_default(),
        }
    }
}
