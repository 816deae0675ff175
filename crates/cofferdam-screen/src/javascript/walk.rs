//! Goes through a program: binds names, and says what is not wanted.

use std::cell::Cell;
use std::collections::HashMap;

use oxc_ast::ast::{
    ArrayExpression, ArrowFunctionBody, AssignmentExpression, AssignmentTarget, BinaryExpression, BindingPattern,
    CallExpression, CatchParameter, Class, ComputedMemberExpression, ExportAllDeclaration, ExportDefaultDeclaration,
    ExportFromDeclaration, Expression, ForInStatement, ForOfStatement, ForStatementLeft, FormalParameter, Function,
    FunctionType, IdentifierReference, IfStatement, ImportDeclaration, ImportDeclarationSpecifier, ImportExpression,
    ImportOrExportKind, NewExpression, ObjectProperty, Program, PropertyDefinition, ReturnStatement,
    SimpleAssignmentTarget, SpreadElement, Statement, StaticMemberExpression, TSImportEqualsDeclaration,
    TSModuleReference, TSType, TSTypeAnnotation, TSTypeParameterDeclaration, TSTypeParameterInstantiation,
    ThrowStatement, VariableDeclaration, VariableDeclarationKind, VariableDeclarator, YieldExpression,
};
use oxc_ast_visit::{Visit, walk};
use oxc_span::{GetSpan, Span};
use oxc_syntax::operator::{AssignmentOperator, BinaryOperator};
use oxc_syntax::scope::{ScopeFlags, ScopeId};

use super::call::Use;
use super::object::{self, ARGUMENTS, MODULE, module, names, plain, property};
use super::{MOST_LEVELS, MOST_NESTED, depth, each_reading, read};
use crate::collect::Collector;
use crate::report::Rule;
use crate::scope::{Hides, Kind, Scopes};
use crate::value::Values;

/// One walk through one tree.
pub(super) struct Walker<'c, 'r> {
    pub collector: &'c mut Collector<'r>,
    pub scopes: Scopes,
    /// What expressions were found to be, by where their nodes are in memory.
    pub memo: HashMap<usize, Values>,
    /// Expressions that are being folded in each other.
    pub folds: usize,
    pub too_deep: bool,
    reports: bool,
    level: usize,
    nested: usize,
    outer_scopes: Vec<usize>,
    /// What is declared now.
    pub declares: VariableDeclarationKind,
    /// What the loop around the next declaration runs through.
    looped: Option<Values>,
    /// Only the type of what is declared is told, by TypeScript's `declare`.
    pub ambient: bool,
    /// A name that is looked at, not used: its place.
    looked_at: Option<u32>,
    /// What is given a value now.
    pub written: Option<Span>,
    /// Classes around, whose `this` is an object of their own.
    pub classes: usize,
    /// Functions around that have `arguments` of their own.
    pub functions: usize,
}

impl<'c, 'r> Walker<'c, 'r> {
    pub fn new(
        collector: &'c mut Collector<'r>,
        mut scopes: Scopes,
        reports: bool,
        level: usize,
        nested: usize,
    ) -> Self {
        scopes.rewind();
        Self {
            collector,
            scopes,
            memo: HashMap::new(),
            folds: level,
            too_deep: false,
            reports,
            level,
            nested,
            outer_scopes: Vec::new(),
            declares: VariableDeclarationKind::Let,
            looped: None,
            ambient: false,
            looked_at: None,
            written: None,
            classes: 0,
            functions: 0,
        }
    }

    pub fn program(&mut self, program: &Program<'_>) {
        for statement in &program.body {
            self.visit_statement(statement);
        }
    }

    pub fn into_scopes(self) -> Scopes {
        self.scopes
    }

    fn report(&mut self, rule: Rule, span: Span, why: impl Into<String>) {
        if self.reports {
            self.collector.report(rule, bytes(span), why);
        }
    }

    /// Takes one level, if there is one left.
    fn deeper(&mut self, work: impl FnOnce(&mut Self)) {
        if self.level >= MOST_LEVELS {
            self.too_deep = true;
            return;
        }
        self.level += 1;
        work(self);
        self.level -= 1;
    }

    // Imports.

