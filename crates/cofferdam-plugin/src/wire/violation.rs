//! Rules of the protocol that a plugin broke.

use thiserror::Error;

/// The rule of the protocol that a plugin broke. The plugin is ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// The headers of a frame are wrong.
    #[error("{0}")]
    BadFrame(&'static str),
    /// A body is larger than allowed.
    #[error("a message of {0} bytes is larger than allowed")]
    TooLarge(usize),
    /// A body is nested too deeply.
    #[error("a message is nested deeper than 64")]
    TooDeep,
    /// A body is not JSON.
    #[error("a message is not JSON")]
    NotJson,
    /// A body is not JSON-RPC 2.0.
    #[error("{0}")]
    BadMessage(&'static str),
    /// A response belongs to no request.
    #[error("a response has an id that no request has")]
    UnknownId,
    /// The plugin sends more than it may.
    #[error("{0}")]
    Flood(&'static str),
    /// A body has too many values.
    #[error("a message has more than 500,000 values")]
    TooComplex,
    /// The plugin closed its input and went on.
    #[error("the plugin closed its input")]
    ClosedInput,
    /// The plugin began a frame and sent nothing more.
    #[error("a frame was begun and not finished within 30 s")]
    Silence,
}

impl Violation {
    /// Returns the name of the rule in logs, such as `bad-frame`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::BadFrame(_) => "bad-frame",
            Self::TooLarge(_) => "too-large",
            Self::TooDeep => "too-deep",
            Self::NotJson => "not-json",
            Self::BadMessage(_) => "bad-message",
            Self::UnknownId => "unknown-id",
            Self::Flood(_) => "flood",
            Self::TooComplex => "too-complex",
            Self::ClosedInput => "closed-input",
            Self::Silence => "silence",
        }
    }
}
