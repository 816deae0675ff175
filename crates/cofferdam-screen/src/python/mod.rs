//! Python: read by Ruff's parser, walked twice, once for what names stand for and once for what is not wanted.

mod call;
mod depth;
mod encoding;
mod fold;
mod handed;
mod walk;

use ruff_python_ast::ModModule;
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged;

use crate::collect::Collector;
use crate::position::{Lines, printable, python_line_end};
use crate::report::{Report, ScreenError, SyntaxError};
use crate::rules::{Lists, PythonVersion};
use crate::scope::Scopes;

use encoding::Other;
use walk::Walker;

/// Levels of the tree that are walked. CPython itself gives up long before, at 100 blocks, at 200 brackets, and where
/// compiling recurses some thousand times.
const MOST_LEVELS: usize = 2000;
/// Texts in texts that are read as code.
const MOST_NESTED: usize = 4;
/// Characters of a message of the parser.
const MESSAGE: usize = 300;

/// Screens a program.
pub(crate) fn check(
    code: &str,
    lists: Lists<'_>,
    version: Option<PythonVersion>,
    most: usize,
) -> Result<Report, ScreenError> {
    // The interpreter skips a mark of the encoding, and so does an editor when it counts columns.
    let code = code.strip_prefix('\u{FEFF}').unwrap_or(code);
    let lines = Lines::new(code, python_line_end);
    match encoding::other(code) {
        Some(Other::Encoding { at, name }) => {
            return Err(ScreenError::Encoding { line: lines.position(at).line, name });
        }
        Some(Other::Null { at }) => return Err(ScreenError::NullByte { line: lines.position(at).line }),
        None => {}
    }
    let module = parse(code, version).map_err(|failure| failure.located(&lines))?;
    let mut collector = Collector::new(lists, code.len(), most);
    if !read(&module, &mut collector, Scopes::default(), 0, 0) {
        return Err(ScreenError::TooDeep { line: None });
    }
    Ok(collector.into_report(code, &lines))
}

/// Why there is no tree.
enum Failure {
    Syntax { at: usize, message: String },
    Deep { at: usize },
}

impl Failure {
    fn located(self, lines: &Lines<'_>) -> ScreenError {
        match self {
            Self::Syntax { at, message } => {
                let at = lines.position(at);
                ScreenError::Syntax(SyntaxError { line: at.line, column: at.column, message })
            }
            Self::Deep { at } => ScreenError::TooDeep { line: Some(lines.position(at).line) },
        }
    }
}

fn parse(code: &str, version: Option<PythonVersion>) -> Result<ModModule, Failure> {
    depth::check(code).map_err(|at| Failure::Deep { at })?;
    let target = version.unwrap_or(PythonVersion::newest());
    let options = ParseOptions::from(Mode::Module).with_target_version(target.0);
    let wrong = |at: usize, message: String| Failure::Syntax { at, message: printable(&message, MESSAGE) };
    let parsed = parse_unchecked(code, options);
    if let Some(error) = parsed.errors().iter().min_by_key(|error| error.location.start()) {
        return Err(wrong(error.location.start().to_usize(), error.error.to_string()));
    }
    // Of a version only if one was asked for: without it, any version that knows the syntax will do.
    let unknown = parsed.unsupported_syntax_errors().iter().filter(|_| version.is_some());
    if let Some(error) = unknown.min_by_key(|error| error.start()) {
        return Err(wrong(error.start().to_usize(), error.to_string()));
    }
    let module = parsed.try_into_module().ok_or_else(|| wrong(0, "this is no module".to_owned()))?;
    Ok(module.into_syntax())
}

/// Walks a tree that stands this deep in others. Gives whether it got to the ground everywhere.
fn read(module: &ModModule, collector: &mut Collector<'_>, scopes: Scopes, level: usize, nested: usize) -> bool {
    let scopes = {
        let mut first = Walker::new(collector, scopes, false, level, nested);
        first.module(module);
        if first.too_deep {
            return false;
        }
        first.into_scopes()
    };
    let mut second = Walker::new(collector, scopes, true, level, nested);
    second.module(module);
    !second.too_deep
}
