//! Static analysis of JavaScript and TypeScript with Oxc's parser.

mod depth;
mod lexer;
mod visitor;

use oxc_allocator::Allocator;
use oxc_ast::ast::Program;
use oxc_parser::{ParseOptions, Parser};
use oxc_span::SourceType;

use crate::collector::Collector;
use crate::position::{Lines, javascript_line_end};
use crate::report::{AnalysisError, Report, SyntaxError};
use crate::rules::Lists;
use crate::text::printable;

pub(crate) use depth::stack_for;
use visitor::Visitor;

/// The maximum number of characters of a parser message.
const MAX_MESSAGE: usize = 300;

/// Checks a program.
pub(crate) fn check(code: &str, lists: Lists<'_>, typescript: bool, max: usize) -> Result<Report, AnalysisError> {
    // Editors do not count a byte order mark as a column.
    let code = code.strip_prefix('\u{FEFF}').unwrap_or(code);
    let lines = Lines::new(code, javascript_line_end);
    depth::check(code).map_err(|failure| match failure {
        depth::Failure::Deep(at) => AnalysisError::TooDeep { line: Some(lines.position(at).line) },
        depth::Failure::Ambiguous => AnalysisError::TooAmbiguous,
    })?;
    let mut collector = Collector::new(lists, max);
    // The interpreter decides whether a file is a module or a CommonJS script. The two differ in `await` and `<!--`.
    let differ = ["await", "<!--", "-->"].iter().any(|word| code.contains(word));
    let (mut is_parsed, mut error) = (false, (0, String::new()));
    for source in [SourceType::mjs(), SourceType::cjs()] {
        if is_parsed && !differ {
            break;
        }
        let allocator = Allocator::default();
        match parse(&allocator, code, source.with_typescript(typescript)) {
            Ok(program) if Visitor::check(&program, &mut collector) => is_parsed = true,
            Ok(_) => return Err(AnalysisError::TooDeep { line: None }),
            // The error at the later position belongs to the kind of file that the author meant.
            Err(other) if other.0 >= error.0 => error = other,
            Err(_) => {}
        }
    }
    if is_parsed {
        return Ok(collector.into_report(code, &lines));
    }
    let at = lines.position(error.0);
    Err(AnalysisError::Syntax(SyntaxError { line: at.line, column: at.column, message: error.1 }))
}

/// Returns the syntax tree, or the byte and the message of the first error.
fn parse<'a>(allocator: &'a Allocator, code: &'a str, source: SourceType) -> Result<Program<'a>, (usize, String)> {
    let options = ParseOptions { preserve_parens: false, ..ParseOptions::default() };
    let parsed = Parser::new(allocator, code, source).with_options(options).parse();
    let errors = parsed.diagnostics.errors().map(|error| {
        let at = error.labels.first().map_or(code.len(), |label| label.offset() as usize);
        (at, error)
    });
    match errors.min_by_key(|(at, _)| *at) {
        Some((at, error)) => Err((at, printable(&error.message, MAX_MESSAGE))),
        None if parsed.panicked => Err((0, "this is not a program".to_owned())),
        None => Ok(parsed.program),
    }
}
