//! Static analysis of code with a parser of its language: the imports, calls and attributes that rules do not allow.
//!
//! It is a convenience for honest programs: it reports early, with line numbers, what code may not do. A program can
//! evade it; the sandbox is the isolation boundary. `docs/screening.md` has examples of both.
//!
//! The crate reads no files and no environment, and does not run the code. The code is untrusted: its size, its nesting
//! depth and the number of findings are bounded, and code beyond the bounds is rejected with an [`AnalysisError`].
//!
//! Without the feature `parsers`, the crate has its types only, and [`Analyzer::check`] fails with
//! [`AnalysisError::NotBuilt`].
//!
//! # Where to look
//!
//! - Rules: `rules.rs`. Findings: `report.rs`, collected by `collector.rs`.
//! - Python: `python/visitor.rs`. JavaScript and TypeScript: `javascript/visitor.rs`.
//! - Names and aliases: `scopes.rs`.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[cfg(feature = "parsers")]
mod collector;
#[cfg(feature = "parsers")]
mod javascript;
#[cfg(feature = "parsers")]
mod position;
#[cfg(feature = "parsers")]
mod python;
mod report;
mod rules;
#[cfg(feature = "parsers")]
mod scopes;
mod text;
#[cfg(feature = "parsers")]
mod worker;

pub use report::{AnalysisError, Finding, Report, Rule, SyntaxError, UnknownName};
pub use rules::{JavaScriptRules, PythonRules, PythonVersion, Rules};

/// The language of the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python 3.
    Python,
    /// JavaScript, as a module or as a CommonJS script.
    JavaScript,
    /// TypeScript without JSX. Imports of types are ignored.
    TypeScript,
}

/// The action on findings or on syntax errors, carried out by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Code is not analyzed.
    Off,
    /// Code runs, and its findings are part of its result.
    Warn,
    /// Code with a finding does not run.
    Block,
}

impl Mode {
    /// The default for syntax errors. The parser accepts the syntax of all known versions. Its error is therefore
    /// nearly always an error of the interpreter too, and is reported before anything is started.
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

/// A check of code by rules.
///
/// ```
/// # fn main() -> Result<(), cofferdam_screen::AnalysisError> {
/// use cofferdam_screen::{Analyzer, Language, Rules};
///
/// # if !Analyzer::is_built() { return Ok(()) }
/// let analyzer = Analyzer::new(Rules::default());
/// let report = analyzer.check(Language::Python, "import os as x\n")?;
/// assert_eq!(report.findings[0].to_string(), "line 1, column 8: os as x: imports os (import:os)");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Analyzer {
    rules: Rules,
}

impl Analyzer {
    /// Creates a check with these rules.
    pub fn new(rules: Rules) -> Self {
        Self { rules }
    }

    /// Returns the rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns true if this build has the parsers.
    pub const fn is_built() -> bool {
        cfg!(feature = "parsers")
    }

    /// Returns the findings in this code.
    ///
    /// # Errors
    ///
    /// Fails if the code was not analyzed: it is not a program of the language, it is larger or deeper than allowed,
    /// the parser failed, or this build has none. An interpreter may still accept the code.
    pub fn check(&self, language: Language, code: &str) -> Result<Report, AnalysisError> {
        #[cfg(feature = "parsers")]
        return self.parse(language, code);
        #[cfg(not(feature = "parsers"))]
        {
            let _ = (language, code);
            Err(AnalysisError::NotBuilt)
        }
    }

    #[cfg(feature = "parsers")]
    fn parse(&self, language: Language, code: &str) -> Result<Report, AnalysisError> {
        use rules::Lists;

        let Rules { python, javascript, max_bytes, max_findings } = &self.rules;
        // The parsers have positions of 32 bits.
        let max = (*max_bytes).min(u32::MAX as usize / 4);
        if code.len() > max {
            return Err(AnalysisError::TooLarge { bytes: code.len(), max });
        }
        let more_stack = if language == Language::Python { 0 } else { javascript::stack_for(code) };
        worker::run(code.len(), more_stack, || match language {
            Language::Python => python::check(code, Lists::python(python), python.version, *max_findings),
            Language::JavaScript => javascript::check(code, Lists::javascript(javascript), false, *max_findings),
            Language::TypeScript => javascript::check(code, Lists::javascript(javascript), true, *max_findings),
        })
    }
}

#[cfg(all(test, not(feature = "parsers")))]
mod tests {
    use super::*;

    /// Promise (Static analysis and audit log): Without the parsers, every analysis is an error.
    #[test]
    fn without_parsers_every_check_fails() {
        let error = Analyzer::default().check(Language::Python, "x = 1").unwrap_err();
        assert_eq!(error.to_string(), "this build of Cofferdam has no static analysis");
        assert!(error.remedy().contains("--features full"));
    }
}
