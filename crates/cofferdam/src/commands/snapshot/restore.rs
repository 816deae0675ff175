//! `cofferdam snapshot restore`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::code::{BackendProfile, Executor, Origin, Screened, Started};
use cofferdam::registry::vms::{LARGEST_WORKSPACE, SnapshotInfo, VmSnapshots};
use cofferdam::{
    Backend, Error, ErrorKind, ExecHandle, ExecId, OutputEvent, Result, Sandbox, Snapshot, Spec, SpecBuilder,
};
use serde_json::{Value, json};

use super::{Outcome, Work, key};
use crate::args::{RestoreArgs, RunArgs};
use crate::commands::block_on;
use crate::commands::run::{Run, executor, identity, job, no_signals, oversight, signal_status, warn_of};
use crate::interrupts::Interrupts;
use crate::plan::Plan;
use crate::report::{self, Form};
use crate::settings::{Environment, Settings};
use crate::sink::{Collected, Live, RawOutput, Sink, merge};
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
    let snapshots = VmSnapshots::new(&settings.setup.vms, work.progress())?;
    let key = key(args.key_file.as_deref())?;
    let max_disk = args.max_disk.unwrap_or(LARGEST_WORKSPACE);
    let loading = snapshots.load(&args.file, key.as_ref(), max_disk, settings.limits.clone(), work.watch());
    let (snapshot, spec) = match work.run(&mut interrupts, loading).await? {
        Outcome::Done(loaded) => loaded,
        Outcome::Interrupted(number) => return Ok(signal_status(number)),
    };
    let about = VmSnapshots::about(&snapshot)?;
    let spec = spec_of(spec, &about, &settings)?;
    let main = if args.attach { Some(main_of(&about)?) } else { None };
    let backend = snapshots.backend();
    let oversight = oversight(settings.watched);
    let restore = Restore {
        args,
        run,
        form,
        about,
        backend: &*backend,
        executor: executor(&settings.code, oversight)?,
        snapshots: &snapshots,
        snapshot,
        spec,
    };
    let mut restored = None;
    let outcome = match plan {
        Some(plan) => restore.run_command(plan, settings, &mut restored, &mut interrupts).await,
        None => restore.resume(main, &settings, &mut restored, &mut interrupts).await,
    };
    if let Some((sandbox, _)) = restored
        && let Err(error) = sandbox.close().await
    {
        report::remark(&format!("cannot close the sandbox: {error}"), Tone::Warning);
    }
    outcome
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

/// A restore, and the work in the restored VM.
struct Restore<'a> {
    args: &'a RestoreArgs,
    run: &'a RunArgs,
    form: Form,
    about: SnapshotInfo,
    backend: &'a dyn Backend,
    executor: Executor,
    snapshots: &'a VmSnapshots,
    snapshot: Snapshot,
    spec: Spec,
}

impl Restore<'_> {
    /// Restores the VM, and logs that if the configuration requires it. If interrupted, the log records the restore as
    /// cancelled. The caller closes the VM, and keeps the handles of its execs: dropping a handle ends its exec.
    async fn restore<'r>(&self, restored: &'r mut Option<Restored>) -> Result<&'r mut Restored> {
        let origin = Origin::snapshot(&self.snapshot, &self.args.file.to_string_lossy());
        let restore = self.snapshots.restore(&self.snapshot, self.spec.clone());
        let created = self.executor.restore(&BackendProfile::of(self.backend), &self.spec, origin, restore).await?;
        let created = restored.insert(created);
        let (sandbox, _) = &*created;
        if self.form == Form::Text && !self.args.answer.quiet {
            let about = running(&**sandbox, &self.about).await;
            report::remark(&format!("restored as {}: {about}", sandbox.id()), Tone::Good);
        }
        Ok(created)
    }

    /// Lets the restored programs run: until the main program ends, if the caller attaches to it, else for the time of
    /// the arguments.
    async fn resume(
        &self,
        main: Option<ExecId>,
        settings: &Settings,
        restored: &mut Option<Restored>,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let (sandbox, execs) = tokio::select! {
            created = self.restore(restored) => created?,
            number = interrupts.next() => return Ok(signal_status(number)),
        };
        let main = main.and_then(|main| execs.iter().position(|exec| exec.id() == main));
        if let Some(main) = main {
            return self.attach(&**sandbox, execs.swap_remove(main), settings, interrupts).await;
        }
        let interrupted = tokio::select! {
            biased;
            number = interrupts.next() => Some(number),
            passed = pass(&**sandbox, self.args.time) => passed.map(|()| None)?,
        };
        self.end(&**sandbox, interrupted.map_or(0, signal_status))
    }

    /// Runs the planned command in the restored VM.
    async fn run_command(
        &self,
        plan: Plan,
        settings: Settings,
        restored: &mut Option<Restored>,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let plan = Plan { spec: self.spec.clone(), ..plan };
        let on_screened = |screened: &Screened| {
            if !settings.watched {
                warn_of(screened);
            }
        };
        let job = job(&plan, oversight(settings.watched), &on_screened);
        let create = async {
            let (sandbox, _) = self.restore(restored).await?;
            pass(&**sandbox, Some(self.args.time.unwrap_or_default())).await?;
            Ok(Arc::clone(sandbox))
        };
        let profile = BackendProfile::of(self.backend);
        match self.executor.start_in(&profile, &self.spec, job, interrupts.next(), create).await? {
            Started::Running(execution) => {
                let about = json!({ "restored": self.about });
                Run::inside(self.run, self.form, plan, settings, about)
                    .follow(self.backend, *execution, interrupts)
                    .await
            }
            Started::Cancelled(number) => match restored {
                Some((sandbox, _)) => self.end(&**sandbox, signal_status(number)),
                None => Ok(signal_status(number)),
            },
        }
    }

    /// Forwards the output of the restored program until it ends.
    async fn attach(
        &self,
        sandbox: &dyn Sandbox,
        handle: ExecHandle,
        settings: &Settings,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let raw = if self.args.answer.raw_output { RawOutput::Yes } else { RawOutput::No };
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
        merge(&mut document, identity(self.backend, sandbox));
        if let Sink::Collect(collected) = sink {
            let members = collected.into_json().map(|(key, value)| (key.to_owned(), value));
            merge(&mut document, Value::Object(members.into_iter().collect()));
        }
        Ok(report::printed(report::document(&document), status))
    }

    /// Ends a restore without a command.
    fn end(&self, sandbox: &dyn Sandbox, status: u8) -> Result<u8> {
        if self.form == Form::Text {
            return Ok(status);
        }
        let mut document = json!({ "status": status, "posture": sandbox.posture(), "limits": sandbox.spec().limits() });
        merge(&mut document, identity(self.backend, sandbox));
        merge(&mut document, json!({ "restored": self.about }));
        Ok(report::printed(report::document(&document), status))
    }
}

async fn put(sink: &mut Sink, event: OutputEvent) -> Result<()> {
    written(sink.put(event).await)
}

fn written(written: std::io::Result<()>) -> Result<()> {
    written.map_err(|error| Error::new(ErrorKind::Io, "restore", format!("cannot write the output: {error}")))
}

/// Waits for this time, or without one until the VM ends.
///
/// # Errors
/// - The reason for the end of the VM.
async fn pass(sandbox: &dyn Sandbox, time: Option<Duration>) -> Result<()> {
    tokio::select! {
        biased;
        error = gone(sandbox) => Err(error),
        () = tokio::time::sleep(time.unwrap_or_default()), if time.is_some() => Ok(()),
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
