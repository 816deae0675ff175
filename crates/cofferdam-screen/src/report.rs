//! Findings of static analysis, and its errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The findings in one piece of code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The findings in the order of the code, at most [`Rules::most_findings`](crate::Rules::most_findings).
    pub findings: Vec<Finding>,
    /// Whether there are more findings than [`Rules::most_findings`](crate::Rules::most_findings).
    pub truncated: bool,
}

/// A place in the code that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The broken rule.
    pub rule: Rule,
    /// The line, from 1 on.
    pub line: usize,
    /// The column, from 1 on, in characters (Unicode scalar values): neither bytes, as in Python's `ast`, nor UTF-16, as in editors.
    pub column: usize,
    /// The beginning of the code there, at most 80 characters, with control and direction characters escaped.
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
    /// Imports a module of the list, or one below it.
    Import(String),
    /// Imports a module whose name is not a literal.
    DynamicImport,
    /// Names a function of the list, whether it is called or not.
    Call(String),
    /// Uses an attribute of the list.
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

/// A name that configuration or a caller used and that is not known.
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
    /// The line, from 1 on.
    pub line: usize,
    /// The column, from 1 on, in characters.
    pub column: usize,
    /// The message of the parser.
    pub message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

/// The reason that code was not analyzed. None of these means that the code is harmless, or that it is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScreenError {
    /// The code is not a program of the language.
    #[error("syntax error in {0}")]
    Syntax(SyntaxError),
    /// The code is longer than allowed.
    #[error("the code has {bytes} bytes, and {most} is the most that is screened")]
    TooLarge {
        /// The size of the code.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// Brackets, operators or blocks are nested more deeply than allowed.
    #[error("the code is nested too deeply to be screened{}", at(*line))]
    TooDeep {
        /// The line of the limit, if it is known.
        line: Option<usize>,
    },
    /// The parser would take too long for the code.
    #[error("the code is too ambiguous to be screened in bounded time")]
    TooAmbiguous,
    /// The code names an encoding in which the interpreter may read another program than the parser.
    #[error(
        "line {line} says that the code is in '{name}', in which it may be another program than the one that is screened"
    )]
    Encoding {
        /// The line, from 1 on.
        line: usize,
        /// The name of the encoding.
        name: String,
    },
    /// The code has a null byte, behind which interpreters differ.
    #[error("a null byte in line {line}: interpreters differ in what they read behind it")]
    NullByte {
        /// The line, from 1 on.
        line: usize,
    },
    /// The parser failed because of a defect of its own.
    #[error("the parser failed ({0}), which says nothing about the code")]
    Parser(String),
    /// The host refused a thread.
    #[error("no thread to screen on ({0})")]
    Host(String),
    /// The crate was built without the feature `parsers`.
    #[error("this build of Cofferdam has no static analysis")]
    NotBuilt,
}

impl ScreenError {
    /// Returns the remedy.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Syntax(_) => {
                "correct the code, or, if the interpreter accepts it, set the mode of syntax errors to \"warn\" and let the \
                 interpreter decide"
            }
            Self::TooLarge { .. } => "split it, or raise max_bytes",
            Self::TooDeep { .. } => "write it with fewer levels",
            Self::TooAmbiguous => "write it with fewer nested brackets",
            Self::Encoding { .. } => "write it in UTF-8, and leave that line out",
            Self::NullByte { .. } => "leave it out, or write it as \\0",
            Self::Parser(_) => "change the code near what is unusual, or turn screening off",
            Self::Host(_) => "the host has too few resources; try again",
            Self::NotBuilt => "install one that has: cargo install --path crates/cofferdam --features full",
        }
    }
}

fn at(line: Option<usize>) -> String {
    line.map(|line| format!(", from line {line} on")).unwrap_or_default()
}
