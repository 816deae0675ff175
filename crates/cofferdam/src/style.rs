//! Colours, used only on terminals and only if `NO_COLOR` is not set.

use std::io::IsTerminal;

/// The style of text on one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// With colours.
    Coloured,
    /// Without colours.
    Plain,
}

/// The meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Success.
    Good,
    /// A warning.
    Warning,
    /// An error.
    Bad,
}

impl Style {
    /// Returns the style for standard output.
    pub fn stdout() -> Self {
        Self::of(std::io::stdout().is_terminal())
    }

    /// Returns the style for standard error.
    pub fn stderr() -> Self {
        Self::of(std::io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if terminal && wanted { Self::Coloured } else { Self::Plain }
    }

    /// Returns the text in the colour of `tone`.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => 32,
            Tone::Warning => 33,
            Tone::Bad => 31,
        };
        match self {
            Self::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Plain => text.to_owned(),
        }
    }
}
