//! The steps before a call of a session: bounds, audit record, static analysis. They need no interpreter, so that none
//! is started for code that may not run.

use std::fmt;
use std::time::Duration;

use cofferdam_audit::Program;
use cofferdam_contract::{ByteSize, Error, Result, Spec};

use super::check;
use crate::audit::Entry;
use crate::result::random_id;
use crate::{CodeRequest, Executor, Place, Screened};

/// A call of a session that is ready to start. If it is dropped, its audit record ends as cancelled.
pub struct Admitted {
    pub(super) id: String,
    pub(super) request: CodeRequest,
    pub(super) entry: Option<Entry>,
    pub(super) screened: Option<Screened>,
    pub(super) timeout: Duration,
    pub(super) max_output: ByteSize,
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Admitted {
    /// Records that there is no session for the call. Returns the error for the caller.
    pub async fn not_started(mut self, error: Error) -> Error {
        if let Some(entry) = self.entry.take()
            && let Err(problem) = entry.never_started(format!("not started: {}", error.kind().as_str())).await
        {
            return problem;
        }
        error
    }
}

impl Executor {
    /// Performs the steps before the first call of a session that is not open yet, for a sandbox with this spec.
    ///
    /// # Errors
    /// - Those of [`Self::execute`] before anything is started.
    pub async fn admit_first(&self, place: &Place, spec: &Spec, request: CodeRequest) -> Result<Admitted> {
        check(&request)?;
        let version = self.0.versions.known(place, spec, &request.language).map(|version| version.to_string());
        self.admit(place, spec, request, version.as_deref()).await
    }

    pub(super) async fn admit(
        &self,
        place: &Place,
        spec: &Spec,
        mut request: CodeRequest,
        version: Option<&str>,
    ) -> Result<Admitted> {
        let config = &self.0.config;
        let language = config.languages.by_name(&request.language)?;
        config.bounds.code(&request.code)?;
        let timeout = config.bounds.timeout(request.timeout, spec.limits().wall_time)?;
        let max_output = config.bounds.output(request.max_output)?;
        (request.timeout, request.max_output) = (Some(timeout), Some(max_output));
        let id = random_id()?;
        let program = Program::code(request.code.as_bytes());
        let mut entry = self.entry(&id, place, spec, &request, program, version).await?;
        let screened = self.screen(&mut entry, language, &request.code).await?;
        Ok(Admitted { id, request, entry, screened, timeout, max_output })
    }
}
