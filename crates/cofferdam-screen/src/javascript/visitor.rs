//! A walk through the syntax tree of a JavaScript or TypeScript program that binds names and reports findings.

use std::cell::Cell;
use std::rc::Rc;

use oxc_ast::ast::*;
use oxc_ast_visit::{Visit, walk};
use oxc_span::{GetSpan, Span};
use oxc_syntax::operator::BinaryOperator;
use oxc_syntax::scope::{ScopeFlags, ScopeId};

use crate::collector::Collector;
use crate::report::Rule;
use crate::scopes::{Kind, Paths, Scopes, join};

/// The maximum depth of the tree that is walked.
const MAX_LEVELS: usize = 3000;
/// The maximum depth of an expression that is resolved.
const MAX_RESOLVED: usize = 32;
/// Functions that import the module that their argument names.
const IMPORTERS: &[&str] = &["require", "module.require", "module._load", "process.getBuiltinModule"];
/// Names of the global object.
const GLOBALS: &[&str] = &["globalThis", "global", "window", "self"];

/// One of the two walks of a program.
pub(super) struct Visitor<'c, 'r> {
    collector: &'c mut Collector<'r>,
    scopes: Scopes,
    reports: bool,
    level: usize,
    too_deep: bool,
    /// The kind of the enclosing declaration, and true if TypeScript only declares its type.
    declares: (VariableDeclarationKind, bool),
    /// The position of a `Function` that creates no function.
    harmless: Option<u32>,
}

impl<'c, 'r> Visitor<'c, 'r> {
    /// Walks the program twice. Returns true if it is shallow enough to be walked to its end.
    pub fn check(program: &Program<'_>, collector: &'c mut Collector<'r>) -> bool {
        let declares = (VariableDeclarationKind::Let, false);
        let scopes = Scopes::new();
        let mut visitor =
            Self { collector, scopes, reports: false, level: 0, too_deep: false, declares, harmless: None };
        visitor.visit_statements(&program.body);
        visitor.scopes.rewind();
        visitor.reports = true;
        visitor.visit_statements(&program.body);
        !visitor.too_deep
    }

    fn deeper(&mut self, work: impl FnOnce(&mut Self)) {
        if self.level >= MAX_LEVELS {
            self.too_deep = true;
            return;
        }
        self.level += 1;
        work(self);
        self.level -= 1;
    }

