//! What screening found, and why it could not.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What there is to say about one piece of code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// In the order of the code; at most as many as [`Rules::most_findings`](crate::Rules::most_findings).
    pub findings: Vec<Finding>,
    /// Whether there is more than stands in `findings`: more findings than were asked for, or an end of what may be folded.
    pub truncated: bool,
}

/// One place that a rule does not want.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// From 1 on.
    pub line: usize,
    /// From 1 on, in characters (Unicode scalar values): neither bytes, as Python's `ast` counts, nor UTF-16, as editors do.
    pub column: usize,
    /// The beginning of the code there, at most 80 characters, with control and direction characters escaped.
    pub text: String,
    /// What it does, in a few words for whoever wrote the code.
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
    /// A module of the list of imports, or one below it.
    Import(String),
    /// An import of what only shows when the code runs.
    DynamicImport,
    /// A function of the list of calls, called or handed on.
    Call(String),
    /// An attribute of the list.
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

/// A word that stands for nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} '{}'; known: {known}", crate::position::printable(name, 60))]
pub struct UnknownName {
    pub(crate) what: &'static str,
    pub(crate) name: String,
    pub(crate) known: &'static str,
}

/// What the parser could not read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyntaxError {
    /// From 1 on.
    pub line: usize,
    /// From 1 on, in characters.
    pub column: usize,
    /// In the words of the parser.
    pub message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

/// Why code was not screened. None of these says that the code is harmless, or that it is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScreenError {
    /// It is not a program of the language.
    #[error("syntax error in {0}")]
    Syntax(SyntaxError),
    /// It is longer than is read.
    #[error("the code has {bytes} bytes, and {most} is the most that is screened")]
    TooLarge {
        /// What it has.
        bytes: usize,
        /// What it may have.
        most: usize,
    },
    /// Brackets, operators or blocks stand deeper in each other than is read.
    #[error("the code is nested too deeply to be screened{}", at(*line))]
    TooDeep {
        /// The line where the end was, if that is known.
        line: Option<usize>,
    },
    /// The parser reads the same code again and again.
    #[error("the code is too ambiguous to be screened in bounded time")]
    TooAmbiguous,
    /// The interpreter may read another program than the parser, because the code says that it is in another encoding.
    #[error(
        "line {line} says that the code is in '{name}', in which it may be another program than the one that is screened"
    )]
    Encoding {
        /// From 1 on.
        line: usize,
        /// The encoding, as it stands there.
        name: String,
    },
    /// The same, because of a null byte.
    #[error("a null byte in line {line}: interpreters differ in what they read behind it")]
    NullByte {
        /// From 1 on.
        line: usize,
    },
    /// The parser failed, which is a defect of its own.
    #[error("the parser failed ({0}), which says nothing about the code")]
    Parser(String),
    /// The host gave no thread to work on.
    #[error("no thread to screen on ({0})")]
    Host(String),
}

impl ScreenError {
    /// What to do about it.
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
        }
    }
}

fn at(line: Option<usize>) -> String {
    line.map(|line| format!(", from line {line} on")).unwrap_or_default()
}
