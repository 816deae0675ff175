//! Static screening of code: what a program imports and calls, by a parser of its language, before anything of it runs.
//!
//! It is a seat belt. It tells an honest program, or a model that writes one, early and with a line number that something
//! is not wanted here; whoever means to get past it can, and then stands before the wall, which is the sandbox. `docs/screening.md`
//! has examples of both.
//!
//! Nothing here reads a file or the environment, and nothing of the code runs. Code is hostile: its size, the depth of its
//! nesting and the work that it causes are bounded, and what is beyond is refused as [`ScreenError`].
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod collect;
mod ground;
mod javascript;
mod position;
mod python;
mod report;
mod rules;
mod scope;
mod value;

pub use report::{Finding, Report, Rule, ScreenError, SyntaxError, UnknownName};
pub use rules::{JavaScriptRules, PythonRules, PythonVersion, Rules};

use rules::Lists;

/// What code is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python 3.
    Python,
    /// JavaScript, as a module or as a script: whichever reads it.
    JavaScript,
    /// TypeScript without JSX. Types import nothing.
    TypeScript,
}

/// What the caller does with findings, or with syntax errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Code is not screened.
    Off,
    /// Code runs, and what was found stands beside its result.
    Warn,
    /// Code with a finding does not run.
    Block,
}

impl Mode {
    /// For syntax errors, if nobody chose. The parser accepts what any known version does, so its error is nearly always the
    /// interpreter's, and is told without starting anything; and code that cannot be read is not screened.
    pub const SYNTAX_DEFAULT: Self = Self::Block;
}

macro_rules! words {
    ($type:ty, $what:literal, $known:literal, $($variant:ident = $word:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),* })
            }
        }

        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(UnknownName { what: $what, name: text.to_owned(), known: $known }),
                }
            }
        }
    };
}

words!(Mode, "mode of screening", "off, warn, block", Off = "off", Warn = "warn", Block = "block");
words!(
    Language,
    "language to screen",
    "python, javascript, typescript",
    Python = "python",
    JavaScript = "javascript",
    TypeScript = "typescript"
);

/// Screens code by rules.
///
/// ```
/// # fn main() -> Result<(), cofferdam_screen::ScreenError> {
/// use cofferdam_screen::{Language, Rules, Screen};
///
/// let screen = Screen::new(Rules::default());
/// let report = screen.check(Language::Python, "import os as x\n")?;
/// assert_eq!(report.findings[0].to_string(), "line 1, column 8: os as x: imports os (import:os)");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Screen {
    rules: Rules,
}

impl Screen {
    /// By these rules.
    pub fn new(rules: Rules) -> Self {
        Self { rules }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What the rules do not want of this code.
    ///
    /// # Errors
    ///
    /// Code that was not screened: because it is not a program of the language, is larger or deeper than is read, or because
    /// the parser failed. It may still be what an interpreter accepts.
    pub fn check(&self, language: Language, code: &str) -> Result<Report, ScreenError> {
        let Rules { python, javascript, max_bytes, most_findings } = &self.rules;
        // Positions of the parsers have 32 bits.
        let most = (*max_bytes).min(u32::MAX as usize / 4);
        if code.len() > most {
            return Err(ScreenError::TooLarge { bytes: code.len(), most });
        }
        let besides = if language == Language::Python { 0 } else { javascript::stack_for(code) };
        ground::on_own_stack(code.len(), besides, || match language {
            Language::Python => python::check(code, Lists::python(python), python.version, *most_findings),
            Language::JavaScript => javascript::check(code, Lists::javascript(javascript), false, *most_findings),
            Language::TypeScript => javascript::check(code, Lists::javascript(javascript), true, *most_findings),
        })
    }
}