    /// Says what a statement imports by a name that stands in it.
    fn import(&mut self, source: &str, span: Span) {
        let name = plain(source);
        let lists = &self.collector.lists;
        // A module of Node alone is listed as such.
        let whole = lists.unwanted_import(source).filter(|_| name != source);
        if let Some(entry) = lists.unwanted_import(name).or(whole) {
            self.report(Rule::Import(entry.to_owned()), span, format!("imports {name}"));
        } else if name.trim_start().get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
            self.dynamic(span, "imports code that stands in a text");
        }
    }

    /// Says what an expression imports.
    fn import_of(&mut self, source: &Values, span: Span) {
        if source.texts().next().is_none() {
            self.dynamic(span, "imports a module that only the running program knows");
        } else if source.is_open() {
            self.dynamic(span, "imports a module that perhaps only the running program knows");
        }
        if source.has_dropped() {
            self.collector.truncate();
        }
        for name in names(source) {
            self.import(&name, span);
        }
    }

    pub(super) fn dynamic(&mut self, span: Span, why: &str) {
        if self.collector.lists.dynamic_imports {
            self.report(Rule::DynamicImport, span, why);
        }
    }

    // What is not wanted.

    pub(super) fn check_attribute(&mut self, name: &str, span: Span) {
        if let Some(attribute) = self.collector.lists.unwanted_attribute(name) {
            self.report(Rule::Attribute(attribute.to_owned()), span, format!("uses the attribute {attribute}"));
        }
    }

    fn check_calls(&mut self, values: &Values, span: Span) {
        if values.has_dropped() && values.things().next().is_some() {
            self.collector.truncate();
        }
        for thing in values.things() {
            let path = thing.path.strip_prefix(MODULE).unwrap_or(&thing.path);
            if let Some(call) = self.collector.lists.unwanted_call(path) {
                self.report(Rule::Call(call.to_owned()), span, format!("uses {call}"));
            }
        }
    }

    /// What was got from an object: a function that is not wanted, or a module that nobody imported.
    pub(super) fn check_thing(&mut self, values: &Values, object: &Values, span: Span) {
        self.check_calls(values, span);
        for thing in values.things() {
            let Some(module) = object::module_of(thing) else { continue };
            let Some(entry) = self.collector.lists.unwanted_import(module) else { continue };
            if !object.things().any(|from| object::module_of(from).is_some()) {
                self.report(Rule::Import(entry.to_owned()), span, format!("reaches {module}"));
            }
        }
    }

    fn check_use(&mut self, used: &Use, span: Span) {
        if let Some(source) = used.imported() {
            self.import_of(&source, span);
        }
        self.check_got(used, span);
        if self.reports
            && self.nested < MOST_NESTED
            && let Some((taker, code)) = used.run()
        {
            if code.has_dropped() {
                self.collector.truncate();
            }
            for text in names(&code) {
                self.read_text(&text, span, taker);
            }
        }
    }

    /// Screens the code in a text. One that is no code does nothing when it runs, either.
    fn read_text(&mut self, text: &str, span: Span, taker: &str) {
        // Each name that is seen from the text is copied for it.
        if text.trim().is_empty() || !self.collector.step(self.scopes.count_from_here() + 64) {
            return;
        }
        let (level, nested) = (self.level + 1, self.nested + 1);
        let scopes = self.scopes.seen_from_here();
        let mut deep = false;
        self.collector.nested(text, bytes(span), taker, |collector| {
            deep = depth::check_nested(text).is_err();
            if !deep {
                // What is no program does nothing when it runs.
                let _ = each_reading(text, false, |program, _| {
                    deep |= !read(program, collector, scopes.clone(), level, nested);
                });
            }
        });
        self.too_deep |= deep;
    }

    fn check_member(&mut self, object: &Expression<'_>, taken: &Values, span: Span) {
        let object = self.value(object);
        self.check_thing(taken, &object, span);
    }
}

fn bytes(span: Span) -> crate::collect::Span {
    (span.start as usize, span.end as usize)
}

impl<'a> Visit<'a> for Walker<'_, '_> {
    fn enter_scope(&mut self, flags: ScopeFlags, _: &Cell<Option<ScopeId>>) {
        let kind = if flags.intersects(ScopeFlags::Var) { Kind::Function } else { Kind::Block };
        let before = self.scopes.enter(kind);
        self.outer_scopes.push(before);
    }

