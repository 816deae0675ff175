//! `cofferdam snapshot restore`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::code::{Call, Executor, Origin, Place, Restoring, Want};
use cofferdam::registry::machines::{LARGEST_WORKSPACE, MachineSnapshots, SnapshotInfo};
use cofferdam::{Backend, Error, ErrorKind, ExecHandle, ExecId, OutputEvent, Result, Sandbox, Spec, SpecBuilder};
use serde_json::{Value, json};

use super::{Outcome, Work, key};
use crate::args::{RestoreArgs, RunArgs};
use crate::commands::block_on;
use crate::commands::run::{Run, Started, abandon, admit, check_code, identity, no_signals, signal_status, start};
use crate::interrupts::Interrupts;
use crate::plan::Plan;
use crate::report::{self, Form};
use crate::settings::{Environment, Settings};
use crate::sink::{Collected, Live, Raw, Sink, merge};
use crate::style::Tone;

/// Interval at which a restored VM is polled for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A restored VM and the execs that run in it.
type Restored = (Arc<dyn Sandbox>, Vec<ExecHandle>);

pub(super) fn carry_out(mut args: RestoreArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let run = args.run();
    let settings = Settings::resolve(&run, &Environment::read(variable)?, &file)?;
    let plan =
        if args.words.is_empty() && args.code.is_none() { None } else { Some(Plan::new(&run, &settings, None)?) };
    block_on(session(&args, &run, form, plan, settings))
}

async fn session(args: &RestoreArgs, run: &RunArgs, form: Form, plan: Option<Plan>, settings: Settings) -> Result<u8> {
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let work = Work::new(form, args.answer.quiet);
    let snapshots = MachineSnapshots::new(&settings.setup.machines, work.progress())?;
    let key = key(args.key_file.as_deref())?;
    let max_disk = args.max_disk.unwrap_or(LARGEST_WORKSPACE);
    let loading = snapshots.load(&args.file, key.as_ref(), max_disk, settings.limits.clone(), work.watch());
    let (snapshot, spec) = match work.run(&mut interrupts, loading).await? {
        Outcome::Done(loaded) => loaded,
        Outcome::Interrupted(number) => return Ok(signal_status(number)),
    };
    let about = MachineSnapshots::about(&snapshot)?;
    let spec = spec_of(spec, &about, &settings)?;
    let main = if args.attach { Some(main_of(&about)?) } else { None };
    let backend = snapshots.backend();
    let plan = plan.map(|plan| Plan { spec: spec.clone(), ..plan });
    let origin = Origin::snapshot(&snapshot, &args.file.to_string_lossy());
    let (restoring, mut call, plan) = begin(&*backend, &spec, origin, plan, &settings).await?;
    // If interrupted, the log records the restore as cancelled.
    let restored = async |_: Option<&mut Call>| log_restored(snapshots.restore(&snapshot, spec).await, restoring).await;
    let (sandbox, mut execs) = match start(&mut call, &mut interrupts, restored).await? {
        Started::Running(sandbox) => sandbox,
        Started::Interrupted(number) => return Ok(signal_status(number)),
    };
    if form == Form::Text && !args.answer.quiet {
        let about = running(&*sandbox, &about).await;
        report::remark(&format!("restored as {}: {about}", sandbox.id()), Tone::Good);
    }
    // The handles of the other execs stay alive here: dropping a handle ends its exec.
    let main = main.and_then(|main| execs.iter().position(|exec| exec.id() == main)).map(|at| execs.swap_remove(at));
    let inside = Inside { args, run, form, about };
    let outcome = match main {
        Some(main) => inside.attach(&*backend, &*sandbox, main, &settings, &mut interrupts).await,
        None => inside.run_command(&*backend, &*sandbox, (plan, call), settings, &mut interrupts).await,
    };
    if let Err(error) = sandbox.close().await {
        report::remark(&format!("cannot close the sandbox: {error}"), Tone::Warning);
    }
    outcome
}

