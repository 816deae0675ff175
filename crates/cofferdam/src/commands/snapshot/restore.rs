//! `cofferdam snapshot restore`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::code::{Call, Executor, Origin, Place, Restoring, Want};
use cofferdam::registry::machines::{LARGEST_WORKSPACE, MachineSnapshots, SnapshotInfo};
use cofferdam::{Backend, Error, Result, Sandbox, Spec, SpecBuilder};
use serde_json::{Value, json};

use super::{Outcome, Work, key};
use crate::args::{RestoreArgs, RunArgs};
use crate::commands::block_on;
use crate::commands::run::{Run, Started, admit, give_up, identity, look_at, no_signals, signal_status, start};
use crate::interrupts::Interrupts;
use crate::plan::Plan;
use crate::report::{self, Form};
use crate::settings::{Environment, Settings};
use crate::sink::merge;
use crate::style::Tone;

/// How often a machine is asked whether it is still there.
const LOOK: Duration = Duration::from_millis(500);

pub(super) fn carry_out(args: &RestoreArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let run = args.run();
    let settings = Settings::resolve(&run, &Environment::read(variable)?, &file)?;
    let plan =
        if args.words.is_empty() && args.code.is_none() { None } else { Some(Plan::new(&run, &settings, None)?) };
    block_on(session(args, &run, form, plan, settings))
}

async fn session(args: &RestoreArgs, run: &RunArgs, form: Form, plan: Option<Plan>, settings: Settings) -> Result<u8> {
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let work = Work::new(form, args.answer.quiet);
    let snapshots = MachineSnapshots::new(&settings.setup.machines, work.tell())?;
    let key = key(args.key_file.as_deref())?;
    let most = args.max_disk.unwrap_or(LARGEST_WORKSPACE);
    let loading = snapshots.load(&args.file, key.as_ref(), most, work.watch());
    let (snapshot, spec) = match work.run(&mut interrupts, loading).await? {
        Outcome::Done(loaded) => loaded,
        Outcome::Interrupted(number) => return Ok(signal_status(number)),
    };
    let about = MachineSnapshots::about(&snapshot)?;
    let spec = spec_of(spec, args, &about, &settings)?;
    let backend = snapshots.backend();
    let plan = plan.map(|plan| Plan { spec: spec.clone(), ..plan });
    let origin = Origin::snapshot(&snapshot, &args.file.to_string_lossy());
    let (restoring, mut call, plan) = begin(&*backend, &spec, origin, plan, &settings).await?;
    // Interrupted, the line of the restore ends as cancelled.
    let restored = async |_: Option<&mut Call>| made(backend.restore(snapshot, spec).await, restoring).await;
    let sandbox = match start(&mut call, &mut interrupts, restored).await? {
        Started::Goes(sandbox) => sandbox,
        Started::Interrupted(number) => return Ok(signal_status(number)),
    };
    if form == Form::Text && !args.answer.quiet {
        report::remark(&format!("restored as {}: {}", sandbox.id(), goes_on(&about)), Tone::Good);
    }
    let inside = Inside { args, run, form, about };
    let outcome = inside.go_on(&*backend, &*sandbox, (plan, call), settings, &mut interrupts).await;
    if let Err(error) = sandbox.close().await {
        report::remark(&format!("the sandbox was not cleaned up: {error}"), Tone::Warning);
    }
    outcome
}

/// What comes before the machine goes on: a line in the audit log for that, and the command that is to run in it, which is
/// screened and logged as any other, where the configuration wants that.
async fn begin(
    backend: &dyn Backend,
    spec: &Spec,
    origin: Origin,
    plan: Option<Plan>,
    settings: &Settings,
) -> Result<(Option<Restoring>, Option<Call>, Option<Plan>)> {
    if !settings.watched {
        if let Some(plan) = &plan {
            look_at(&settings.code, plan).await?;
        }
        return Ok((None, None, plan));
    }
    let executor = Executor::new(settings.code.clone())?;
    let place = Place::of(backend);
    let Some(mut plan) = plan else {
        return Ok((Some(executor.begin_restore(&place, spec, origin).await?), None, None));
    };
    let (call, request) = admit(&settings.code, backend, &plan, Want::No, Want::No).await?;
    plan.request = request;
    match executor.begin_restore(&place, spec, origin).await {
        Ok(restoring) => Ok((Some(restoring), Some(call), Some(plan))),
        Err(error) => Err(call.not_started(error).await),
    }
}

