//! What configuration says about code, put together.

use std::fmt;
use std::sync::Arc;

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
    /// Who is told of what goes wrong and stops nothing.
    pub warn: Warn,
}

/// What tells of something that goes wrong and stops nothing, once for each executor. By default nobody is told. It is no
/// part of what is configured: any two are equal.
#[derive(Clone, Default)]
pub struct Warn(Option<Arc<Tell>>);

type Tell = dyn Fn(&str) + Send + Sync;

impl Warn {
    /// Tells through `tell`, in one sentence.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    pub(crate) fn tell(&self, text: &str) {
        if let Some(tell) = &self.0 {
            tell(text);
        }
    }
}

impl fmt::Debug for Warn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Warn")
    }
}

impl PartialEq for Warn {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Warn {}

impl CodeConfig {
    pub(crate) fn validate(&self) -> Result<()> {
        self.bounds.validate()?;
        self.sessions.validate()
    }
}