/// Begins a restore: logs it in the audit log, and screens and logs the command like any other, if the configuration
/// requires that.
async fn begin(
    backend: &dyn Backend,
    spec: &Spec,
    origin: Origin,
    plan: Option<Plan>,
    settings: &Settings,
) -> Result<(Option<Restoring>, Option<Call>, Option<Plan>)> {
    if !settings.watched {
        if let Some(plan) = &plan {
            check_code(&settings.code, plan).await?;
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

/// Logs a restored VM and returns it. Closes the VM if it must be logged and cannot be.
async fn log_restored(restored: Result<Restored>, restoring: Option<Restoring>) -> Result<Restored> {
    let Some(restoring) = restoring else { return restored };
    let (sandbox, execs) = match restored {
        Ok(restored) => restored,
        Err(error) => return Err(restoring.failed(error).await),
    };
    if let Err(error) = restoring.made(&*sandbox).await {
        // The logging error takes precedence over one of closing.
        let _ = sandbox.close().await;
        return Err(error);
    }
    Ok((sandbox, execs))
}

/// Returns the saved spec under the caller's limits: the tighter limit of both applies. Limits that are fixed in the VM
/// were compared when the archive was read. Exceptions are never taken from an archive.
fn spec_of(spec: SpecBuilder, about: &SnapshotInfo, settings: &Settings) -> Result<Spec> {
    let (mut limits, ceiling) = (about.limits.clone(), &settings.limits);
    limits.wall_time = limits.wall_time.min(ceiling.wall_time);
    limits.cpu_time = [limits.cpu_time, ceiling.cpu_time].into_iter().flatten().min();
    let spec = spec.limits(limits).tenant(settings.tenant.clone());
    settings.allow_weaker.iter().fold(spec, |spec, protection| spec.allow_weaker(*protection)).build()
}

/// Returns the exec to attach to: the first one that was started.
fn main_of(about: &SnapshotInfo) -> Result<ExecId> {
    about.running.iter().min().copied().ok_or_else(|| {
        let what = "cannot attach: the command had ended when the VM was saved";
        Error::new(ErrorKind::Conflict, "restore", what).with_remedy("run a COMMAND in the VM instead, after `--`")
    })
}

/// Describes the execs and processes that run in a restored VM.
async fn running(sandbox: &dyn Sandbox, about: &SnapshotInfo) -> String {
    // Only informational. The next step reports a VM that has already ended.
    let processes = sandbox.usage().await.ok().and_then(|usage| usage.processes);
    let ids: Vec<String> = about.running.iter().map(|id| id.0.to_string()).collect();
    let which = if ids.is_empty() { String::new() } else { format!(" (exec {})", ids.join(", ")) };
    let processes = processes.map_or_else(String::new, |count| format!(", {count} processes and threads in all"));
    format!("{}{which}{processes}", super::inspect::running(about))
}

/// The work in a restored VM.
struct Inside<'a> {
    args: &'a RestoreArgs,
    run: &'a RunArgs,
    form: Form,
    about: SnapshotInfo,
}

impl Inside<'_> {
    /// Forwards the output of the restored program until it ends.
    async fn attach(
        &self,
        backend: &dyn Backend,
        sandbox: &dyn Sandbox,
        handle: ExecHandle,
        settings: &Settings,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let raw = if self.args.answer.raw_output { Raw::Yes } else { Raw::No };
        let mut sink = match self.form {
            Form::Text => Sink::Live(Live::new(raw)),
            _ => Sink::Collect(Collected::default()),
        };
        let mut output = handle.output();
        let (mut left, mut cut, mut interrupted) = (settings.max_output.as_bytes(), false, None);
        loop {
            tokio::select! {
                biased;
                number = interrupts.next() => {
                    interrupted = Some(number);
                    handle.close().await?;
                    break;
                }
                event = output.next() => match event {
                    Some(OutputEvent::Chunk(mut chunk)) => {
                        cut |= chunk.data.len() as u64 > left;
                        chunk.data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                        left -= chunk.data.len() as u64;
                        put(&mut sink, OutputEvent::Chunk(chunk)).await?;
                    }
                    Some(lost) => put(&mut sink, lost).await?,
                    None => break,
                },
            }
        }
        written(sink.finish().await)?;
        let mut exit = handle.exit().await?;
        exit.truncated |= cut;
        let status = interrupted.map_or_else(|| exit.shell_status(), signal_status);
        if let Sink::Live(live) = &sink {
            if !self.args.answer.quiet {
                for text in report::remarks(&exit, sandbox.spec().limits(), settings.max_output, live.lost) {
                    report::remark(&text, Tone::Warning);
                }
            }
            return Ok(status);
        }
        let mut document = json!({
            "exit": exit, "status": status, "usage": exit.usage, "posture": sandbox.posture(),
            "limits": sandbox.spec().limits(), "restored": self.about,
        });
        merge(&mut document, identity(backend, sandbox));
        if let Sink::Collect(collected) = sink {
            let members = collected.into_json().map(|(key, value)| (key.to_owned(), value));
            merge(&mut document, Value::Object(members.into_iter().collect()));
        }
        Ok(report::printed(report::document(&document), status))
    }

    async fn run_command(
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
                abandon(call).await;
                self.end(backend, sandbox, about, interrupted.map_or(0, signal_status))
            }
        }
    }

    /// Ends a restore without a command.
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

async fn put(sink: &mut Sink, event: OutputEvent) -> Result<()> {
    written(sink.put(event).await)
}

fn written(written: std::io::Result<()>) -> Result<()> {
    written.map_err(|error| Error::new(ErrorKind::Io, "restore", format!("cannot write the output: {error}")))
}

async fn pass(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Waits until the VM has ended, and returns the reason.
async fn gone(sandbox: &dyn Sandbox) -> Error {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if let Err(error) = sandbox.usage().await {
            return error;
        }
    }
}