/// The machine that goes on, once the log says so. Where it must and cannot, there is none.
async fn made(restored: Result<Arc<dyn Sandbox>>, restoring: Option<Restoring>) -> Result<Arc<dyn Sandbox>> {
    let Some(restoring) = restoring else { return restored };
    let sandbox = match restored {
        Ok(sandbox) => sandbox,
        Err(error) => return Err(restoring.failed(error).await),
    };
    if let Err(error) = restoring.made(&*sandbox).await {
        // What it could not say is said by this error.
        let _ = sandbox.close().await;
        return Err(error);
    }
    Ok(sandbox)
}

/// What it was saved with, but for what may be said anew. Exceptions are never taken from an archive.
fn spec_of(spec: SpecBuilder, args: &RestoreArgs, about: &SnapshotInfo, settings: &Settings) -> Result<Spec> {
    let mut limits = about.limits.clone();
    if let Some(time) = args.timeout {
        limits.wall_time = time;
    }
    let spec = spec.limits(limits).tenant(settings.tenant.clone());
    settings.allow_weaker.iter().fold(spec, |spec, protection| spec.allow_weaker(*protection)).build()
}

fn goes_on(about: &SnapshotInfo) -> String {
    let ids: Vec<String> = about.running.iter().map(|id| id.0.to_string()).collect();
    let which = if ids.is_empty() { String::new() } else { format!(" (exec {})", ids.join(", ")) };
    format!("{}{which}", super::inspect::running(about))
}

/// What is done in a machine that goes on.
struct Inside<'a> {
    args: &'a RestoreArgs,
    run: &'a RunArgs,
    form: Form,
    about: SnapshotInfo,
}

impl Inside<'_> {
    async fn go_on(
        &self,
        backend: &dyn Backend,
        sandbox: &dyn Sandbox,
        (plan, call): (Option<Plan>, Option<Call>),
        settings: Settings,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let about = json!({ "restored": self.about });
        let time = match (self.args.time, &plan) {
            (Some(time), _) => Some(time),
            (None, Some(_)) => Some(Duration::ZERO),
            (None, None) => None,
        };
        let interrupted = tokio::select! {
            biased;
            number = interrupts.next() => Some(number),
            error = gone(sandbox) => {
                return Err(match call {
                    Some(call) => call.not_started(error).await,
                    None => error,
                });
            }
            () = pass(time) => None,
        };
        match (interrupted, plan) {
            (None, Some(plan)) => {
                let (handle, call) = match (sandbox.start(plan.request.clone()).await, call) {
                    (Err(error), Some(call)) => return Err(call.not_started(error).await),
                    (Err(error), None) => return Err(error),
                    (Ok(handle), call) => (handle, call),
                };
                let run = Run::inside(self.run, self.form, plan, settings, about);
                run.follow(backend, sandbox, handle, interrupts, call).await
            }
            (interrupted, _) => {
                give_up(call).await;
                self.end(backend, sandbox, about, interrupted.map_or(0, signal_status))
            }
        }
    }

    /// Nothing was to be run.
    fn end(&self, backend: &dyn Backend, sandbox: &dyn Sandbox, about: Value, status: u8) -> Result<u8> {
        if self.form == Form::Text {
            return Ok(status);
        }
        let mut document = json!({ "status": status, "posture": sandbox.posture(), "limits": sandbox.spec().limits() });
        merge(&mut document, identity(backend, sandbox));
        merge(&mut document, about);
        Ok(report::printed(report::document(&document), status))
    }
}

async fn pass(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Waits until the machine has ended, and says why.
async fn gone(sandbox: &dyn Sandbox) -> Error {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Err(error) = sandbox.usage().await {
            return error;
        }
    }
}
