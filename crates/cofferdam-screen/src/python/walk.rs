//! Goes through a program: binds names, and says what is not wanted.

use std::collections::{HashMap, HashSet};

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_pattern, walk_stmt};
use ruff_python_ast::{
    self as ast, Comprehension, ExceptHandler, Expr, ExprCall, ExprContext, ModModule, Parameters, Pattern, Stmt,
};
use ruff_text_size::{Ranged, TextRange};

use super::call::Imported;
use super::encoding::other;
use super::fold::spread;
use super::handed::{canonical, known_names};
use super::{MOST_LEVELS, MOST_NESTED, parse, read};
use crate::collect::{Collector, Span};
use crate::report::Rule;
use crate::scope::{Kind, Scopes};
use crate::value::{Thing, Values};

/// One walk through one tree.
pub(super) struct Walker<'c, 'r> {
    pub collector: &'c mut Collector<'r>,
    pub scopes: Scopes,
    /// What expressions were found to be, by where their nodes are in memory.
    pub memo: HashMap<usize, Values>,
    /// Names of comprehensions that are being folded.
    pub temporary: Vec<(String, Values)>,
    /// Expressions that are being folded in each other.
    pub folds: usize,
    pub too_deep: bool,
    reports: bool,
    level: usize,
    nested: usize,
    /// Statements around that may not run.
    conditions: usize,
    /// Expressions whose values are followed where they go, by where their nodes are in memory.
    pub followed: HashSet<usize>,
    /// Expressions that are called, in the same way.
    pub called: HashSet<usize>,
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
        let (memo, temporary) = (HashMap::new(), Vec::new());
        Self {
            collector,
            scopes,
            memo,
            temporary,
            folds: level,
            too_deep: false,
            reports,
            level,
            nested,
            conditions: 0,
            followed: HashSet::new(),
            called: HashSet::new(),
        }
    }

    pub fn module(&mut self, module: &ModModule) {
        self.visit_body(&module.body);
    }

    pub fn into_scopes(self) -> Scopes {
        self.scopes
    }

    fn report(&mut self, rule: Rule, range: TextRange, why: impl Into<String>) {
        if self.reports {
            self.collector.report(rule, span(range), why);
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

    fn sure(&self) -> bool {
        self.conditions == 0
    }

    // Imports.

    fn import(&mut self, import: &ast::StmtImport) {
        for alias in &import.names {
            let module = alias.name.as_str();
            let unwanted = self.unwanted(module);
            if let Some(entry) = &unwanted {
                self.report(Rule::Import(entry.clone()), alias.range(), format!("imports {module}"));
            }
            let (name, path) = match &alias.asname {
                Some(name) => (name.as_str(), module),
                None => {
                    let first = module.split('.').next().unwrap_or(module);
                    (first, first)
                }
            };
            // `import os.path` binds `os`, whatever it was wanted for.
            let thing =
                Thing { path: canonical(path).into(), open: unwanted.is_none() && self.unwanted(path).is_some() };
            self.bind(name, &thing.into());
        }
    }

    fn import_from(&mut self, import: &ast::StmtImportFrom) {
        let module = import.module.as_ref().filter(|_| import.level == 0).map(|module| module.as_str());
        let mut said = false;
        for alias in &import.names {
            let name = alias.name.as_str();
            let bound = alias.asname.as_ref().unwrap_or(&alias.name).as_str();
            if name == "*" {
                self.scopes.starred = true;
            }
            let Some(module) = module else {
                self.bind(bound, &Values::unknown());
                continue;
            };
            if name == "*" {
                if let Some(entry) = self.unwanted(module) {
                    self.report(Rule::Import(entry), alias.range(), format!("imports all of {module}"));
                }
                self.bind_all_of(module);
                continue;
            }
            let from = Thing { path: canonical(module).into(), open: false };
            let values = self.attribute(&from.into(), name);
            let unwanted = values.things().find_map(|thing| self.unwanted(&thing.path));
            if let Some(entry) = unwanted
                && !std::mem::replace(&mut said, true)
            {
                self.report(Rule::Import(entry), alias.range(), format!("imports {name} from {module}"));
            }
            self.check_calls(&values, alias.range());
            self.check_attribute(name, alias.range());
            self.bind(bound, &values);
        }
    }

    /// `from module import *`, for names that lead somewhere. What else it may have bound they may be as well.
    fn bind_all_of(&mut self, module: &str) {
        let from: Values = Thing { path: canonical(module).into(), open: false }.into();
        for name in known_names(module, self.collector.lists.calls) {
            let values = self.attribute(&from, &name);
            self.scopes.bind_in_order(&name, &values, false);
        }
    }

    fn unwanted(&self, module: &str) -> Option<String> {
        self.collector.lists.unwanted_import(module).map(str::to_owned)
    }

    // Names.

    fn bind(&mut self, name: &str, values: &Values) {
        let sure = self.sure();
        // A name may belong to a scope far outside.
        if self.collector.step(self.scopes.steps()) {
            self.scopes.bind_in_order(name, values, sure);
        }
    }

    fn bind_target(&mut self, target: &Expr, values: &Values) {
        match target {
            Expr::Name(name) => self.bind(&name.id, values),
            Expr::Starred(starred) => self.bind_target(&starred.value, &Values::unknown()),
            Expr::Tuple(ast::ExprTuple { elts, .. }) | Expr::List(ast::ExprList { elts, .. }) => {
                let items = spread(values).filter(|items| items.len() == elts.len());
                let nothing = Values::unknown();
                for (index, target) in elts.iter().enumerate() {
                    let value = items.as_ref().and_then(|items| items.get(index)).unwrap_or(&nothing);
                    self.bind_target(target, value);
                }
            }
            _ => {}
        }
    }

    /// Binds what a loop runs through.
    fn bind_each(&mut self, target: &Expr, iter: &Expr) {
        let values = self.value(iter);
        self.bind_items(target, &values);
    }

    fn bind_items(&mut self, target: &Expr, values: &Values) {
        let mut each = Values::unknown();
        for item in spread(values).unwrap_or_default() {
            each.add(&item);
        }
        self.bind_target(target, &each);
    }

    fn function(&mut self, parameters: Option<&Parameters>, body: impl FnOnce(&mut Self)) {
        let mut bound = Vec::new();
        for parameter in parameters.into_iter().flatten() {
            let default = parameter.default().map(|default| self.value(default));
            bound.push((parameter.name().as_str(), default.unwrap_or_default()));
        }
        let before = self.scopes.enter(Kind::Function);
        let conditions = std::mem::take(&mut self.conditions);
        for (name, default) in bound {
            self.bind(name, &default);
        }
        body(self);
        self.conditions = conditions;
        self.scopes.leave(before);
    }

    /// Defaults and annotations, which belong to the scope around.
    fn visit_outer(&mut self, parameters: &Parameters) {
        for parameter in parameters {
            if let Some(annotation) = parameter.annotation() {
                self.visit_expr(annotation);
            }
            if let Some(default) = parameter.default() {
                self.follow(default);
                self.visit_expr(default);
            }
        }
    }

    fn conditional(&mut self, work: impl FnOnce(&mut Self)) {
        self.conditions += 1;
        work(self);
        self.conditions -= 1;
    }

    fn comprehension(&mut self, generators: &[Comprehension], elements: &[&Expr]) {
        // What the first runs through is of the scope around.
        if let Some(first) = generators.first() {
            self.follow_each(&first.target, &first.iter);
            self.visit_expr(&first.iter);
        }
        let outer = generators.first().map(|first| self.value(&first.iter)).unwrap_or_default();
        let before = self.scopes.enter(Kind::Block);
        for (index, generator) in generators.iter().enumerate() {
            if index == 0 {
                self.bind_items(&generator.target, &outer);
            } else {
                self.follow_each(&generator.target, &generator.iter);
                self.visit_expr(&generator.iter);
                self.bind_each(&generator.target, &generator.iter);
            }
            self.visit_expr(&generator.target);
            for test in &generator.ifs {
                self.visit_expr(test);
            }
        }
        for element in elements {
            self.visit_expr(element);
        }
        self.scopes.leave(before);
    }

    // What is not wanted.

    /// Looks at one expression, not at those in it.
    fn check(&mut self, expression: &Expr) {
        match expression {
            Expr::Name(name) if name.ctx == ExprContext::Load => {
                let values = self.value(expression);
                self.check_calls(&values, expression.range());
                let seen = self.scopes.look_up(&name.id, self.collector);
                if seen.builtin_too {
                    self.check_attribute(&name.id, expression.range());
                }
                // Of a module that gave all its names.
                if seen.builtin_too && self.scopes.starred && !seen.values.is_thing(&name.id) {
                    self.check_thing(expression, &Values::unknown());
                }
            }
            Expr::Attribute(attribute) => {
                self.check_attribute(&attribute.attr, attribute.attr.range());
                if attribute.ctx == ExprContext::Load {
                    let object = self.value(&attribute.value);
                    self.check_thing(expression, &object);
                }
            }
            Expr::Subscript(subscript) => {
                let keys = self.value(&subscript.slice);
                for key in keys.texts().filter(|key| key.starts_with("__")) {
                    self.check_attribute(key, subscript.slice.range());
                }
                if subscript.ctx == ExprContext::Load {
                    let object = self.value(&subscript.value);
                    self.check_thing(expression, &object);
                }
            }
            Expr::Call(call) => self.check_call(expression, call),
            _ => {}
        }
        self.follow_in(expression);
        if self.reports && self.collector.lists.dynamic_imports {
            if self.hands_on(expression) {
                let why = "hands on what can import any module";
                self.report(Rule::DynamicImport, expression.range(), why);
            } else if self.gets_anything(expression) {
                let why = "gets by a name that only the running program knows what can import or run anything";
                self.report(Rule::DynamicImport, expression.range(), why);
            }
        }
    }

    fn check_call(&mut self, expression: &Expr, call: &ExprCall) {
        for (range, name) in self.attributes_got(call) {
            self.check_attribute(&name, range);
        }
        match self.imported(call) {
            Imported::Nothing => {}
            Imported::Modules { names, open, dropped } => {
                if dropped {
                    self.collector.truncate();
                }
                if open && self.collector.lists.dynamic_imports {
                    let why = "imports a module that perhaps only the running program knows";
                    self.report(Rule::DynamicImport, expression.range(), why);
                }
                for module in names.iter().filter(|module| !module.starts_with('.')) {
                    if let Some(entry) = self.unwanted(module) {
                        self.report(Rule::Import(entry), expression.range(), format!("imports {module}"));
                    }
                }
            }
            Imported::Something => {
                if self.collector.lists.dynamic_imports {
                    let why = "imports a module that only the running program knows";
                    self.report(Rule::DynamicImport, expression.range(), why);
                }
            }
        }
        let object = match &*call.func {
            Expr::Attribute(method) => self.value(&method.value),
            _ => call.arguments.args.first().map(|first| self.value(first)).unwrap_or_default(),
        };
        self.check_thing(expression, &object);
        if self.reports
            && self.nested < MOST_NESTED
            && let Some((taker, texts)) = self.run(call)
        {
            for text in texts {
                self.read_text(&text, span(expression.range()), &taker);
            }
        }
    }

    /// What an expression gives that got it from an object.
    fn check_thing(&mut self, expression: &Expr, object: &Values) {
        let values = self.value(expression);
        self.check_calls(&values, expression.range());
        for thing in values.things() {
            let Some(entry) = self.unwanted(&thing.path) else { continue };
            // What belongs to a module that was reported where it came from is no news.
            let known = object.things().any(|from| !from.open && self.unwanted(&from.path).is_some());
            if !known {
                let why = format!("reaches {}", thing.path);
                self.report(Rule::Import(entry), expression.range(), why);
            }
        }
    }

    fn check_calls(&mut self, values: &Values, range: TextRange) {
        if values.has_dropped() && values.things().next().is_some() {
            self.collector.truncate();
        }
        for thing in values.things() {
            let name = thing.path.strip_prefix("builtins.").unwrap_or(&thing.path);
            if let Some(call) = self.collector.lists.unwanted_call(name) {
                self.report(Rule::Call(call.to_owned()), range, format!("uses {call}"));
            }
        }
    }

    fn check_attribute(&mut self, name: &str, range: TextRange) {
        if let Some(attribute) = self.collector.lists.unwanted_attribute(name) {
            self.report(Rule::Attribute(attribute.to_owned()), range, format!("uses the attribute {attribute}"));
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
        let code = text.trim_start_matches([' ', '\t']);
        if other(code).is_some() {
            self.collector.truncate();
            return;
        }
        let mut deep = false;
        self.collector.nested(code, span, taker, |collector| match parse(code, None) {
            Ok(module) => deep = !read(&module, collector, scopes, level, nested),
            Err(super::Failure::Deep { .. }) => deep = true,
            Err(super::Failure::Syntax { .. }) => {}
        });
        self.too_deep |= deep;
    }
}

fn span(range: TextRange) -> Span {
    (range.start().to_usize(), range.end().to_usize())
}

impl<'a> Visitor<'a> for Walker<'_, '_> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        self.deeper(|walker| walker.statement(statement));
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        self.deeper(|walker| walker.expression(expression));
    }

    fn visit_pattern(&mut self, pattern: &'a Pattern) {
        let name = match pattern {
            Pattern::MatchAs(ast::PatternMatchAs { name, .. })
            | Pattern::MatchStar(ast::PatternMatchStar { name, .. }) => name.as_ref(),
            Pattern::MatchMapping(mapping) => mapping.rest.as_ref(),
            _ => None,
        };
        if let Some(name) = name {
            self.bind(name, &Values::unknown());
        }
        self.deeper(|walker| walk_pattern(walker, pattern));
    }
}

