//! What an expression is, as far as that shows without running it.

use oxc_ast::ast::{
    ArrayExpressionElement, BinaryOperator, CallExpression, ChainElement, Expression, MemberExpression,
    TemplateLiteral, UnaryOperator,
};

use super::MOST_LEVELS;
use super::object::{ARGUMENTS, LOADED, given, global, is_known, module, property};
use super::walk::Walker;
use crate::scope::Seen;
use crate::value::{Value, Values, joined};

/// Items of a list that are told apart.
pub(super) const MOST_ITEMS: usize = 4096;

impl Walker<'_, '_> {
    /// What the expression may be.
    pub(super) fn value(&mut self, expression: &Expression<'_>) -> Values {
        let key = std::ptr::from_ref(expression).addr();
        if let Some(values) = self.memo.get(&key) {
            return values.clone();
        }
        if self.folds >= MOST_LEVELS || !self.collector.step(1) {
            self.collector.truncate();
            return Values::unknown();
        }
        self.folds += 1;
        let values = self.fold(expression);
        self.folds -= 1;
        if expression.is_member_expression()
            || matches!(expression, Expression::CallExpression(_) | Expression::ChainExpression(_))
        {
            self.memo.insert(key, values.clone());
        }
        values
    }

    fn fold(&mut self, expression: &Expression<'_>) -> Values {
        match expression {
            Expression::StringLiteral(literal) => Values::text(literal.value.as_str()),
            Expression::NumericLiteral(literal) => integer(literal.value),
            Expression::TemplateLiteral(template) => self.template(template),
            Expression::Identifier(name) => self.name(&name.name),
            Expression::ArrayExpression(array) => {
                if array.elements.len() > MOST_ITEMS || !self.collector.step(array.elements.len()) {
                    return Values::unknown();
                }
                let items = array.elements.iter().map(|element| match element {
                    ArrayExpressionElement::SpreadElement(_) | ArrayExpressionElement::Elision(_) => Values::unknown(),
                    element => element.as_expression().map(|item| self.value(item)).unwrap_or_default(),
                });
                let list = Values::list(items.collect());
                self.collector.made(list)
            }
            Expression::BinaryExpression(binary) => {
                let left = self.value(&binary.left);
                if left.is_unknown() {
                    return left;
                }
                let right = self.value(&binary.right);
                self.binary(&left, binary.operator, &right)
            }
            Expression::UnaryExpression(unary) if unary.operator == UnaryOperator::UnaryNegation => {
                self.value(&unary.argument).each(|value| match value {
                    Value::Number(number) => number.checked_neg().map_or_else(Values::unknown, Values::number),
                    _ => Values::unknown(),
                })
            }
            Expression::LogicalExpression(choice) => self.value(&choice.left).or(&self.value(&choice.right)),
            Expression::ConditionalExpression(choice) => {
                self.value(&choice.consequent).or(&self.value(&choice.alternate))
            }
            Expression::SequenceExpression(sequence) => {
                sequence.expressions.last().map(|last| self.value(last)).unwrap_or_default()
            }
            Expression::AssignmentExpression(assignment) => self.value(&assignment.right),
            Expression::ParenthesizedExpression(inner) => self.value(&inner.expression),
            Expression::AwaitExpression(inner) => self.value(&inner.argument),
            Expression::TSAsExpression(inner) => self.value(&inner.expression),
            Expression::TSSatisfiesExpression(inner) => self.value(&inner.expression),
            Expression::TSNonNullExpression(inner) => self.value(&inner.expression),
            Expression::TSTypeAssertion(inner) => self.value(&inner.expression),
            Expression::TSInstantiationExpression(inner) => self.value(&inner.expression),
            Expression::ImportExpression(import) => self.value(&import.source).each(|source| match source {
                Value::Text(name) => module(name),
                _ => Values::unknown(),
            }),
            Expression::CallExpression(call) => self.charged_call(call),
            // `new Module("x").require("fs")`
            Expression::NewExpression(new) if self.value(&new.callee).is_thing("module:module") => {
                Values::thing("module")
            }
            Expression::NewExpression(_) => Values::unknown(),
            Expression::ChainExpression(chain) => match &chain.expression {
                ChainElement::CallExpression(call) => self.charged_call(call),
                ChainElement::TSNonNullExpression(inner) => self.value(&inner.expression),
                element => element.as_member_expression().map(|member| self.member(member)).unwrap_or_default(),
            },
            // In a class it is an object of its own.
            Expression::ThisExpression(_) if self.classes == 0 => Values::thing("this"),
            Expression::FunctionExpression(_) | Expression::ArrowFunctionExpression(_) => Values::thing("function"),
            expression => expression.as_member_expression().map(|member| self.member(member)).unwrap_or_default(),
        }
    }