    /// Reports the import of a module.
    fn import(&mut self, source: &str, span: Span) {
        let name = plain(source);
        if !self.reports {
            return;
        }
        let why = format!("imports {name}");
        // Some entries only match a module of Node.js with the prefix `node:`.
        let listed = self.collector.check_import(name, bytes(span), why.clone())
            || (name != source && self.collector.check_import(source, bytes(span), why));
        if !listed && name.trim_start().get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
            self.collector.report(Rule::DynamicImport, bytes(span), "imports code from a text");
        }
    }

    /// Reports the import of a module whose name is an expression.
    fn import_expression(&mut self, source: Option<&Expression<'_>>, span: Span) {
        match source.and_then(literal) {
            Some(source) => self.import(&source, span),
            None => self.dynamic_import(span),
        }
    }

    fn dynamic_import(&mut self, span: Span) {
        if self.reports {
            self.collector.dynamic_import(bytes(span));
        }
    }

    fn check_calls(&mut self, paths: &[Rc<str>], span: Span) {
        if self.reports {
            paths.iter().for_each(|path| self.collector.check_call(path, bytes(span)));
        }
    }

    fn check_attribute(&mut self, name: &str, span: Span) {
        if self.reports {
            self.collector.check_attribute(name, bytes(span));
        }
    }

    fn check_callee(&mut self, callee: &Expression<'_>, arguments: &[Argument<'_>], span: Span) {
        let functions = self.resolve(callee);
        let (mut calls, mut uses) = (false, false);
        for function in &functions {
            calls |= is_importer(function);
            // `require.call(null, "fs")`
            let ends = [".call", ".apply", ".bind"].iter().find_map(|end| function.strip_suffix(end));
            uses |= ends.is_some_and(is_importer);
        }
        if calls {
            self.import_expression(arguments.first().and_then(Argument::as_expression), span);
        } else if uses {
            self.dynamic_import(span);
        }
    }

    /// Returns the functions and modules that an expression may stand for.
    fn resolve(&self, expression: &Expression<'_>) -> Paths {
        self.resolve_within(expression, MAX_RESOLVED)
    }

    fn resolve_within(&self, expression: &Expression<'_>, levels: usize) -> Paths {
        let Some(levels) = levels.checked_sub(1) else { return Paths::new() };
        let resolve = |each: &Expression<'_>| self.resolve_within(each, levels);
        match expression.get_inner_expression() {
            Expression::Identifier(name) => self.look_up(name),
            Expression::ChainExpression(chain) => match &chain.expression {
                ChainElement::CallExpression(call) => self.called(call, levels),
                ChainElement::TSNonNullExpression(inner) => resolve(&inner.expression),
                element => element.as_member_expression().map(|it| self.member(it, levels)).unwrap_or_default(),
            },
            Expression::CallExpression(call) => self.called(call, levels),
            Expression::AwaitExpression(awaited) => match &awaited.argument {
                Expression::ImportExpression(import) => literal(&import.source).map(module).into_iter().collect(),
                _ => Paths::new(),
            },
            Expression::SequenceExpression(sequence) => sequence.expressions.last().map(resolve).unwrap_or_default(),
            Expression::AssignmentExpression(assignment) => resolve(&assignment.right),
            Expression::ConditionalExpression(either) => {
                [resolve(&either.consequent), resolve(&either.alternate)].concat()
            }
            Expression::LogicalExpression(either) => [resolve(&either.left), resolve(&either.right)].concat(),
            other => other.as_member_expression().map(|it| self.member(it, levels)).unwrap_or_default(),
        }
    }

    fn look_up(&self, name: &IdentifierReference<'_>) -> Paths {
        self.scopes.look_up(&name.name, name.span.start as usize)
    }

    fn member(&self, member: &MemberExpression<'_>, levels: usize) -> Paths {
        match member_name(member) {
            Some((name, _)) if name == "constructor" && is_constructor(member.object()) => vec!["Function".into()],
            Some((name, _)) => properties(&self.resolve_within(member.object(), levels), &name),
            None => Paths::new(),
        }
    }

    /// Returns the results of known calls: of `require` a module, of `createRequire` another `require`.
    fn called(&self, call: &CallExpression<'_>, levels: usize) -> Paths {
        let result = |function: Rc<str>| match &*function {
            "module.createRequire" => Some("require".into()),
            _ if is_importer(&function) => Some(module(literal(call.arguments.first()?.as_expression()?)?)),
            _ => None,
        };
        self.resolve_within(&call.callee, levels).into_iter().filter_map(result).collect()
    }

    // Bindings.

    fn bind(&mut self, name: &str, paths: &[Rc<str>]) {
        match self.declares {
            (_, true) => {}
            (VariableDeclarationKind::Var, _) => self.scopes.bind_var(name, paths),
            _ => self.scopes.bind(name, paths, Some(0)),
        }
    }

    fn bind_pattern(&mut self, pattern: &BindingPattern<'_>, paths: &[Rc<str>]) {
        match pattern {
            BindingPattern::BindingIdentifier(name) => self.bind(&name.name, paths),
            BindingPattern::AssignmentPattern(inner) => {
                let paths = [paths, &self.resolve(&inner.right)].concat();
                self.bind_pattern(&inner.left, &paths);
            }
            BindingPattern::ObjectPattern(inner) => {
                for each in &inner.properties {
                    let taken = self.take(paths, &each.key, each.span);
                    self.bind_pattern(&each.value, &taken);
                }
                if let Some(rest) = &inner.rest {
                    self.bind_pattern(&rest.argument, paths);
                }
            }
            BindingPattern::ArrayPattern(inner) => {
                let elements = inner.elements.iter().flatten();
                elements.for_each(|each| self.bind_pattern(each, &[]));
                if let Some(rest) = &inner.rest {
                    self.bind_pattern(&rest.argument, &[]);
                }
            }
        }
    }

    /// Checks a property that a pattern takes from an object, and returns its paths.
    fn take(&mut self, object: &[Rc<str>], key: &PropertyKey<'_>, span: Span) -> Paths {
        let computed = || key.as_expression().and_then(literal);
        let Some(name) = key.static_name().map(|name| name.into_owned()).or_else(computed) else { return Paths::new() };
        self.check_attribute(&name, key.span());
        let taken = properties(object, &name);
        self.check_calls(&taken, span);
        taken
    }

    fn assign(&mut self, target: &AssignmentTarget<'_>, paths: &[Rc<str>]) {
        match target {
            AssignmentTarget::AssignmentTargetIdentifier(name) => self.scopes.assign(&name.name, paths),
            AssignmentTarget::ObjectAssignmentTarget(inner) => {
                for each in &inner.properties {
                    match each {
                        AssignmentTargetProperty::AssignmentTargetPropertyIdentifier(each) => {
                            let taken = properties(paths, &each.binding.name);
                            self.check_calls(&taken, each.span);
                            self.scopes.assign(&each.binding.name, &taken);
                        }
                        AssignmentTargetProperty::AssignmentTargetPropertyProperty(each) => {
                            let taken = self.take(paths, &each.name, each.span);
                            match &each.binding {
                                AssignmentTargetMaybeDefault::AssignmentTargetWithDefault(inner) => {
                                    self.assign(&inner.binding, &taken);
                                }
                                other => {
                                    other.as_assignment_target().into_iter().for_each(|it| self.assign(it, &taken))
                                }
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Binds a parameter or a name that belongs to its block.
    fn bind_local(&mut self, pattern: &BindingPattern<'_>, paths: &[Rc<str>]) {
        let before = std::mem::replace(&mut self.declares, (VariableDeclarationKind::Let, false));
        self.bind_pattern(pattern, paths);
        self.declares = before;
    }

    fn check_member(&mut self, member: &MemberExpression<'_>) {
        if let Some((name, span)) = member_name(member) {
            self.check_attribute(&name, span);
        }
        let paths = self.member(member, MAX_RESOLVED);
        self.check_calls(&paths, member.span());
    }
}

impl<'a> Visit<'a> for Visitor<'_, '_> {
    fn enter_scope(&mut self, flags: ScopeFlags, _: &Cell<Option<ScopeId>>) {
        let is_function = flags.intersects(ScopeFlags::Var);
        self.scopes.enter(if is_function { Kind::Function } else { Kind::Block });
    }

    fn leave_scope(&mut self) {
        self.scopes.leave();
    }

    fn visit_statement(&mut self, it: &Statement<'a>) {
        self.deeper(|visitor| walk::walk_statement(visitor, it));
    }

    fn visit_expression(&mut self, it: &Expression<'a>) {
        self.deeper(|visitor| walk::walk_expression(visitor, it));
    }

    fn visit_binding_pattern(&mut self, it: &BindingPattern<'a>) {
        self.deeper(|visitor| walk::walk_binding_pattern(visitor, it));
    }

    fn visit_assignment_target(&mut self, it: &AssignmentTarget<'a>) {
        self.deeper(|visitor| walk::walk_assignment_target(visitor, it));
    }

    // Types do not exist at run time.
    fn visit_ts_type(&mut self, _: &TSType<'a>) {}
    fn visit_ts_type_annotation(&mut self, _: &TSTypeAnnotation<'a>) {}
    fn visit_ts_type_parameter_declaration(&mut self, _: &TSTypeParameterDeclaration<'a>) {}
    fn visit_ts_type_parameter_instantiation(&mut self, _: &TSTypeParameterInstantiation<'a>) {}

    fn visit_import_declaration(&mut self, it: &ImportDeclaration<'a>) {
        if it.import_kind == ImportOrExportKind::Type {
            return;
        }
        self.import(&it.source.value, it.span);
        let from = module(&*it.source.value);
        for specifier in it.specifiers.iter().flatten() {
            let (local, paths) = match specifier {
                ImportDeclarationSpecifier::ImportSpecifier(each) => {
                    if each.import_kind == ImportOrExportKind::Type {
                        continue;
                    }
                    let paths = properties(std::slice::from_ref(&from), &each.imported.name());
                    self.check_calls(&paths, each.span);
                    self.check_attribute(&each.imported.name(), each.span);
                    (&each.local, paths)
                }
                ImportDeclarationSpecifier::ImportDefaultSpecifier(each) => (&each.local, vec![from.clone()]),
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(each) => (&each.local, vec![from.clone()]),
            };
            self.scopes.bind(&local.name, &paths, Some(0));
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
        let mut paths = Paths::new();
        if let TSModuleReference::ExternalModuleReference(reference) = &it.module_reference {
            self.import(&reference.expression.value, it.span);
            paths.push(module(&*reference.expression.value));
        }
        self.scopes.bind(&it.id.name, &paths, Some(0));
    }

    fn visit_import_expression(&mut self, it: &ImportExpression<'a>) {
        self.import_expression(Some(&it.source), it.span);
        walk::walk_import_expression(self, it);
    }

    fn visit_call_expression(&mut self, it: &CallExpression<'a>) {
        self.check_callee(&it.callee, &it.arguments, it.span);
        walk::walk_call_expression(self, it);
    }

    fn visit_identifier_reference(&mut self, it: &IdentifierReference<'a>) {
        if self.harmless != Some(it.span.start) {
            let paths = self.look_up(it);
            self.check_calls(&paths, it.span);
        }
    }

    fn visit_member_expression(&mut self, it: &MemberExpression<'a>) {
        self.check_member(it);
        // `Function.prototype` creates no function.
        let used = it.static_property_name().is_some_and(|name| ["call", "apply", "bind"].contains(&name));
        if !used && it.object().is_specific_id("Function") {
            self.harmless = Some(it.object().span().start);
        }
        walk::walk_member_expression(self, it);
    }

    fn visit_binary_expression(&mut self, it: &BinaryExpression<'a>) {
        if it.operator == BinaryOperator::Instanceof && it.right.is_specific_id("Function") {
            self.harmless = Some(it.right.span().start);
        }
        walk::walk_binary_expression(self, it);
    }

    fn visit_simple_assignment_target(&mut self, it: &SimpleAssignmentTarget<'a>) {
        // An assignment to a name is no use of it.
        if !matches!(it, SimpleAssignmentTarget::AssignmentTargetIdentifier(_)) {
            walk::walk_simple_assignment_target(self, it);
        }
    }

    fn visit_assignment_expression(&mut self, it: &AssignmentExpression<'a>) {
        let paths = self.resolve(&it.right);
        self.assign(&it.left, &paths);
        walk::walk_assignment_expression(self, it);
    }

    fn visit_variable_declaration(&mut self, it: &VariableDeclaration<'a>) {
        let before = std::mem::replace(&mut self.declares, (it.kind, it.declare));
        walk::walk_variable_declaration(self, it);
        self.declares = before;
    }

    fn visit_variable_declarator(&mut self, it: &VariableDeclarator<'a>) {
        let paths = it.init.as_ref().map(|init| self.resolve(init)).unwrap_or_default();
        self.bind_pattern(&it.id, &paths);
        walk::walk_variable_declarator(self, it);
    }

    fn visit_function(&mut self, it: &Function<'a>, flags: ScopeFlags) {
        if let Some(name) = it.id.as_ref().filter(|_| it.r#type == FunctionType::FunctionDeclaration && !it.declare) {
            self.scopes.bind(&name.name, &[], Some(0));
        }
        walk::walk_function(self, it, flags);
    }

    fn visit_class(&mut self, it: &Class<'a>) {
        if it.declare {
            return;
        }
        if let Some(name) = it.id.as_ref().filter(|_| it.is_declaration()) {
            self.scopes.bind(&name.name, &[], Some(0));
        }
        walk::walk_class(self, it);
    }

    fn visit_formal_parameter(&mut self, it: &FormalParameter<'a>) {
        let default = it.initializer.as_ref().map(|initializer| self.resolve(initializer));
        self.bind_local(&it.pattern, &default.unwrap_or_default());
        walk::walk_formal_parameter(self, it);
    }

    fn visit_formal_parameter_rest(&mut self, it: &FormalParameterRest<'a>) {
        self.bind_local(&it.rest.argument, &[]);
        walk::walk_formal_parameter_rest(self, it);
    }

    fn visit_catch_parameter(&mut self, it: &CatchParameter<'a>) {
        self.bind_local(&it.pattern, &[]);
        walk::walk_catch_parameter(self, it);
    }
}

fn bytes(span: Span) -> crate::collector::Span {
    (span.start as usize, span.end as usize)
}

fn is_importer(path: &str) -> bool {
    IMPORTERS.contains(&path)
}

/// Returns true if an expression ends in `.constructor`: the constructor of a constructor is `Function`.
fn is_constructor(expression: &Expression<'_>) -> bool {
    let member = expression.get_inner_expression().as_member_expression();
    member.and_then(member_name).is_some_and(|(name, _)| name == "constructor")
}

/// Returns the module name without the prefix for modules of Node.js.
fn plain(name: &str) -> &str {
    name.strip_prefix("node:").unwrap_or(name)
}

fn module(name: impl AsRef<str>) -> Rc<str> {
    plain(name.as_ref()).into()
}

/// Returns the name of a property that is a literal, and its place.
fn member_name(member: &MemberExpression<'_>) -> Option<(String, Span)> {
    match member {
        MemberExpression::StaticMemberExpression(it) => Some((it.property.name.to_string(), it.property.span)),
        MemberExpression::ComputedMemberExpression(it) => Some((literal(&it.expression)?, it.expression.span())),
        MemberExpression::PrivateFieldExpression(_) => None,
    }
}

/// Returns the paths of a property. Globals have paths without the global object.
fn properties(objects: &[Rc<str>], name: &str) -> Paths {
    let property = |object: &Rc<str>| match (&**object, name) {
        (object, _) if GLOBALS.contains(&object) => Some(name.into()),
        (_, "default") | ("module", "Module" | "prototype" | "__proto__" | "constructor") => Some(object.clone()),
        ("process", "mainModule") | ("require", "main") | ("module", "parent") => Some("module".into()),
        (object, _) => join(object, name),
    };
    objects.iter().filter_map(property).collect()
}

/// Returns the text of a string, of a template without substitutions, or of several that `+` joins.
fn literal(expression: &Expression<'_>) -> Option<String> {
    fn within(expression: &Expression<'_>, levels: usize) -> Option<String> {
        match expression.get_inner_expression() {
            Expression::StringLiteral(literal) => Some(literal.value.to_string()),
            Expression::TemplateLiteral(template) => template.single_quasi().map(|text| text.to_string()),
            Expression::BinaryExpression(binary) if binary.operator == BinaryOperator::Addition => {
                let levels = levels.checked_sub(1)?;
                Some(within(&binary.left, levels)? + &within(&binary.right, levels)?)
            }
            _ => None,
        }
    }
    within(expression, MAX_RESOLVED)
}
