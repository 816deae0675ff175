//! A walk through the syntax tree of a Python program that binds names and reports findings.

use std::collections::HashSet;
use std::rc::Rc;

use ruff_python_ast::visitor::{Visitor as Visit, walk_except_handler, walk_expr, walk_pattern, walk_stmt};
use ruff_python_ast::{self as ast, ExceptHandler, Expr, ExprCall, ExprContext, Operator, Parameters, Pattern, Stmt};
use ruff_text_size::{Ranged, TextRange};

use crate::collector::{Collector, Span};
use crate::scopes::{Kind, Paths, Scopes, join};

/// The maximum depth of the tree that is walked. CPython itself fails much earlier, at 100 blocks and at 200 brackets.
const MAX_LEVELS: usize = 2000;
/// The maximum depth of an expression that is resolved.
const MAX_RESOLVED: usize = 32;
/// Functions that import the module that their first argument names.
const IMPORTERS: &[&str] = &[
    "__import__",
    "importlib.__import__",
    "importlib.import_module",
    "import_module",
    "importlib.util.find_spec",
    "runpy.run_module",
];
/// Loaded modules, by name.
const MODULES: &str = "sys.modules";

/// One of the two walks of a program.
pub(super) struct Visitor<'c, 'r> {
    collector: &'c mut Collector<'r>,
    scopes: Scopes,
    /// Imported modules that no rule forbids, and through which a forbidden module may be reached.
    wanted: HashSet<Rc<str>>,
    reports: bool,
    level: usize,
    too_deep: bool,
    /// Number of enclosing statements that may not run.
    conditions: usize,
}