    fn charged_call(&mut self, call: &CallExpression<'_>) -> Values {
        let made = self.call(call);
        self.collector.made(made)
    }

    pub(super) fn member(&mut self, member: &MemberExpression<'_>) -> Values {
        match member {
            MemberExpression::StaticMemberExpression(member) => {
                let object = self.value(&member.object);
                property(&object, &member.property.name)
            }
            MemberExpression::ComputedMemberExpression(member) => {
                let object = self.value(&member.object);
                let key = self.value(&member.expression);
                item(&object, &key)
            }
            MemberExpression::PrivateFieldExpression(_) => Values::unknown(),
        }
    }

    /// What a name stands for here.
    pub(super) fn name(&mut self, name: &str) -> Values {
        let Seen { values, bound, builtin_too } = self.scopes.look_up(name, self.collector);
        let mut all = values;
        if builtin_too && name == "arguments" && self.functions == 0 {
            all.add(&Values::thing(ARGUMENTS));
        } else if builtin_too && (!bound || self.is_global(name)) {
            all.add(&global(name));
        }
        all
    }

    /// Whether Node has something by this name that leads anywhere, or is followed.
    fn is_global(&self, name: &str) -> bool {
        let calls = self.collector.lists.calls;
        is_known(name) || calls.iter().any(|call| call.split('.').next() == Some(name))
    }

    pub(super) fn template(&mut self, template: &TemplateLiteral<'_>) -> Values {
        let mut text = Values::text("");
        for (index, quasi) in template.quasis.iter().enumerate() {
            let Some(cooked) = &quasi.value.cooked else { return Values::unknown() };
            text = self.collector.append(&text, &Values::text(cooked.as_str()));
            if let Some(expression) = template.expressions.get(index) {
                text = {
                    let part = self.value(expression);
                    self.collector.append(&text, &part)
                };
            }
            if text.is_unknown() {
                break;
            }
        }
        text
    }

    fn binary(&mut self, left: &Values, operator: BinaryOperator, right: &Values) -> Values {
        // The work is that of the texts, not of the tree.
        let ((left_bytes, left_items), (right_bytes, right_items)) = (left.size(), right.size());
        let pairs = |bytes: usize, others: &Values| bytes.saturating_mul(others.iter().count());
        let bytes = pairs(left_bytes, right).saturating_add(pairs(right_bytes, left));
        if !self.collector.step((bytes / 16).saturating_add(left_items + right_items)) {
            return Values::unknown();
        }
        let made = left.with(right, |left, right| match (left, operator, right) {
            (Value::Number(left), operator, Value::Number(right)) => match operator {
                BinaryOperator::Addition => left.checked_add(*right),
                BinaryOperator::Subtraction => left.checked_sub(*right),
                BinaryOperator::Multiplication => left.checked_mul(*right),
                BinaryOperator::BitwiseXOR => Some(left ^ right),
                _ => None,
            }
            .map(Value::Number),
            (left, BinaryOperator::Addition, right) => joined(&left.shown()?, &right.shown()?),
            _ => None,
        });
        self.collector.made(made)
    }
}

/// A number without a fraction, of those that stand for characters and places.
fn integer(number: f64) -> Values {
    let whole = number as i64;
    if whole as f64 == number && whole.unsigned_abs() < 1 << 53 { Values::number(whole) } else { Values::unknown() }
}

/// What stands behind a key or a number.
pub(super) fn item(object: &Values, key: &Values) -> Values {
    let mut found = Values::unknown();
    if object.things().any(|thing| LOADED.contains(&&*thing.path)) {
        found.add(&Values::thing("module"));
    }
    for name in key.texts() {
        found.add(&property(object, name));
    }
    if object.is_thing(ARGUMENTS) {
        for number in key.numbers() {
            found.add(&given(number));
        }
    }
    for number in key.numbers().filter(|number| *number >= 0) {
        for list in object.lists() {
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            found.add(list.get(at).unwrap_or(&Values::unknown()));
        }
        for text in object.texts() {
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            let plain = text.is_ascii().then(|| text.as_bytes().get(at).map(|byte| char::from(*byte)));
            if let Some(c) = plain.unwrap_or_else(|| text.chars().nth(at)) {
                found.add(&Values::text(c.to_string()));
            }
        }
    }
    found.open_as(&[object, key])
}
