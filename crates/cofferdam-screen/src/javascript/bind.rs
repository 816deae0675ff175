//! What declarations bind, and what their names hide.

use oxc_ast::ast::{BindingPattern, VariableDeclarationKind};
use oxc_span::GetSpan;

use super::fold::item;
use super::walk::Walker;
use crate::scope::{Hides, Kind};
use crate::value::Values;

impl Walker<'_, '_> {
    fn bind(&mut self, name: &str, values: &Values) {
        if !self.collector.step(self.scopes.steps()) {
            return;
        }
        match self.declares {
            // Gone when the program runs.
            _ if self.ambient => self.scopes.bind(name, values, Hides::Nowhere),
            VariableDeclarationKind::Var => self.scopes.outside(|scopes| {
                // At the top it keeps what Node has there, until it is given a value.
                let hides = if scopes.kind() == Kind::Module { Hides::Nowhere } else { Hides::Everywhere };
                scopes.bind(name, values, hides);
            }),
            _ => self.scopes.bind(name, values, Hides::Everywhere),
        }
    }

    pub(super) fn bind_pattern(&mut self, pattern: &BindingPattern<'_>, values: &Values) {
        match pattern {
            BindingPattern::BindingIdentifier(name) => self.bind(&name.name, values),
            BindingPattern::AssignmentPattern(inner) => {
                let values = self.value(&inner.right).or(values);
                self.bind_pattern(&inner.left, &values);
            }
            BindingPattern::ObjectPattern(inner) => {
                for each in &inner.properties {
                    let key = match each.key.static_name() {
                        Some(name) => Values::text(&*name),
                        None => each.key.as_expression().map(|key| self.value(key)).unwrap_or_default(),
                    };
                    for name in key.texts() {
                        self.check_attribute(name, each.key.span());
                    }
                    let taken = item(values, &key);
                    self.check_key(values, &key, each.key.span());
                    self.check_thing(&taken, values, each.span);
                    self.bind_pattern(&each.value, &taken);
                }
                if let Some(rest) = &inner.rest {
                    self.bind_pattern(&rest.argument, values);
                }
            }
            BindingPattern::ArrayPattern(inner) => {
                for (index, each) in inner.elements.iter().enumerate() {
                    let at = Values::number(i64::try_from(index).unwrap_or(i64::MAX));
                    let taken = item(values, &at);
                    if let Some(each) = each {
                        self.bind_pattern(each, &taken);
                    }
                }
                if let Some(rest) = &inner.rest {
                    self.bind_pattern(&rest.argument, &Values::unknown());
                }
            }
        }
    }

    /// Binds the name of a function that is declared here. Around a block it is there once the block has run, if the code is
    /// no module, is not strict, and the name is none of a parameter.
    pub(super) fn declare_function(&mut self, name: &str) {
        let values = Values::unknown();
        self.scopes.bind(name, &values, Hides::Everywhere);
        if self.scopes.kind() == Kind::Block {
            self.scopes.outside(|scopes| scopes.bind(name, &values, Hides::Nowhere));
        }
    }

    pub(super) fn bind_local(&mut self, pattern: &BindingPattern<'_>, values: &Values) {
        let before = std::mem::replace(&mut self.declares, VariableDeclarationKind::Let);
        let outside = std::mem::replace(&mut self.ambient, false);
        self.bind_pattern(pattern, values);
        (self.declares, self.ambient) = (before, outside);
    }
}