impl<'c, 'r> Visitor<'c, 'r> {
    /// Walks the program twice. Returns true if it is shallow enough to be walked to its end.
    pub fn check(body: &[Stmt], collector: &'c mut Collector<'r>) -> bool {
        let (scopes, wanted) = (Scopes::new(), HashSet::new());
        let mut visitor = Self { collector, scopes, wanted, reports: false, level: 0, too_deep: false, conditions: 0 };
        visitor.visit_body(body);
        visitor.scopes.rewind();
        visitor.reports = true;
        visitor.visit_body(body);
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

    fn import(&mut self, import: &ast::StmtImport) {
        for alias in &import.names {
            let module = alias.name.as_str();
            let first = module.split('.').next().unwrap_or(module);
            let listed = self.check_import(module, alias.range(), format!("imports {module}"));
            if !listed {
                self.wanted.extend([module.into(), first.into()]);
            }
            match &alias.asname {
                Some(name) => self.bind(name, &[module.into()], alias.start().to_usize()),
                // `import os.path` binds `os`.
                None => self.bind(first, &[first.into()], alias.start().to_usize()),
            }
        }
    }

    fn import_from(&mut self, import: &ast::StmtImportFrom) {
        let module = import.module.as_ref().filter(|_| import.level == 0).map(|module| module.as_str());
        let mut is_reported = false;
        for alias in &import.names {
            let (name, at) = (alias.name.as_str(), alias.start().to_usize());
            let bound = alias.asname.as_ref().unwrap_or(&alias.name).as_str();
            let Some(module) = module else {
                self.bind(bound, &[], at);
                continue;
            };
            if name == "*" {
                self.check_import(module, alias.range(), format!("imports all of {module}"));
                continue;
            }
            let Some(path) = member(module, name) else { continue };
            let why = format!("imports {name} from {module}");
            if !is_reported {
                is_reported =
                    self.check_import(&path, alias.range(), why.clone()) || self.check_import(name, alias.range(), why);
            }
            if !self.is_listed(&path) {
                self.wanted.insert(path.clone());
            }
            self.check_calls(std::slice::from_ref(&path), alias.range());
            self.check_attribute(name, alias.range());
            self.bind(bound, &[path], at);
        }
    }

    fn is_listed(&self, module: &str) -> bool {
        self.collector.lists.unwanted_import(module).is_some()
    }

    fn bind(&mut self, name: &str, paths: &[Rc<str>], at: usize) {
        let from = if self.scopes.in_function() { Some(0) } else { (self.conditions == 0).then_some(at) };
        self.scopes.bind(name, paths, from);
    }

    /// Binds the targets of an assignment to the aliases in its value.
    fn assign(&mut self, target: &Expr, value: &Expr) {
        match (target, value) {
            (Expr::Name(name), _) => {
                let paths = self.resolve(value);
                self.bind(&name.id, &paths, target.end().to_usize());
            }
            (Expr::Tuple(ast::ExprTuple { elts: targets, .. }), Expr::Tuple(ast::ExprTuple { elts: values, .. }))
                if targets.len() == values.len() =>
            {
                targets.iter().zip(values).for_each(|(target, value)| self.assign(target, value));
            }
            _ => {}
        }
    }

    /// Visits defaults and annotations, then the body in the scope of a function.
    fn function(&mut self, parameters: Option<&Parameters>, body: impl FnOnce(&mut Self)) {
        let mut bound = Vec::new();
        for parameter in parameters.into_iter().flatten() {
            let default = parameter.default();
            parameter.annotation().into_iter().chain(default).for_each(|each| self.visit_expr(each));
            bound.push((parameter.name().as_str(), default.map(|each| self.resolve(each)).unwrap_or_default()));
        }
        self.scopes.enter(Kind::Function);
        for (name, paths) in bound {
            self.bind(name, &paths, 0);
        }
        body(self);
        self.scopes.leave();
    }

    /// Returns the functions and modules that an expression may stand for.
    fn resolve(&self, expression: &Expr) -> Paths {
        self.resolve_within(expression, MAX_RESOLVED)
    }

    fn resolve_within(&self, expression: &Expr, levels: usize) -> Paths {
        let Some(levels) = levels.checked_sub(1) else { return Paths::new() };
        let resolve = |each: &Expr| self.resolve_within(each, levels);
        match expression {
            Expr::Name(name) => self.scopes.look_up(&name.id, name.start().to_usize()),
            Expr::Attribute(attribute) => members(&resolve(&attribute.value), &attribute.attr),
            Expr::Subscript(subscript) => match literal(&subscript.slice) {
                Some(key) => items(&resolve(&subscript.value), &key),
                None => Paths::new(),
            },
            Expr::Named(named) => resolve(&named.value),
            Expr::If(either) => [resolve(&either.body), resolve(&either.orelse)].concat(),
            Expr::BoolOp(either) => either.values.iter().flat_map(resolve).collect(),
            Expr::Call(call) => {
                let arguments = &call.arguments.args;
                let functions = resolve(&call.func);
                let is = |path: &str| functions.iter().any(|function| &**function == path);
                if let (true, [object, name, ..]) = (is("getattr"), &**arguments) {
                    return literal(name).map(|name| members(&resolve(object), &name)).unwrap_or_default();
                }
                if let (true, [object]) = (is("vars"), &**arguments) {
                    return resolve(object);
                }
                match imported(&functions, call) {
                    // `__import__("os.path")` returns `os`.
                    Some(Some(module)) if is("__import__") => vec![module.split('.').next().unwrap_or("").into()],
                    Some(Some(module)) => vec![module.into()],
                    _ => Paths::new(),
                }
            }
            _ => Paths::new(),
        }
    }

    fn check_import(&mut self, module: &str, range: TextRange, why: String) -> bool {
        if self.reports { self.collector.check_import(module, span(range), why) } else { self.is_listed(module) }
    }

    fn check_calls(&mut self, paths: &[Rc<str>], range: TextRange) {
        if self.reports {
            paths.iter().for_each(|path| self.collector.check_call(path, span(range)));
        }
    }

    fn check_attribute(&mut self, name: &str, range: TextRange) {
        if self.reports {
            self.collector.check_attribute(name, span(range));
        }
    }

    /// Checks an attribute of an object: a listed function, or a listed module that another one has imported.
    fn check_member(&mut self, object: &[Rc<str>], name: &str, range: TextRange) {
        self.check_calls(&members(object, name), range);
        for module in object.iter().filter(|module| self.wanted.contains(*module)).cloned().collect::<Paths>() {
            let Some(path) = member(&module, name) else { continue };
            let why = format!("reaches {path}");
            if !self.check_import(&path, range, why.clone()) {
                self.check_import(name, range, why);
            }
        }
    }

    fn check_item(&mut self, object: &[Rc<str>], key: &str, range: TextRange) {
        if object.iter().any(|path| &**path == MODULES) {
            self.check_import(key, range, format!("imports {key}"));
        } else {
            self.check_member(object, key, range);
        }
    }

    fn check_call(&mut self, call: &ExprCall) {
        let (functions, arguments) = (self.resolve(&call.func), &call.arguments.args);
        let ends = |end: &str| functions.iter().any(|function| function.ends_with(end));
        // `getattr(x, "name")`, `object.__getattribute__(x, "name")`
        if (ends("getattr") || ends("__getattribute__"))
            && let [object, name, ..] = &**arguments
            && let Some(text) = literal(name)
        {
            let object = self.resolve(object);
            self.check_attribute(&text, name.range());
            self.check_member(&object, &text, call.range());
        }
        if functions.iter().any(|function| &**function == "sys.modules.get")
            && let Some(key) = arguments.first().and_then(literal)
        {
            self.check_import(&key, call.range(), format!("imports {key}"));
        }
        match imported(&functions, call) {
            None => {}
            Some(Some(module)) => {
                self.check_import(&module, call.range(), format!("imports {module}"));
            }
            Some(None) if self.reports => self.collector.dynamic_import(span(call.range())),
            Some(None) => {}
        }
    }

    /// Checks one expression without its subexpressions.
    fn check_expression(&mut self, expression: &Expr) {
        let range = expression.range();
        match expression {
            Expr::Name(name) if name.ctx == ExprContext::Store => self.bind(&name.id, &[], range.end().to_usize()),
            Expr::Name(name) if name.ctx == ExprContext::Load => {
                let paths = self.resolve(expression);
                self.check_calls(&paths, range);
                if paths.iter().any(|path| **path == *name.id) {
                    self.check_attribute(&name.id, range);
                }
            }
            Expr::Attribute(attribute) => {
                self.check_attribute(&attribute.attr, attribute.attr.range());
                if attribute.ctx == ExprContext::Load {
                    let object = self.resolve(&attribute.value);
                    self.check_member(&object, &attribute.attr, range);
                }
            }
            Expr::Subscript(subscript) => {
                let Some(key) = literal(&subscript.slice) else { return };
                if key.starts_with("__") {
                    self.check_attribute(&key, subscript.slice.range());
                }
                if subscript.ctx == ExprContext::Load {
                    let object = self.resolve(&subscript.value);
                    self.check_item(&object, &key, range);
                }
            }
            Expr::Call(call) => self.check_call(call),
            _ => {}
        }
    }

    fn expression(&mut self, expression: &Expr) {
        self.check_expression(expression);
        match expression {
            Expr::Lambda(lambda) => {
                self.function(lambda.parameters.as_deref(), |visitor| visitor.visit_expr(&lambda.body));
            }
            Expr::ListComp(_) | Expr::SetComp(_) | Expr::DictComp(_) | Expr::Generator(_) => {
                self.scopes.enter(Kind::Function);
                walk_expr(self, expression);
                self.scopes.leave();
            }
            Expr::Named(named) => {
                walk_expr(self, expression);
                self.assign(&named.target, &named.value);
            }
            _ => walk_expr(self, expression),
        }
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            Stmt::Global(global) => global.names.iter().for_each(|name| self.scopes.declare_global(name)),
            Stmt::Assign(assign) => {
                // The value is evaluated before its targets are bound.
                self.visit_expr(&assign.value);
                for target in &assign.targets {
                    self.assign(target, &assign.value);
                    self.visit_expr(target);
                }
            }
            Stmt::AnnAssign(assign) => {
                walk_stmt(self, statement);
                if let Some(value) = &assign.value {
                    self.assign(&assign.target, value);
                }
            }
            Stmt::FunctionDef(function) => {
                function.decorator_list.iter().for_each(|each| self.visit_expr(&each.expression));
                function.returns.iter().for_each(|each| self.visit_expr(each));
                self.bind(&function.name, &[], function.start().to_usize());
                self.function(Some(&function.parameters), |visitor| {
                    function.type_params.iter().for_each(|each| visitor.visit_type_params(each));
                    visitor.visit_body(&function.body);
                });
            }
            Stmt::ClassDef(class) => {
                class.decorator_list.iter().for_each(|each| self.visit_expr(&each.expression));
                class.arguments.iter().for_each(|each| self.visit_arguments(each));
                self.scopes.enter(Kind::Class);
                let conditions = std::mem::take(&mut self.conditions);
                class.type_params.iter().for_each(|each| self.visit_type_params(each));
                self.visit_body(&class.body);
                self.conditions = conditions;
                self.scopes.leave();
                self.bind(&class.name, &[], class.end().to_usize());
            }
            Stmt::If(_) | Stmt::While(_) | Stmt::For(_) | Stmt::Try(_) | Stmt::With(_) | Stmt::Match(_) => {
                self.conditions += 1;
                walk_stmt(self, statement);
                self.conditions -= 1;
            }
            _ => walk_stmt(self, statement),
        }
    }
}

