//! Problems of a manifest.

use std::fmt;

use serde::Serialize;

/// The weight of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The plugin cannot be used.
    Error,
    /// The plugin can be used, but a part of its manifest has no effect or works in development only.
    Warning,
}

impl Severity {
    /// Returns the name, such as `error`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// A problem of a manifest, with its location and remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The weight.
    pub severity: Severity,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The JSON Pointer of the part.
    pub pointer: String,
    /// The rule that is broken, such as `unknown-key`.
    pub rule: &'static str,
    /// The description. Contains no control characters.
    pub message: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, line, column, rule, message, remedy, .. } = self;
        write!(f, "{line}:{column}: {}[{rule}]: {message}\n  try: {remedy}", severity.as_str())
    }
}

/// Returns a text without control characters, cut at a bound.
pub(crate) fn plain(text: &str) -> String {
    const MAX: usize = 200;
    let mut short: String = text.chars().take(MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX).is_some() {
        short.push('…');
    }
    short
}
