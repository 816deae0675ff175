//! One exec: a module on a thread of its own, from its start to its exit.
//!
//! ```text
//! asked -> compiled -> seated -> running --(ends | traps | limit | time | cancel)--> freed -> exit reported
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    Error, ErrorKind, ExecHandle, ExecId, ExecRequest, OutputStream, Result, Stdin, StdinWriter, Usage,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::command::{self, Asked, What};
use crate::engine::{Machine, Ticking};
use crate::guest::{self, Guest};
use crate::languages::{self, Mode};
use crate::leash::{Control, Input, InputWriter, Leash};
use crate::limiter::Limiter;
use crate::network::{Egress, Rules};
use crate::output::Output;
use crate::preopens::{preopens, refuse_named};
use crate::program::{Entry, Frozen, Program};
use crate::screen::not_executable;
use crate::state::{Common, Seat, Shared};
use crate::wasi::{Host, HostParts, Run};

/// Stack for the host's part of a guest's thread.
pub(crate) const HOST_STACK: u64 = 1 << 20;

/// What a guest's thread is given.
struct Job {
    shared: Arc<Shared>,
    plan: Plan,
    parts: HostParts,
    rules: Option<Rules>,
    seat: Seat,
    ticking: Ticking,
    place: OwnedSemaphorePermit,
    started: Instant,
}

/// What runs, from where.
struct Plan {
    machine: Arc<Machine>,
    program: Arc<Program>,
    beginning: Frozen,
    entry: Entry,
    request: Option<Bytes>,
    passed: u64,
}

impl Plan {
    async fn new(shared: &Shared, asked: &Asked, allowed: Duration) -> Result<Self> {
        let (engines, metered) = (&shared.common.engines, shared.policy.is_metered());
        match &asked.what {
            What::Module(module) => {
                let (program, machine) =
                    engines.program(module.clone(), shared.spec.tenant(), metered, allowed).await?;
                if !program.is_command() {
                    let what = "the module is no command: it exports no function _start without arguments";
                    return Err(not_executable(what).with_remedy("build it as a program, not as a library"));
                }
                let beginning = program.beginning().clone();
                Ok(Self { machine, program, beginning, entry: Entry::Command, request: None, passed: 0 })
            }
            What::Script(language, source) => {
                refuse_named(&shared.spec)?;
                let warm = engines.interpreter(*language, metered, allowed).await?;
                let request = languages::request(Mode::Script, &asked.cwd, &asked.args, &asked.env, source);
                Ok(Self {
                    machine: Arc::clone(&warm.machine),
                    program: Arc::clone(&warm.program),
                    beginning: warm.beginning.clone(),
                    entry: warm.entry.clone(),
                    request: Some(request),
                    passed: warm.passed,
                })
            }
        }
    }
}

/// Starts an exec.
pub(crate) async fn start(shared: &Arc<Shared>, request: ExecRequest) -> Result<ExecHandle> {
    shared.check_open("start")?;
    let asked = command::read(shared, &request)?;
    let allowed = request.timeout().unwrap_or(shared.spec.limits().wall_time);
    let common = &shared.common;
    let plan = Plan::new(shared, &asked, allowed).await?;
    let leash = Arc::new(Leash::default());
    let seat = shared.enter(&leash)?;
    let place = timeout(common.config.patience, Arc::clone(&common.places).acquire_owned()).await;
    let Ok(Ok(place)) = place else { return Err(no_place(common)) };
    let ticking = plan.machine.tick().map_err(no_thread)?;
    let (input, writer) = input(&request, &leash);
    let (handle, driver) = ExecHandle::new(ExecId(seat.id), &request, writer, Arc::new(Control(Arc::clone(&leash))));
    let started = Instant::now();
    let policy = shared.policy;
    let rules = Rules::of(shared.spec.network())?;
    let parts = HostParts {
        preopens: preopens(shared, &asked)?,
        args: asked.args,
        env: asked.env,
        files: Arc::clone(&shared.files),
        clock: guest::clock(policy, plan.passed),
        random: guest::random(policy),
        limiter: Limiter::new(Arc::clone(&shared.account)),
        run: Run {
            leash,
            input,
            output: Output::new(driver),
            // The contract bounds durations to a century.
            deadline: started + allowed,
            cpu_limit: shared.spec.limits().cpu_time,
            request: plan.request.clone(),
        },
    };
    let job = Job { shared: Arc::clone(shared), plan, parts, rules, seat, ticking, place, started };
    let stack = usize::try_from(common.config.stack.as_bytes() + HOST_STACK).unwrap_or(usize::MAX);
    let thread = std::thread::Builder::new().name("wasm-guest".to_owned()).stack_size(stack);
    thread.spawn(move || run(job)).map_err(no_thread)?;
    Ok(handle)
}

/// Where a guest's input comes from, and who writes it.
pub(crate) fn input(request: &ExecRequest, leash: &Arc<Leash>) -> (Input, Option<StdinWriter>) {
    match request.stdin() {
        Stdin::Empty => (Input::Given(Bytes::new()), None),
        Stdin::Bytes(bytes) => (Input::Given(bytes.clone()), None),
        Stdin::Stream => (Input::Streamed, Some(StdinWriter::new(InputWriter(Arc::clone(leash))))),
    }
}

pub(crate) fn no_place(common: &Common) -> Error {
    let message = format!("{} modules run already, which is as many as this backend lets run", common.config.guests);
    Error::new(ErrorKind::ResourceExhausted, "start", message)
}

pub(crate) fn no_thread(error: std::io::Error) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "start", "no thread for the module").with_source(error)
}

/// The whole life of a guest's thread. Everything is freed before anybody is told of the end.
fn run(job: Job) {
    let Job { shared, plan, parts, rules, seat, ticking, place, started } = job;
    let Ok(mut host) = Host::new(parts) else { return };
    host.egress = rules.map(Egress::new);
    let mut guest = Guest::new(&plan.machine, &plan.program, host);
    // A panic would be ours, not the guest's; the exec must end all the same.
    let running = || guest.run(shared.policy, &plan.beginning, &plan.entry);
    let ending = catch_unwind(AssertUnwindSafe(running));
    let ending =
        ending.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "exit", "the host of the module failed")));
    let mut host = guest.store.into_data();
    if let Some(words) = guest::last_words(&ending) {
        host.output.write(OutputStream::Stderr, &words);
    }
    if let Some(egress) = &host.egress {
        host.output.write(OutputStream::Stderr, egress.last_words().as_bytes());
    }
    let driver = host.output.finish();
    let (cpu, limits_hit) = (host.cpu(), host.limits_hit());
    drop(host);
    let usage =
        Usage { cpu_seconds: cpu.as_secs_f64(), peak_memory_bytes: Some(shared.account.peak()), output_bytes: 0 };
    shared.add_cpu(cpu);
    drop((plan, ticking, place, seat));
    if let Some(driver) = driver {
        driver.finish(ending.map(|ending| guest::exit(ending, limits_hit, started, usage)));
    }
}
