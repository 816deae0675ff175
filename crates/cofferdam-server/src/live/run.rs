//! One command in a sandbox of its own, which ends with its caller.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Backend, Completed, Error, ErrorKind, ExecRequest, Posture, Result, Spec, after_close, collect,
};
use cofferdam_volume::sandbox::VolumeMount;
use opentelemetry::trace::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Sandboxes;

/// The time for a killed command to end. Its sandbox is closed after it in any case.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

impl Sandboxes {
    /// Creates a sandbox, runs one command in it and closes it. If the caller leaves, the command is killed. The close
    /// continues, and the reservation of the sandbox ends after it.
    ///
    /// # Errors
    /// - `Unavailable` if the server stops.
    /// - The errors of [`Backend::run`].
    pub async fn run(
        self: &Arc<Self>,
        backend: Arc<dyn Backend>,
        spec: Spec,
        volumes: Vec<VolumeMount>,
        request: ExecRequest,
    ) -> Result<(Completed, Posture)> {
        if self.is_stopping() {
            return Err(Error::new(ErrorKind::Unavailable, "run", "the server is stopping"));
        }
        let left = CancellationToken::new();
        let _leaves = left.clone().drop_guard();
        let run = run(Arc::clone(self), backend, (spec, volumes), request, left);
        let done = self.closing.spawn(run.with_current_context().in_current_span());
        done.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "run", "the run ended early").with_source(error))
        })
    }
}

async fn run(
    all: Arc<Sandboxes>,
    backend: Arc<dyn Backend>,
    (spec, volumes): (Spec, Vec<VolumeMount>),
    request: ExecRequest,
    left: CancellationToken,
) -> Result<(Completed, Posture)> {
    let request = request.to_builder().output_buffer(request.max_output()).build()?;
    let started = async |spec| backend.start_one(spec, request).await;
    let (sandbox, handle) = all.with_volumes(spec, volumes, backend.level(), started).await?;
    let completed = tokio::select! {
        completed = collect(&handle) => completed,
        () = left.cancelled() => {
            // The usage is measured before the sandbox is closed. A failure of the exit is not the caller's any more.
            let _ = tokio::time::timeout(KILL_TIMEOUT, handle.close()).await;
            Err(Error::closed("run"))
        }
    };
    let posture = sandbox.posture().clone();
    after_close(completed.map(|completed| (completed, posture)), sandbox.close().await)
}