    fn leave_scope(&mut self) {
        if let Some(before) = self.outer_scopes.pop() {
            self.scopes.leave(before);
        }
    }

    fn visit_statement(&mut self, it: &Statement<'a>) {
        self.deeper(|walker| walk::walk_statement(walker, it));
    }

    fn visit_expression(&mut self, it: &Expression<'a>) {
        self.deeper(|walker| walk::walk_expression(walker, it));
    }

    fn visit_binding_pattern(&mut self, it: &BindingPattern<'a>) {
        self.deeper(|walker| walk::walk_binding_pattern(walker, it));
    }

    fn visit_assignment_target(&mut self, it: &AssignmentTarget<'a>) {
        self.deeper(|walker| walk::walk_assignment_target(walker, it));
    }

    // Types are gone when the program runs.
    fn visit_ts_type(&mut self, _: &TSType<'a>) {}
    fn visit_ts_type_annotation(&mut self, _: &TSTypeAnnotation<'a>) {}
    fn visit_ts_type_parameter_declaration(&mut self, _: &TSTypeParameterDeclaration<'a>) {}
    fn visit_ts_type_parameter_instantiation(&mut self, _: &TSTypeParameterInstantiation<'a>) {}

    fn visit_import_declaration(&mut self, it: &ImportDeclaration<'a>) {
        if it.import_kind == ImportOrExportKind::Type {
            return;
        }
        self.import(&it.source.value, it.span);
        let from = module(&it.source.value);
        for specifier in it.specifiers.iter().flatten() {
            if matches!(specifier, ImportDeclarationSpecifier::ImportSpecifier(each) if each.import_kind == ImportOrExportKind::Type)
            {
                continue;
            }
            let (local, values) = match specifier {
                ImportDeclarationSpecifier::ImportSpecifier(each) => {
                    let values = property(&from, &each.imported.name());
                    self.check_calls(&values, each.span);
                    self.check_attribute(&each.imported.name(), each.span);
                    (&each.local, values)
                }
                ImportDeclarationSpecifier::ImportDefaultSpecifier(each) => (&each.local, from.clone()),
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(each) => (&each.local, from.clone()),
            };
            self.scopes.bind(&local.name, &values, Hides::Everywhere);
        }
    }

    fn visit_export_from_declaration(&mut self, it: &ExportFromDeclaration<'a>) {
        if it.export_kind == ImportOrExportKind::Value {
            self.import(&it.source.value, it.span);
        }
    }

    fn visit_export_all_declaration(&mut self, it: &ExportAllDeclaration<'a>) {
        if it.export_kind == ImportOrExportKind::Value {
            self.import(&it.source.value, it.span);
        }
    }

    fn visit_ts_import_equals_declaration(&mut self, it: &TSImportEqualsDeclaration<'a>) {
        if it.import_kind == ImportOrExportKind::Type {
            return;
        }
        let mut values = Values::unknown();
        if let TSModuleReference::ExternalModuleReference(reference) = &it.module_reference {
            self.import(&reference.expression.value, it.span);
            values = module(&reference.expression.value);
        }
        self.scopes.bind(&it.id.name, &values, Hides::Everywhere);
    }

    fn visit_import_expression(&mut self, it: &ImportExpression<'a>) {
        let source = self.value(&it.source);
        self.import_of(&source, it.span);
        walk::walk_import_expression(self, it);
    }

    fn visit_call_expression(&mut self, it: &CallExpression<'a>) {
        for used in self.uses(&it.callee, &it.arguments) {
            self.check_use(&used, it.span);
        }
        self.hand_on_arguments(&it.callee, &it.arguments);
        // `Reflect.get(globalThis, "eval")`
        let given = self.call(it);
        let given = self.collector.made(given);
        let from = self.first_module(it);
        self.check_thing(&given, &from, it.span);
        walk::walk_call_expression(self, it);
    }

    fn visit_new_expression(&mut self, it: &NewExpression<'a>) {
        for used in self.uses(&it.callee, &it.arguments) {
            self.check_use(&used, it.span);
        }
        self.hand_on_arguments(&it.callee, &it.arguments);
        walk::walk_new_expression(self, it);
    }

    fn visit_identifier_reference(&mut self, it: &IdentifierReference<'a>) {
        if self.looked_at == Some(it.span.start) {
            return;
        }
        let values = self.name(&it.name);
        self.check_calls(&values, it.span);
        if values.is_thing(ARGUMENTS) {
            self.dynamic(it.span, "takes apart what Node gives to a script, which can import anything");
        }
    }

    fn visit_static_member_expression(&mut self, it: &StaticMemberExpression<'a>) {
        self.check_attribute(&it.property.name, it.property.span);
        let object = self.value(&it.object);
        let taken = property(&object, &it.property.name);
        self.check_member(&it.object, &taken, it.span);
        // `Function.prototype` makes no function.
        let uses = ["call", "apply", "bind"].contains(&it.property.name.as_str());
        let before = self.looked_at;
        if !uses && matches!(&it.object, Expression::Identifier(name) if name.name == "Function") {
            self.looked_at = Some(it.object.span().start);
        }
        walk::walk_static_member_expression(self, it);
        self.looked_at = before;
    }

    fn visit_computed_member_expression(&mut self, it: &ComputedMemberExpression<'a>) {
        let (object, key) = (self.value(&it.object), self.value(&it.expression));
        for name in names(&key) {
            self.check_attribute(&name, it.expression.span());
        }
        let taken = super::fold::item(&object, &key);
        self.check_member(&it.object, &taken, it.span);
        self.check_key(&object, &key, it.span);
        walk::walk_computed_member_expression(self, it);
    }

    fn visit_array_expression(&mut self, it: &ArrayExpression<'a>) {
        for item in it.elements.iter().filter_map(|element| element.as_expression()) {
            self.hand_on(item);
        }
        walk::walk_array_expression(self, it);
    }

    fn visit_spread_element(&mut self, it: &SpreadElement<'a>) {
        self.take_apart(&it.argument);
        walk::walk_spread_element(self, it);
    }

    fn visit_object_property(&mut self, it: &ObjectProperty<'a>) {
        self.hand_on(&it.value);
        walk::walk_object_property(self, it);
    }

    fn visit_property_definition(&mut self, it: &PropertyDefinition<'a>) {
        if let Some(value) = &it.value {
            self.hand_on(value);
        }
        walk::walk_property_definition(self, it);
    }

    fn visit_return_statement(&mut self, it: &ReturnStatement<'a>) {
        if let Some(value) = &it.argument {
            self.hand_on(value);
        }
        walk::walk_return_statement(self, it);
    }

    fn visit_throw_statement(&mut self, it: &ThrowStatement<'a>) {
        self.hand_on(&it.argument);
        walk::walk_throw_statement(self, it);
    }

    fn visit_yield_expression(&mut self, it: &YieldExpression<'a>) {
        if let Some(value) = &it.argument {
            self.hand_on(value);
        }
        walk::walk_yield_expression(self, it);
    }

    fn visit_arrow_function_body(&mut self, it: &ArrowFunctionBody<'a>) {
        if let Some(value) = it.as_expression() {
            self.hand_on(value);
        }
        walk::walk_arrow_function_body(self, it);
    }

    fn visit_export_default_declaration(&mut self, it: &ExportDefaultDeclaration<'a>) {
        if let Some(value) = it.declaration.as_expression() {
            self.hand_on(value);
        }
        walk::walk_export_default_declaration(self, it);
    }

    fn visit_binary_expression(&mut self, it: &BinaryExpression<'a>) {
        let before = self.looked_at;
        if it.operator == BinaryOperator::Instanceof && matches!(it.right, Expression::Identifier(_)) {
            self.looked_at = Some(it.right.span().start);
        }
        walk::walk_binary_expression(self, it);
        self.looked_at = before;
    }

    fn visit_simple_assignment_target(&mut self, it: &SimpleAssignmentTarget<'a>) {
        // A name that gets a value is not used.
        if !matches!(it, SimpleAssignmentTarget::AssignmentTargetIdentifier(_)) {
            walk::walk_simple_assignment_target(self, it);
        }
    }

    fn visit_assignment_expression(&mut self, it: &AssignmentExpression<'a>) {
        let added = self.value(&it.right);
        match &it.left {
            AssignmentTarget::AssignmentTargetIdentifier(name) if it.operator == AssignmentOperator::Addition => {
                let before = self.name(&name.name);
                let values = self.collector.append(&before, &added);
                self.assign_name(&name.name, &values);
            }
            target => self.assign(target, &added),
        }
        if it.left.as_simple_assignment_target().is_some_and(|target| target.as_member_expression().is_some()) {
            self.hand_on(&it.right);
        }
        self.written = (it.operator == AssignmentOperator::Assign).then(|| it.left.span());
        walk::walk_assignment_expression(self, it);
    }

    fn visit_variable_declaration(&mut self, it: &VariableDeclaration<'a>) {
        let before = std::mem::replace(&mut self.declares, it.kind);
        let outside = std::mem::replace(&mut self.ambient, it.declare);
        walk::walk_variable_declaration(self, it);
        (self.declares, self.ambient) = (before, outside);
    }

    fn visit_variable_declarator(&mut self, it: &VariableDeclarator<'a>) {
        let kind = self.declares;
        let values = match &it.init {
            Some(init) => self.value(init),
            // A name that is only declared holds nothing else until it is given a value.
            None => self.looped.take().unwrap_or_else(|| match it.id {
                BindingPattern::BindingIdentifier(_) if !self.ambient => Values::text("undefined"),
                _ => Values::unknown(),
            }),
        };
        walk::walk_variable_declarator(self, it);
        self.declares = kind;
        self.bind_pattern(&it.id, &values);
    }

    fn visit_for_of_statement(&mut self, it: &ForOfStatement<'a>) {
        let values = self.value(&it.right);
        let mut each = Values::unknown();
        for item in values.lists().flat_map(|list| list.iter()) {
            each.add(item);
        }
        let before = self.looped.replace(each);
        walk::walk_for_of_statement(self, it);
        self.looped = before;
    }

    fn visit_for_in_statement(&mut self, it: &ForInStatement<'a>) {
        let before = self.looped.replace(Values::unknown());
        walk::walk_for_in_statement(self, it);
        self.looped = before;
    }

    fn visit_for_statement_left(&mut self, it: &ForStatementLeft<'a>) {
        walk::walk_for_statement_left(self, it);
        // Not for what is declared in the loop.
        self.looped = None;
    }

    fn visit_function(&mut self, it: &Function<'a>, flags: ScopeFlags) {
        if let Some(name) = it.id.as_ref().filter(|_| it.r#type == FunctionType::FunctionDeclaration && !it.declare) {
            self.declare_function(&name.name);
        }
        // One that stands before the code was put around it, and what it is given is the script's.
        let own = usize::from(!self.collector.is_before(bytes(it.span)));
        self.functions += own;
        walk::walk_function(self, it, flags);
        self.functions -= own;
    }

    fn visit_if_statement(&mut self, it: &IfStatement<'a>) {
        self.visit_expression(&it.test);
        // `if (x) function f() {}` is a block of its own.
        for branch in [Some(&it.consequent), it.alternate.as_ref()].into_iter().flatten() {
            let before = self.scopes.enter(Kind::Block);
            self.visit_statement(branch);
            self.scopes.leave(before);
        }
    }

    fn visit_class(&mut self, it: &Class<'a>) {
        if it.declare {
            return;
        }
        // The name of an expression is seen in it alone.
        let expression = !it.is_declaration();
        let before = expression.then(|| self.scopes.enter(Kind::Block));
        if let Some(name) = &it.id {
            self.scopes.bind(&name.name, &Values::unknown(), Hides::Everywhere);
        }
        self.classes += 1;
        walk::walk_class(self, it);
        self.classes -= 1;
        if let Some(before) = before {
            self.scopes.leave(before);
        }
    }

    fn visit_formal_parameter(&mut self, it: &FormalParameter<'a>) {
        let default = it.initializer.as_ref().map(|initializer| self.value(initializer));
        self.bind_local(&it.pattern, &default.unwrap_or_default());
        walk::walk_formal_parameter(self, it);
    }

    fn visit_formal_parameter_rest(&mut self, it: &oxc_ast::ast::FormalParameterRest<'a>) {
        self.bind_local(&it.rest.argument, &Values::unknown());
        walk::walk_formal_parameter_rest(self, it);
    }

    fn visit_catch_parameter(&mut self, it: &CatchParameter<'a>) {
        self.bind_local(&it.pattern, &Values::unknown());
        walk::walk_catch_parameter(self, it);
    }
}
