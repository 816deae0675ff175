//! A prepared interpreter with the request that claimed it, and a view of its sandbox with the request's spec.

use std::sync::Arc;

use cofferdam_contract::{
    ExecHandle, ExecRequest, LayeredSandbox, Posture, PostureItem, Protection, ProtectionState, Result, Sandbox,
    SandboxLayer, Spec,
};
use cofferdam_interpreter::WarmInterpreter;

/// A prepared interpreter that one request claimed. Dropping it ends it.
#[derive(Debug)]
pub struct ClaimedInterpreter {
    pub(super) interpreter: WarmInterpreter,
    pub(super) spec: Spec,
    pub(super) request: ExecRequest,
}

impl ClaimedInterpreter {
    /// Passes the request to the interpreter. Returns when the code is about to run.
    ///
    /// # Behavior
    /// - Fails as [`WarmInterpreter::start`] does. In that case no code has run outside of a sandbox that is gone,
    ///   so the caller may perform a cold start.
    /// - The sandbox has the request's spec. Its posture is the measured one: the limit on processes is the
    ///   interpreter's, which is [`cofferdam_interpreter::EXTRA_PROCESSES`] above the limit on the code. The row of the
    ///   wall time is that of the request, which the supervisor of the interpreter enforces.
    pub async fn start(self) -> Result<(ExecHandle, Arc<dyn Sandbox>)> {
        let sandbox = Arc::clone(self.interpreter.sandbox());
        match self.interpreter.start(self.request).await {
            Ok(handle) => {
                let posture = posture(sandbox.posture(), sandbox.spec(), &self.spec);
                Ok((handle, Arc::new(LayeredSandbox::new(sandbox, Named { spec: self.spec, posture }))))
            }
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
    }
}

/// Returns the posture with the wall time of the request instead of the template's. The supervisor enforces this timer,
/// not the backend.
fn posture(measured: &Posture, template: &Spec, requested: &Spec) -> Posture {
    let time = requested.limits().wall_time;
    if time == template.limits().wall_time {
        return measured.clone();
    }
    let mechanism = format!("timer of the supervisor, {} s, then SIGKILL to the tree", time.as_secs_f64());
    Posture::new(measured.items().iter().cloned().map(|item| match item.protection {
        // A backend that enforces the time only in part does so for the interpreter too.
        Protection::WallTime if item.state == ProtectionState::Enforced => {
            PostureItem { mechanism: mechanism.clone(), probed: false, ..item }
        }
        _ => item,
    }))
}

/// A layer with the spec and posture of the request.
#[derive(Debug)]
struct Named {
    spec: Spec,
    posture: Posture,
}

impl SandboxLayer for Named {
    fn spec<'a>(&'a self, _inner: &'a dyn Sandbox) -> &'a Spec {
        &self.spec
    }

    fn posture<'a>(&'a self, _inner: &'a dyn Sandbox) -> &'a Posture {
        &self.posture
    }
}
