//! The findings of one check: bounded, without duplicates, in the order of the code.

use std::collections::BTreeSet;

use crate::position::{Lines, excerpt};
use crate::report::{Finding, Report, Rule};
use crate::rules::Lists;

/// The length of the code excerpt in a finding, in characters.
const MAX_EXCERPT: usize = 80;

/// A range of bytes: start and end.
pub(crate) type Span = (usize, usize);

/// The rules of a check and the findings so far.
#[derive(Debug)]
pub(crate) struct Collector<'r> {
    pub lists: Lists<'r>,
    found: Vec<(Span, Rule, String)>,
    known: BTreeSet<(usize, Rule)>,
    max: usize,
    truncated: bool,
}

impl<'r> Collector<'r> {
    pub fn new(lists: Lists<'r>, max: usize) -> Self {
        // A report without space for a finding would look like a report of harmless code.
        Self { lists, found: Vec::new(), known: BTreeSet::new(), max: max.max(1), truncated: false }
    }

    pub fn report(&mut self, rule: Rule, span: Span, why: impl Into<String>) {
        let key = (span.0, rule.clone());
        if self.known.contains(&key) {
            return;
        }
        if self.found.len() >= self.max {
            self.truncated = true;
            return;
        }
        self.known.insert(key);
        self.found.push((span, rule, why.into()));
    }

    /// Reports a module of the list of imports. Returns true if the module is on the list.
    pub fn check_import(&mut self, module: &str, span: Span, why: impl Into<String>) -> bool {
        let entry = self.lists.unwanted_import(module);
        if let Some(entry) = entry {
            self.report(Rule::Import(entry.to_owned()), span, why);
        }
        entry.is_some()
    }

    pub fn check_call(&mut self, path: &str, span: Span) {
        if let Some(call) = self.lists.unwanted_call(path) {
            self.report(Rule::Call(call.to_owned()), span, format!("uses {call}"));
        }
    }

    pub fn check_attribute(&mut self, name: &str, span: Span) {
        if let Some(attribute) = self.lists.unwanted_attribute(name) {
            self.report(Rule::Attribute(attribute.to_owned()), span, format!("uses the attribute {attribute}"));
        }
    }

    pub fn dynamic_import(&mut self, span: Span) {
        if self.lists.dynamic_imports {
            self.report(Rule::DynamicImport, span, "imports a module whose name is not a literal");
        }
    }

    pub fn into_report(mut self, code: &str, lines: &Lines<'_>) -> Report {
        self.found.sort_by(|a, b| (a.0.0, &a.1).cmp(&(b.0.0, &b.1)));
        let finding = |(span, rule, why): (Span, Rule, String)| {
            let at = lines.position(span.0);
            Finding { rule, line: at.line, column: at.column, text: excerpt(code, span.0, span.1, MAX_EXCERPT), why }
        };
        Report { findings: self.found.into_iter().map(finding).collect(), truncated: self.truncated }
    }
}
