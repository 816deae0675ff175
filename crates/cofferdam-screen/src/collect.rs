//! Keeps what was found, no more than is wanted, and says where it stands.

use std::collections::BTreeSet;

use crate::position::{Lines, excerpt};
use crate::report::{Finding, Report, Rule};
use crate::rules::Lists;
use crate::value::{Values, append, join};

/// Characters of the code in a finding.
const EXCERPT: usize = 80;
/// Steps of folding that every code has, and that it has for each byte.
const STEPS: usize = 1 << 20;
const STEPS_FOR_BYTE: usize = 32;
/// Bytes of code in texts that are read, in all.
const NESTED: usize = 1 << 20;

/// Bytes of texts and lists that folding makes, in all.
const MADE: usize = 64 << 20;

/// Bytes from where to where.
pub(crate) type Span = (usize, usize);

/// Findings on the way.
#[derive(Debug)]
pub(crate) struct Collector<'r> {
    pub lists: Lists<'r>,
    found: Vec<Found>,
    known: BTreeSet<(usize, Rule)>,
    most: usize,
    truncated: bool,
    steps: usize,
    nested_bytes: usize,
    made_bytes: usize,
    /// Bytes before the code that do not belong to it.
    before: usize,
    /// Where the text stands whose code is read now, and who takes it.
    outer: Option<(Span, String)>,
}

#[derive(Debug)]
struct Found {
    span: Span,
    rule: Rule,
    why: String,
}

impl<'r> Collector<'r> {
    pub fn new(lists: Lists<'r>, bytes: usize, most: usize) -> Self {
        Self {
            lists,
            found: Vec::new(),
            known: BTreeSet::new(),
            // A report with no place for a finding would say that there is none.
            most: most.max(1),
            truncated: false,
            steps: STEPS + bytes.saturating_mul(STEPS_FOR_BYTE),
            nested_bytes: NESTED.max(bytes),
            made_bytes: MADE,
            before: 0,
            outer: None,
        }
    }

    /// Begins to read the code once more, after so many bytes that are not its own. Each reading has all the work that one has.
    pub fn begin(&mut self, bytes: usize, before: usize) {
        self.steps = STEPS + bytes.saturating_mul(STEPS_FOR_BYTE);
        self.nested_bytes = NESTED.max(bytes);
        self.made_bytes = MADE;
        self.before = before;
    }

    /// Where it stands in the code itself.
    fn own(&self, span: Span) -> Span {
        (span.0.saturating_sub(self.before), span.1.saturating_sub(self.before))
    }

    /// Whether it begins before the code.
    pub fn is_before(&self, span: Span) -> bool {
        span.0 < self.before
    }

    pub fn report(&mut self, rule: Rule, span: Span, why: impl Into<String>) {
        let (span, why) = match &self.outer {
            Some((span, taker)) => (*span, format!("{}, in the code that is given to {taker}", why.into())),
            None => (self.own(span), why.into()),
        };
        if self.known.contains(&(span.0, rule.clone())) {
            return;
        }
        if self.found.len() >= self.most {
            self.truncated = true;
            return;
        }
        self.known.insert((span.0, rule.clone()));
        self.found.push(Found { span, rule, why });
    }

    /// Takes steps of those that are left; none are taken when there are too few.
    pub fn step(&mut self, steps: usize) -> bool {
        let left = self.steps.checked_sub(steps);
        self.truncated |= left.is_none();
        self.steps = left.unwrap_or(0);
        left.is_some()
    }

    /// Takes steps for what folding made, and its bytes of those that may be made in all; it is unknown when either is used up.
    pub fn made(&mut self, values: Values) -> Values {
        let (bytes, items) = values.size();
        let left = self.made_bytes.checked_sub(bytes);
        self.made_bytes = left.unwrap_or(0);
        self.truncated |= left.is_none();
        if self.step(bytes / 16 + items) && left.is_some() { values } else { Values::unknown() }
    }

    /// Two in one text, charged like all that is made.
    pub fn append(&mut self, text: &Values, part: &Values) -> Values {
        // Each is put together with each, even where what comes of it is too long to be kept.
        let pairs = text.iter().count() * part.iter().count();
        let bytes = pairs.saturating_mul(text.size().0 + part.size().0) / 8;
        if self.made_bytes == 0 || !self.step(1 + bytes / 16) {
            return Values::unknown();
        }
        self.made(append(text, part))
    }

    /// All items with this between them, charged in the same way.
    pub fn join(&mut self, separator: &str, items: &[Values]) -> Values {
        // What is on the way to the text is not kept, and takes steps alone.
        let made_bytes = self.made_bytes;
        let joined = join(separator, items, |text, part| {
            self.made_bytes = made_bytes;
            self.append(text, part)
        });
        self.made_bytes = made_bytes;
        joined
    }

    /// Lets `read` look at code that stands in a text here.
    pub fn nested(&mut self, code: &str, span: Span, taker: &str, read: impl FnOnce(&mut Self)) {
        let Some(left) = self.nested_bytes.checked_sub(code.len().max(1)) else {
            self.truncated = true;
            return;
        };
        self.nested_bytes = left;
        // Of texts in texts, the outermost stands in the code.
        let before = self.outer.clone();
        let own = self.own(span);
        self.outer.get_or_insert_with(|| (own, taker.to_owned()));
        read(self);
        self.outer = before;
    }

    pub fn truncate(&mut self) {
        self.truncated = true;
    }

    pub fn into_report(mut self, code: &str, lines: &Lines<'_>) -> Report {
        self.found.sort_by(|a, b| (a.span.0, &a.rule).cmp(&(b.span.0, &b.rule)));
        let finding = |found: Found| {
            let at = lines.position(found.span.0);
            let text = excerpt(code, found.span.0, found.span.1, EXCERPT);
            Finding { rule: found.rule, line: at.line, column: at.column, text, why: found.why }
        };
        Report { findings: self.found.into_iter().map(finding).collect(), truncated: self.truncated }
    }
}
