//! One exec: a module on its own thread, from its start to its exit.
//!
//! ```text
//! parsed -> compiled -> slot acquired -> running --(ends | traps | limit | time | cancel)--> freed -> exit reported
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, ExecHandle, ExecId, ExecRequest, OutputStream, Result, Usage};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::command::{self, Invocation, ProgramSource, check_command};
use super::thread::{input, no_slot, no_thread, stack_size};
use crate::directories::refuse_named;
use crate::engine::{Ticking, WasmEngine};
use crate::guest::{self, Guest};
use crate::guest_control::{ExecHandleControl, GuestControl};
use crate::languages::{self, Mode};
use crate::limiter::Limiter;
use crate::network::{Egress, Rules};
use crate::output::Output;
use crate::program::{Entry, Frozen, Program};
use crate::state::{ExecRegistration, Shared};
use crate::wasi::{Host, HostParts, Run};

/// The input of a guest thread.
struct Job {
    shared: Arc<Shared>,
    plan: Plan,
    parts: HostParts,
    rules: Option<Rules>,
    registration: ExecRegistration,
    ticking: Ticking,
    slot: OwnedSemaphorePermit,
    started: Instant,
}

/// The program of an exec, with its initial state and entry.
struct Plan {
    engine: Arc<WasmEngine>,
    program: Arc<Program>,
    initial: Frozen,
    entry: Entry,
    request: Option<Bytes>,
    passed: u64,
}

impl Plan {
    async fn new(shared: &Shared, invocation: &Invocation, allowed: Duration) -> Result<Self> {
        let (loader, metered) = (&shared.common.loader, shared.policy.is_metered());
        match &invocation.source {
            ProgramSource::Module(module) => {
                let (program, engine) = loader.program(module.clone(), shared.spec.tenant(), metered, allowed).await?;
                check_command(&program)
                    .map_err(|error| error.with_remedy("build it as a program, not as a library"))?;
                let initial = program.initial().clone();
                Ok(Self { engine, program, initial, entry: Entry::Command, request: None, passed: 0 })
            }
            ProgramSource::Script(language, source) => {
                refuse_named(&shared.spec)?;
                let prepared = loader.interpreter(*language, metered, allowed).await?;
                let request =
                    languages::request(Mode::Script, &invocation.cwd, &invocation.args, &invocation.env, source);
                Ok(Self {
                    engine: Arc::clone(&prepared.engine),
                    program: Arc::clone(&prepared.program),
                    initial: prepared.initial.clone(),
                    entry: prepared.entry.clone(),
                    request: Some(request),
                    passed: prepared.passed,
                })
            }
        }
    }
}

/// Starts an exec.
pub(crate) async fn start(shared: &Arc<Shared>, request: ExecRequest) -> Result<ExecHandle> {
    shared.check_open("start")?;
    let invocation = command::read(shared, &request)?;
    let allowed = request.timeout().unwrap_or(shared.spec.limits().wall_time);
    let common = &shared.common;
    let plan = Plan::new(shared, &invocation, allowed).await?;
    let control = Arc::new(GuestControl::default());
    let registration = shared.enter(&control)?;
    let slot = timeout(common.config.timeout, Arc::clone(&common.slots).acquire_owned()).await;
    let Ok(Ok(slot)) = slot else { return Err(no_slot(common)) };
    let ticking = plan.engine.tick().map_err(no_thread)?;
    let (input, writer) = input(&request, &control);
    let (handle, driver) =
        ExecHandle::new(ExecId(registration.id), &request, writer, Arc::new(ExecHandleControl(Arc::clone(&control))));
    let started = Instant::now();
    let policy = shared.policy;
    let rules = Rules::of(shared.spec.network())?;
    let parts = HostParts {
        preopens: command::preopens(shared, &invocation)?,
        args: invocation.args,
        env: invocation.env,
        files: Arc::clone(&shared.files),
        clock: guest::clock(policy, plan.passed),
        random: guest::random(policy),
        limiter: Limiter::new(Arc::clone(&shared.account)),
        run: Run {
            control,
            input,
            output: Output::new(driver),
            // The contract limits durations to a century.
            deadline: started + allowed,
            cpu_limit: shared.spec.limits().cpu_time,
            request: plan.request.clone(),
        },
    };
    let job = Job { shared: Arc::clone(shared), plan, parts, rules, registration, ticking, slot, started };
    let thread = std::thread::Builder::new().name("wasm-guest".to_owned()).stack_size(stack_size(common));
    thread.spawn(move || run(job)).map_err(no_thread)?;
    Ok(handle)
}

/// Runs a guest thread. Everything is freed before the exit is reported.
fn run(job: Job) {
    let Job { shared, plan, parts, rules, registration, ticking, slot, started } = job;
    let Ok(mut host) = Host::new(parts) else { return };
    host.egress = rules.map(Egress::new);
    let mut guest = Guest::new(&plan.engine, &plan.program, host);
    // A panic is a bug of the host, not of the guest. The exec must end in any case.
    let running = || guest.run(shared.policy, &plan.initial, &plan.entry);
    let termination = catch_unwind(AssertUnwindSafe(running));
    let termination = termination
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "exit", "the host panicked while the module ran")));
    let mut host = guest.store.into_data();
    if let Some(message) = guest::trap_message(&termination) {
        host.output.write(OutputStream::Stderr, &message);
    }
    if let Some(egress) = &host.egress {
        host.output.write(OutputStream::Stderr, egress.refusals().as_bytes());
    }
    let driver = host.output.finish();
    let (cpu, limits_hit) = (host.cpu(), host.limits_hit());
    drop(host);
    let usage =
        Usage { cpu_seconds: cpu.as_secs_f64(), peak_memory_bytes: Some(shared.account.peak()), output_bytes: 0 };
    shared.add_cpu(cpu);
    drop((plan, ticking, slot, registration));
    if let Some(driver) = driver {
        driver.finish(termination.map(|termination| guest::exit(termination, limits_hit, started, usage)));
    }
}