impl<'a> Visit<'a> for Visitor<'_, '_> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        self.deeper(|visitor| visitor.statement(statement));
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        self.deeper(|visitor| visitor.expression(expression));
    }

    fn visit_except_handler(&mut self, handler: &'a ExceptHandler) {
        let ExceptHandler::ExceptHandler(each) = handler;
        if let Some(name) = &each.name {
            self.bind(name, &[], each.start().to_usize());
        }
        walk_except_handler(self, handler);
    }

    fn visit_pattern(&mut self, pattern: &'a Pattern) {
        let name = match pattern {
            Pattern::MatchAs(ast::PatternMatchAs { name, .. })
            | Pattern::MatchStar(ast::PatternMatchStar { name, .. }) => name.as_ref(),
            Pattern::MatchMapping(mapping) => mapping.rest.as_ref(),
            _ => None,
        };
        if let Some(name) = name {
            self.bind(name, &[], pattern.start().to_usize());
        }
        self.deeper(|visitor| walk_pattern(visitor, pattern));
    }
}

fn span(range: TextRange) -> Span {
    (range.start().to_usize(), range.end().to_usize())
}

/// Returns the path of an attribute. Built-in functions have paths without `builtins`.
fn member(object: &str, name: &str) -> Option<Rc<str>> {
    match (object, name) {
        ("builtins" | "__builtins__", "__dict__") => Some("builtins".into()),
        ("builtins" | "__builtins__", _) => Some(name.into()),
        (_, "__dict__") => Some(object.into()),
        _ => join(object, name),
    }
}

