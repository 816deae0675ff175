//! JavaScript and TypeScript: read by Oxc's parser, walked twice, once for what names stand for and once for what is not
//! wanted.

mod call;
mod depth;
mod fold;
mod lexer;
mod object;
mod walk;

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
    let allocator = Allocator::default();
    let program = parse(&allocator, code, typescript).map_err(|(at, message)| {
        let at = lines.position(at);
        ScreenError::Syntax(SyntaxError { line: at.line, column: at.column, message })
    })?;
    let mut collector = Collector::new(lists, code.len(), most);
    if !read(&program, &mut collector, Scopes::default(), 0, 0) {
        return Err(ScreenError::TooDeep { line: None });
    }
    Ok(collector.into_report(code, &lines))
}

/// The tree, or where the first error is and what it says. Code is right if it is as a module or as a script.
fn parse<'a>(allocator: &'a Allocator, code: &'a str, typescript: bool) -> Result<Program<'a>, (usize, String)> {
    let language = |source: SourceType| source.with_typescript(typescript);
    let options = ParseOptions { preserve_parens: false, ..ParseOptions::default() };
    let mut furthest = (0, "this is no program".to_owned());
    for source in [language(SourceType::mjs()), language(SourceType::cjs())] {
        let parsed = Parser::new(allocator, code, source).with_options(options).parse();

        let errors = parsed.diagnostics.errors().map(|error| {
            let place = error.labels.first().map_or(code.len(), |label| label.offset() as usize);
            (place, error)
        });
        let Some((place, error)) = errors.min_by_key(|(place, _)| *place) else {
            if parsed.panicked {
                continue;
            }
            return Ok(parsed.program);
        };
        // The reading that came further is the one that was meant.
        if place >= furthest.0 {
            furthest = (place, printable(&error.message, MESSAGE));
        }
    }
    Err(furthest)
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
