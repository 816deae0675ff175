//! Static analysis of Python with Ruff's parser.

mod depth;
mod encoding;
mod visitor;

use ruff_python_ast::{ModModule, PythonVersion as Target};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged;

use crate::collector::Collector;
use crate::position::{Lines, python_line_end};
use crate::report::{AnalysisError, Report, SyntaxError};
use crate::rules::{Lists, PythonVersion};
use crate::text::printable;

use encoding::Other;
use visitor::Visitor;

/// The maximum number of characters of a parser message.
const MAX_MESSAGE: usize = 300;

/// Checks a program.
pub(crate) fn check(
    code: &str,
    lists: Lists<'_>,
    version: Option<PythonVersion>,
    max: usize,
) -> Result<Report, AnalysisError> {
    // The interpreter skips a byte order mark, and editors do not count it as a column.
    let code = code.strip_prefix('\u{FEFF}').unwrap_or(code);
    let lines = Lines::new(code, python_line_end);
    match encoding::other(code) {
        Some(Other::Encoding { at, name }) => {
            return Err(AnalysisError::Encoding { line: lines.position(at).line, name });
        }
        Some(Other::Null { at }) => return Err(AnalysisError::NullByte { line: lines.position(at).line }),
        None => {}
    }
    depth::check(code).map_err(|at| AnalysisError::TooDeep { line: Some(lines.position(at).line) })?;
    let module = parse(code, version).map_err(|(at, message)| {
        let at = lines.position(at);
        AnalysisError::Syntax(SyntaxError { line: at.line, column: at.column, message })
    })?;
    let mut collector = Collector::new(lists, max);
    if Visitor::check(&module.body, &mut collector) {
        Ok(collector.into_report(code, &lines))
    } else {
        Err(AnalysisError::TooDeep { line: None })
    }
}

/// Returns the syntax tree, or the byte and the message of the first error.
fn parse(code: &str, version: Option<PythonVersion>) -> Result<ModModule, (usize, String)> {
    let wrong = |at: usize, message: String| (at, printable(&message, MAX_MESSAGE));
    let minor = version.unwrap_or(PythonVersion::newest()).minor();
    let options = ParseOptions::from(Mode::Module).with_target_version(Target { major: 3, minor });
    let parsed = parse_unchecked(code, options);
    if let Some(error) = parsed.errors().iter().min_by_key(|error| error.location.start()) {
        return Err(wrong(error.location.start().to_usize(), error.error.to_string()));
    }
    // Without a version in the rules, the syntax of any known version is accepted.
    let unknown = parsed.unsupported_syntax_errors().iter().filter(|_| version.is_some());
    if let Some(error) = unknown.min_by_key(|error| error.start()) {
        return Err(wrong(error.start().to_usize(), error.to_string()));
    }
    let module = parsed.try_into_module().ok_or_else(|| wrong(0, "this is not a module".to_owned()))?;
    Ok(module.into_syntax())
}
