//! The steps before a call of a session: bounds, audit record, static analysis. They need no interpreter, so that none
//! is started for code that may not run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::Program;
use cofferdam_contract::{ByteSize, Error, Result, Spec};

use super::{CodeSession, check};
use crate::audit::Entry;
use crate::result::random_id;
use crate::{BackendProfile, CodeRequest, CodeResult, Executor, HeadTail, OnOutput, Screened};

/// A call of a session that is ready to start. If it is dropped, its audit record ends as cancelled.
pub(super) struct Admitted {
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
    pub(super) async fn not_started(mut self, error: Error) -> Error {
        if let Some(entry) = self.entry.take()
            && let Err(problem) = entry.never_started(format!("not started: {}", error.kind().as_str())).await
        {
            return problem;
        }
        error
    }
}

impl Executor {
    /// Runs the first call of a session, like [`CodeSession::call_head_tail`]. `open` opens the session, in a sandbox with
    /// this spec. It is polled only if the code may run, so that no interpreter starts for refused code.
    ///
    /// # Errors
    /// - Those of `open`.
    /// - Those of [`CodeSession::call_head_tail`].
    pub async fn call_first(
        &self,
        profile: &BackendProfile,
        spec: &Spec,
        request: CodeRequest,
        open: impl Future<Output = Result<Arc<CodeSession>>>,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [HeadTail; 2])> {
        check(&request)?;
        let version = self.0.versions.known(profile, spec, &request.language).map(|version| version.to_string());
        let admitted = self.admit(profile, spec, request, version.as_deref()).await?;
        match open.await {
            Ok(session) => session.call_admitted(admitted, keep, on_output).await,
            Err(error) => Err(admitted.not_started(error).await),
        }
    }

    pub(super) async fn admit(
        &self,
        profile: &BackendProfile,
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
        let mut entry = self.entry(&id, profile, spec, &request, program, version).await?;
        let screened = self.screen(&mut entry, language, &request.code).await?;
        Ok(Admitted { id, request, entry, screened, timeout, max_output })
    }
}