impl Walker<'_, '_> {
    fn expression(&mut self, expression: &Expr) {
        self.check(expression);
        match expression {
            Expr::Lambda(lambda) => {
                if let Some(parameters) = &lambda.parameters {
                    self.visit_outer(parameters);
                }
                self.function(lambda.parameters.as_deref(), |walker| walker.visit_expr(&lambda.body));
            }
            Expr::ListComp(each) => self.comprehension(&each.generators, &[&each.elt]),
            Expr::SetComp(each) => self.comprehension(&each.generators, &[&each.elt]),
            Expr::Generator(each) => self.comprehension(&each.generators, &[&each.elt]),
            Expr::DictComp(each) => {
                let mut elements: Vec<&Expr> = Vec::new();
                elements.extend(each.key.as_deref());
                elements.push(&each.value);
                self.comprehension(&each.generators, &elements);
            }
            Expr::Named(named) => {
                self.visit_expr(&named.value);
                if let Expr::Name(name) = &*named.target {
                    let values = self.value(&named.value);
                    self.scopes.outside(|scopes| scopes.bind_in_order(&name.id, &values, false));
                }
            }
            _ => walk_expr(self, expression),
        }
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            Stmt::Expr(alone) => {
                self.follow(&alone.value);
                self.visit_expr(&alone.value);
            }
            Stmt::Global(global) => global.names.iter().for_each(|name| self.scopes.declare_global(name)),
            Stmt::Nonlocal(outer) => outer.names.iter().for_each(|name| self.scopes.declare_nonlocal(name)),
            Stmt::Assign(assign) => {
                if let [target] = &*assign.targets {
                    self.follow_to(target, &assign.value);
                } else if assign.targets.iter().all(Expr::is_name_expr) && !self.scopes.in_class() {
                    self.follow(&assign.value);
                }
                self.visit_expr(&assign.value);
                let values = self.value(&assign.value);
                for target in &assign.targets {
                    self.visit_expr(target);
                    self.bind_target(target, &values);
                }
            }
            Stmt::AnnAssign(assign) => {
                if let Some(value) = &assign.value {
                    self.follow_to(&assign.target, value);
                }
                walk_stmt(self, statement);
                if let Some(value) = &assign.value {
                    let values = self.value(value);
                    self.bind_target(&assign.target, &values);
                }
            }
            Stmt::AugAssign(assign) => {
                walk_stmt(self, statement);
                if let Expr::Name(name) = &*assign.target {
                    let (before, added) = (self.name(&name.id), self.value(&assign.value));
                    let values = self.collector.append(&before, &added);
                    self.bind(&name.id, &values);
                }
            }
            Stmt::Delete(delete) => {
                walk_stmt(self, statement);
                for target in &delete.targets {
                    if let Expr::Name(name) = target {
                        self.scopes.delete(&name.id);
                    }
                }
            }
            Stmt::FunctionDef(function) => self.function_definition(function),
            Stmt::ClassDef(class) => self.class_definition(class),
            Stmt::For(each) => self.conditional(|walker| {
                walker.follow_each(&each.target, &each.iter);
                walker.visit_expr(&each.iter);
                walker.visit_expr(&each.target);
                walker.bind_each(&each.target, &each.iter);
                walker.visit_body(&each.body);
                walker.visit_body(&each.orelse);
            }),
            Stmt::Match(matched) => {
                if self.collector.lists.dynamic_imports && self.is_taken_apart(&matched.subject) {
                    let why = "takes apart what can import or run anything";
                    self.report(Rule::DynamicImport, matched.subject.range(), why);
                }
                self.conditional(|walker| walk_stmt(walker, statement));
            }
            Stmt::If(_) | Stmt::While(_) => self.conditional(|walker| walk_stmt(walker, statement)),
            Stmt::Try(attempt) => self.conditional(|walker| {
                for handler in &attempt.handlers {
                    let ExceptHandler::ExceptHandler(handler) = handler;
                    if let Some(name) = &handler.name {
                        walker.bind(name, &Values::unknown());
                    }
                }
                walk_stmt(walker, statement);
            }),
            // `suppress` goes on behind what failed.
            Stmt::With(with) => self.conditional(|walker| {
                for item in &with.items {
                    walker.visit_expr(&item.context_expr);
                    if let Some(target) = &item.optional_vars {
                        walker.visit_expr(target);
                        walker.bind_target(target, &Values::unknown());
                    }
                }
                walker.visit_body(&with.body);
            }),
            _ => walk_stmt(self, statement),
        }
    }

    fn function_definition(&mut self, function: &ast::StmtFunctionDef) {
        for decorator in &function.decorator_list {
            self.visit_expr(&decorator.expression);
        }
        self.visit_outer(&function.parameters);
        if let Some(returns) = &function.returns {
            self.visit_expr(returns);
        }
        self.bind(&function.name, &Values::unknown());
        self.function(Some(&function.parameters), |walker| {
            if let Some(parameters) = &function.type_params {
                walker.visit_type_params(parameters);
            }
            walker.visit_body(&function.body);
        });
    }

    fn class_definition(&mut self, class: &ast::StmtClassDef) {
        for decorator in &class.decorator_list {
            self.visit_expr(&decorator.expression);
        }
        if let Some(arguments) = &class.arguments {
            self.visit_arguments(arguments);
        }
        let before = self.scopes.enter(Kind::Class);
        let conditions = std::mem::take(&mut self.conditions);
        if let Some(parameters) = &class.type_params {
            self.visit_type_params(parameters);
        }
        self.visit_body(&class.body);
        self.conditions = conditions;
        self.scopes.leave(before);
        // The body has run by then.
        self.bind(&class.name, &Values::unknown());
    }
}
