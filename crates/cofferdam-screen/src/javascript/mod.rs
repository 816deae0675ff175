//! JavaScript and TypeScript: read by Oxc's parser, walked twice, once for what names stand for and once for what is not
//! wanted.

mod bind;
mod call;
mod depth;
mod fold;
mod handed;
mod lexer;
mod object;
mod walk;

use std::borrow::Cow;

use oxc_allocator::Allocator;
use oxc_ast::ast::Program;
use oxc_parser::{ParseOptions, Parser};
use oxc_span::SourceType;

use crate::collect::Collector;
use crate::position::{Lines, javascript_line_end, printable};
use crate::report::{Report, ScreenError, SyntaxError};
use crate::rules::Lists;
use crate::scope::Scopes;
use walk::Walker;

pub(crate) use depth::stack_for;

/// Levels of the tree that are walked.
const MOST_LEVELS: usize = 3000;
/// Texts in texts that are read as code.
const MOST_NESTED: usize = 4;
/// Characters of a message of the parser.
const MESSAGE: usize = 300;

/// Screens a program.
pub(crate) fn check(code: &str, lists: Lists<'_>, typescript: bool, most: usize) -> Result<Report, ScreenError> {
    // An editor does not count a mark of the encoding as a column.
    let code = code.strip_prefix('\u{FEFF}').unwrap_or(code);
    let lines = Lines::new(code, javascript_line_end);
    depth::check(code).map_err(|failure| match failure {
        depth::Failure::Deep(at) => ScreenError::TooDeep { line: Some(lines.position(at).line) },
        depth::Failure::Ambiguous => ScreenError::TooAmbiguous,
    })?;
    let mut collector = Collector::new(lists, code.len(), most);
    let mut deep = false;
    each_reading(code, typescript, |program, before| {
        collector.begin(code.len(), before);
        deep |= !read(program, &mut collector, Scopes::default(), 0, 0);
    })
    .map_err(|(at, message)| {
        let at = lines.position(at);
        ScreenError::Syntax(SyntaxError { line: at.line, column: at.column, message })
    })?;
    if deep {
        return Err(ScreenError::TooDeep { line: None });
    }
    Ok(collector.into_report(code, &lines))
}

/// What code may be, which decides whether `await` is a name and `<!--` begins a comment. Which of them runs is Node's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Module,
    /// A script of CommonJS.
    Script,
    /// What stands in an async function of a script, which is how code with `await` runs whose result is kept.
    Awaiting,
}

/// What makes an async function of code.
const HEAD: &str = "(async function () {\n";

/// Gives each tree that the code may be, with how many bytes stand before the code. If there is none, where the first error
/// is and what it says.
fn each_reading(
    code: &str,
    typescript: bool,
    mut take: impl FnMut(&Program<'_>, usize),
) -> Result<(), (usize, String)> {
    let comments = code.contains("<!--") || code.contains("-->");
    let awaits = code.contains("await");
    let mut furthest = (0, "this is no program".to_owned());
    let mut is_read = false;
    for reading in [Reading::Module, Reading::Script, Reading::Awaiting] {
        let differs = match reading {
            Reading::Module => true,
            Reading::Script => !is_read || comments || awaits,
            Reading::Awaiting => comments && awaits,
        };
        if !differs {
            continue;
        }
        let allocator = Allocator::default();
        let (text, before) = match reading {
            Reading::Awaiting => (Cow::Owned(format!("{HEAD}{code}\n}})")), HEAD.len()),
            _ => (Cow::Borrowed(code), 0),
        };
        match parse(&allocator, &text, reading, typescript) {
            Ok(program) => {
                is_read = true;
                take(&program, before);
            }
            // The reading that came further is the one that was meant.
            Err((place, message)) if before == 0 && place >= furthest.0 => furthest = (place, message),
            Err(_) => {}
        }
    }
    if is_read { Ok(()) } else { Err(furthest) }
}

/// The tree, or where the first error is and what it says.
fn parse<'a>(
    allocator: &'a Allocator,
    code: &'a str,
    reading: Reading,
    typescript: bool,
) -> Result<Program<'a>, (usize, String)> {
    let source = if reading == Reading::Module { SourceType::mjs() } else { SourceType::cjs() };
    let options = ParseOptions { preserve_parens: false, ..ParseOptions::default() };
    let parsed = Parser::new(allocator, code, source.with_typescript(typescript)).with_options(options).parse();
    let errors = parsed.diagnostics.errors().map(|error| {
        let place = error.labels.first().map_or(code.len(), |label| label.offset() as usize);
        (place, error)
    });
    match errors.min_by_key(|(place, _)| *place) {
        Some((place, error)) => Err((place, printable(&error.message, MESSAGE))),
        None if parsed.panicked => Err((0, "this is no program".to_owned())),
        None => Ok(parsed.program),
    }
}

/// Walks a tree that stands this deep in others. Gives whether it got to the ground everywhere.
fn read(program: &Program<'_>, collector: &mut Collector<'_>, scopes: Scopes, level: usize, nested: usize) -> bool {
    let scopes = {
        let mut first = Walker::new(collector, scopes, false, level, nested);
        first.program(program);
        if first.too_deep {
            return false;
        }
        first.into_scopes()
    };
    let mut second = Walker::new(collector, scopes, true, level, nested);
    second.program(program);
    !second.too_deep
}
