//! Creation of sandboxes, alone or together with their only command.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{Command, Error, ErrorKind, ExecHandle, ExecRequest, Result, Sandbox};

use crate::client::Launcher;
use crate::core::Enrolled;
use crate::pending::{PendingSandbox, SandboxInputs, kind};
use crate::protocol::{self, Create, Evidence, Expected, Request};
use crate::sandbox::ProcessSandbox;
use crate::{error, exec, network};

/// The number of a sandbox's first exec.
const FIRST_EXEC: u64 = 1;
/// Time for an init to receive a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates and measures a sandbox. Removes it if it falls short of the spec.
pub async fn create(launcher: Arc<Launcher>, mut create: Create, inputs: SandboxInputs) -> Result<ProcessSandbox> {
    create.probe = launcher.known_probes(kind(&create)).is_none();
    let control = launcher.create(&create)?;
    Ok(receive(launcher, create, inputs, control).await?.0)
}

/// Creates a sandbox and starts its only command. The command is requested together with the sandbox. It starts at
/// once if the measurements equal those of an accepted sandbox with the same request, or, without such a sandbox, if
/// they are complete. Otherwise it starts once the measurements are accepted, or never.
pub async fn start_one(
    launcher: Arc<Launcher>,
    mut plan: Create,
    inputs: SandboxInputs,
    request: ExecRequest,
) -> Result<(ProcessSandbox, ExecHandle)> {
    // Such a command needs files of the sandbox.
    let needs_files = inputs.access.as_ref().is_some_and(network::has_files);
    if needs_files || matches!(request.command(), Command::Script(_)) || request.terminal().is_some() {
        let sandbox = create(launcher, plan, inputs).await?;
        let started = sandbox.start(request).await;
        return with(sandbox, started).await;
    }
    plan.probe = launcher.known_probes(kind(&plan)).is_none();
    plan.expected = Some(match launcher.expected(&plan) {
        Some(evidence) => Expected::Same(Box::new(Evidence::clone(&evidence))),
        None => Expected::Complete,
    });
    let mut prepared = exec::prepare(&inputs.surroundings, None, FIRST_EXEC, &request)?;
    prepared.start.if_expected = true;
    prepared.start.last = true;
    let control = launcher.create(&plan)?;
    let fds: Vec<_> = prepared.theirs.iter().map(AsFd::as_fd).collect();
    let request_failed = |error| error::os("start", "cannot request the command", error);
    let mut failed = protocol::send(control.as_fd(), &Request::Start(prepared.start), &fds, REQUEST_TIMEOUT).err();
    // If the sandbox is refused before the request is sent, the launcher reports the reason.
    let refused = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    if let Some(error) = failed.take_if(|error| !refused.contains(&error.kind())) {
        return Err(request_failed(error));
    }
    drop(fds);
    drop(prepared.theirs);
    // The command's time begins with its start, independent of the time to create its sandbox.
    let (sandbox, enrolled, begun) = receive(launcher, plan, inputs, control).await?;
    if let Some(error) = failed {
        return Err(request_failed(error).with_failed_close(sandbox.close().await));
    }
    let core = sandbox.core();
    let enrolled = enrolled.ok_or_else(|| Error::closed("start"))?;
    debug_assert_eq!(enrolled.exec, FIRST_EXEC);
    let base = exec::Base::begin(core, FIRST_EXEC);
    let guard = exec::Unstarted { core, exec: Some(FIRST_EXEC) };
    let running = exec::Running { ours: prepared.ours, program: prepared.program, directory: prepared.directory };
    let started = match exec::attach(core, &request, begun, (enrolled, base), running, guard).await {
        // The measurements are not as expected, but were accepted: request the start again.
        Err(error) if error.kind() == ErrorKind::Internal => sandbox.start(request).await,
        other => other,
    };
    with(sandbox, started).await
}

/// Returns the sandbox and its exec, or closes the sandbox if the start failed.
async fn with(sandbox: ProcessSandbox, started: Result<ExecHandle>) -> Result<(ProcessSandbox, ExecHandle)> {
    match started {
        Ok(handle) => Ok((sandbox, handle)),
        Err(error) => Err(error.with_failed_close(sandbox.close().await)),
    }
}

/// Waits for a requested sandbox, and accepts or removes it.
///
/// Returns also the first exec, if it was requested with the sandbox, and the time when the sandbox was ready.
async fn receive(
    launcher: Arc<Launcher>,
    create: Create,
    inputs: SandboxInputs,
    control: OwnedFd,
) -> Result<(ProcessSandbox, Option<Enrolled>, Instant)> {
    let SandboxInputs { spec, surroundings, directory, access } = inputs;
    let (pending, enrolled) =
        PendingSandbox::receive(launcher, create, (directory, surroundings, access), control).await?;
    let ready = pending.ready();
    Ok((pending.accept(spec).await?, enrolled, ready))
}
