//! The findings and errors of the static analysis.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The findings in one piece of code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The findings in the order of the code, at most [`Rules::max_findings`](crate::Rules::max_findings).
    pub findings: Vec<Finding>,
    /// True if there are more findings than [`Rules::max_findings`](crate::Rules::max_findings).
    pub truncated: bool,
}

/// A place in the code that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The broken rule.
    pub rule: Rule,
    /// The line, starting at 1.
    pub line: usize,
    /// The column, starting at 1, in characters (Unicode scalar values): neither bytes, as in Python's `ast`, nor
    /// UTF-16, as in editors.
    pub column: usize,
    /// The code at this position, at most 80 characters, with control and direction characters escaped.
    pub text: String,
    /// The reason in a few words, for the author of the code.
    pub why: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}: {} ({})", self.line, self.column, self.text, self.why, self.rule)
    }
}

/// A rule and what it names, as `import:os`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// An import of a listed module, or of one of its submodules.
    Import(String),
    /// An import of a module whose name is not a literal.
    DynamicImport,
    /// A reference to a listed function, called or not.
    Call(String),
    /// An access to a listed attribute.
    Attribute(String),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(name) => write!(f, "import:{name}"),
            Self::DynamicImport => f.write_str("dynamic-import"),
            Self::Call(name) => write!(f, "call:{name}"),
            Self::Attribute(name) => write!(f, "attribute:{name}"),
        }
    }
}

impl std::str::FromStr for Rule {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let wrong = || UnknownName { what: "rule", name: text.to_owned(), known: RULES };
        if text == "dynamic-import" {
            return Ok(Self::DynamicImport);
        }
        let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
        match kind {
            "import" => Ok(Self::Import(name.to_owned())),
            "call" => Ok(Self::Call(name.to_owned())),
            "attribute" => Ok(Self::Attribute(name.to_owned())),
            _ => Err(wrong()),
        }
    }
}

const RULES: &str = "import:NAME, call:NAME, attribute:NAME, dynamic-import";

impl Serialize for Rule {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An error for an unknown name in the configuration or in a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} '{}'; known: {known}", crate::text::printable(name, 60))]
pub struct UnknownName {
    pub(crate) what: &'static str,
    pub(crate) name: String,
    pub(crate) known: &'static str,
}

/// A syntax error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyntaxError {
    /// The line, starting at 1.
    pub line: usize,
    /// The column, starting at 1, in characters.
    pub column: usize,
    /// The message of the parser.
    pub message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

/// A reason why code was not analyzed. It implies neither that the code is harmless nor that it is harmful.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// The code is not a program of the language.
    #[error("syntax error in {0}")]
    Syntax(SyntaxError),
    /// The code is longer than allowed.
    #[error("the code has {bytes} bytes; at most {max} bytes can be analyzed")]
    TooLarge {
        /// The size of the code in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Brackets, operators or blocks are nested more deeply than allowed.
    #[error("the code is nested too deeply to be analyzed{}", at(*line))]
    TooDeep {
        /// The line of the limit, if it is known.
        line: Option<usize>,
    },
    /// The parser would take too long for the code.
    #[error("the code is too ambiguous to be analyzed in bounded time")]
    TooAmbiguous,
    /// The code declares an encoding in which the interpreter may read a different program than the parser.
    #[error(
        "line {line} declares the encoding '{name}', in which the code may be a different program than the analyzed one"
    )]
    Encoding {
        /// The line, starting at 1.
        line: usize,
        /// The name of the encoding.
        name: String,
    },
    /// The code contains a null byte. Interpreters differ in how they read the code after it.
    #[error("a null byte in line {line}: interpreters differ in how they read the code after it")]
    NullByte {
        /// The line, starting at 1.
        line: usize,
    },
    /// The parser failed because of a bug.
    #[error("the parser failed ({0}); this implies nothing about the code")]
    Parser(String),
    /// The host could not create a thread.
    #[error("cannot start a thread for the analysis ({0})")]
    Host(String),
    /// The crate was built without the feature `parsers`.
    #[error("this build of Cofferdam has no static analysis")]
    NotBuilt,
}

impl AnalysisError {
    /// Returns the remedy.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Syntax(_) => {
                "correct the code, or, if the interpreter accepts it, set the mode of syntax errors to \"warn\" and let the \
                 interpreter decide"
            }
            Self::TooLarge { .. } => "split the code, or raise max_bytes",
            Self::TooDeep { .. } => "use fewer nested levels",
            Self::TooAmbiguous => "use fewer nested brackets",
            Self::Encoding { .. } => "encode the code in UTF-8, and remove that line",
            Self::NullByte { .. } => "remove it, or write it as \\0",
            Self::Parser(_) => "change unusual parts of the code, or turn screening off",
            Self::Host(_) => "try again; the host has too few resources",
            Self::NotBuilt => "install a build that has it: cargo install --path crates/cofferdam --features full",
        }
    }
}

fn at(line: Option<usize>) -> String {
    line.map(|line| format!(", from line {line} on")).unwrap_or_default()
}
