//! The configuration of code execution.

use std::fmt;
use std::sync::Arc;

use cofferdam_contract::Result;

use crate::{AuditConfig, Bounds, Languages, ScreeningConfig, SessionBounds};

/// The configuration of code execution. A call cannot widen it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CodeConfig {
    /// The languages that may run.
    pub languages: Languages,
    /// Upper bounds of one call.
    pub bounds: Bounds,
    /// The static analysis of code.
    pub screening: ScreeningConfig,
    /// The audit log. Default: none.
    pub audit: Option<AuditConfig>,
    /// Number and lifetime of sessions.
    pub sessions: SessionBounds,
    /// The receiver of warnings.
    pub warn: Warn,
}

/// A receiver of warnings about problems that do not stop an execution, each emitted once per executor. By default
/// warnings are discarded. All values compare as equal, so that configurations can be compared.
#[derive(Clone, Default)]
pub struct Warn(Option<Arc<Callback>>);

type Callback = dyn Fn(&str) + Send + Sync;

impl Warn {
    /// Creates a receiver that calls `report` with one sentence per warning.
    pub fn new(report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    pub(crate) fn emit(&self, text: &str) {
        if let Some(report) = &self.0 {
            report(text);
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
