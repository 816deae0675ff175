//! What configuration says about code, put together.

use cofferdam_contract::Result;

use crate::{AuditConfig, Bounds, Languages, ScreeningConfig, SessionBounds};

/// How code runs. It comes from configuration; no call can widen it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodeConfig {
    /// The languages that may run.
    pub languages: Languages,
    /// Upper bounds of one call.
    pub bounds: Bounds,
    /// Whether code is screened, and by which rules.
    pub screening: ScreeningConfig,
    /// The audit log; `None` keeps none.
    pub audit: Option<AuditConfig>,
    /// How many sessions there are, and for how long.
    pub sessions: SessionBounds,
}

impl CodeConfig {
    pub(crate) fn validate(&self) -> Result<()> {
        self.bounds.validate()?;
        self.sessions.validate()
    }
}