fn members(objects: &[Rc<str>], name: &str) -> Paths {
    objects.iter().filter_map(|object| member(object, name)).collect()
}

fn items(objects: &[Rc<str>], key: &str) -> Paths {
    let item = |object: &Rc<str>| if &**object == MODULES { Some(key.into()) } else { member(object, key) };
    objects.iter().filter_map(item).collect()
}

/// Returns the module that a call imports, or `Some(None)` for an import whose name is not a literal.
fn imported(functions: &[Rc<str>], call: &ExprCall) -> Option<Option<String>> {
    functions.iter().find(|function| IMPORTERS.contains(&&***function))?;
    let name = call.arguments.args.first().or_else(|| Some(&call.arguments.find_keyword("name")?.value));
    Some(name.and_then(literal))
}

/// Returns the text of string literals, also of those that `+` joins.
fn literal(expression: &Expr) -> Option<String> {
    fn within(expression: &Expr, levels: usize) -> Option<String> {
        match expression {
            Expr::StringLiteral(literal) => Some(literal.value.to_str().to_owned()),
            Expr::BinOp(binary) if binary.op == Operator::Add => {
                let levels = levels.checked_sub(1)?;
                Some(within(&binary.left, levels)? + &within(&binary.right, levels)?)
            }
            _ => None,
        }
    }
    within(expression, MAX_RESOLVED)
}
