//! Colours, only for a person's terminal and only where `NO_COLOR` is not set.

use std::io::IsTerminal;

/// Whether to colour what goes to one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// With colours.
    Coloured,
    /// Without.
    Plain,
}

/// What a colour says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Good,
    /// Something to look at.
    Warning,
    /// Something is wrong.
    Bad,
}

impl Style {
    /// For text on standard output.
    pub fn stdout() -> Self {
        Self::of(std::io::stdout().is_terminal())
    }

    /// For text on standard error.
    pub fn stderr() -> Self {
        Self::of(std::io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if terminal && wanted { Self::Coloured } else { Self::Plain }
    }

    /// The text in a colour.
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
