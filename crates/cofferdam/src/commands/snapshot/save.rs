//! `cofferdam snapshot save`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::code::{Execution, Screened, Started};
use cofferdam::registry::vms::{ArchiveKey, SavedArchive, SnapshotInfo, VmSnapshots};
use cofferdam::registry::{self, VM_BACKEND};
use cofferdam::{ByteSize, Error, ErrorKind, Exit, OutputEvent, Result, Snapshot};
use serde_json::{Value, json};

use super::{Outcome, Work, key};
use crate::args::SaveArgs;
use crate::commands::block_on;
use crate::commands::run::{executor, job, no_signals, oversight, prepare, signal_status, warn_of};
use crate::interrupts::Interrupts;
use crate::out_file::{Existing, OutFile};
use crate::plan::Plan;
use crate::report::{self, Form};
use crate::settings::Settings;
use crate::sink::{Collected, Live, RawOutput, Sink, merge};
use crate::style::Tone;
use crate::terminal::one_line;

/// Default run time before the VM is saved.
const DEFAULT_RUN_TIME: Duration = Duration::from_secs(1);

/// The condition for saving the VM.
#[derive(Debug)]
enum Trigger {
    /// The command has run for this time.
    After(Duration),
    /// The command has printed this text.
    Printed(Seen),
    /// The command has ended.
    Done,
}

/// The reason why the wait for the trigger ended.
enum Waited {
    Triggered,
    Ended(Exit),
    Interrupted(i32),
}

pub(super) fn carry_out(mut args: SaveArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
    let run = args.take_run();
    run.backend.as_deref().map_or(Ok(()), check_backend)?;
    let (plan, settings) = prepare(&run, config)?;
    let trigger = trigger(&args)?;
    let key = key(args.key_file.as_deref())?;
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let out = OutFile::begin(&args.out, existing)?;
    let save = Save { args, form, key, out };
    block_on(save.session(&plan, settings, trigger))
}

/// Refuses a backend whose sandboxes are not VMs.
fn check_backend(name: &str) -> Result<()> {
    let info = registry::find(name)?;
    if info.name == VM_BACKEND {
        return Ok(());
    }
    let what = format!("only VMs can be saved to a file, and the backend {} does not create VMs", info.name);
    Err(Error::unsupported("save", what).with_remedy("leave out --backend, or use vm, vm:qemu or vm:firecracker"))
}

fn trigger(args: &SaveArgs) -> Result<Trigger> {
    match (&args.when_prints, args.when_done) {
        (Some(text), _) if text.is_empty() => Err(Error::invalid("save", "the text of --when-prints is empty")
            .with_remedy("pass a text that the command prints, or a time with --after")),
        (Some(text), _) => Ok(Trigger::Printed(Seen::new(text))),
        (None, true) => Ok(Trigger::Done),
        (None, false) => Ok(Trigger::After(args.after.unwrap_or(DEFAULT_RUN_TIME))),
    }
}

struct Save {
    args: SaveArgs,
    form: Form,
    key: Option<ArchiveKey>,
    out: OutFile,
}

/// A snapshot of a paused VM.
struct Frozen {
    snapshot: Snapshot,
    /// The exit of the command, if it had ended.
    exit: Option<Exit>,
}

impl Save {
    async fn session(self, plan: &Plan, settings: Settings, trigger: Trigger) -> Result<u8> {
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let work = Work::new(self.form, self.args.answer.quiet);
        let snapshots = VmSnapshots::new(&settings.setup.vms, work.progress())?;
        let mut sink = match self.form {
            Form::Text if self.args.answer.raw_output => Sink::Live(Live::new(RawOutput::Yes)),
            Form::Text => Sink::Live(Live::new(RawOutput::No)),
            _ => Sink::Collect(Collected::default()),
        };
        let backend = snapshots.backend();
        let oversight = oversight(settings.watched);
        let on_screened = |screened: &Screened| {
            if !settings.watched {
                warn_of(screened);
            }
        };
        let job = job(plan, oversight, &on_screened);
        let executor = executor(&settings.code, oversight)?;
        let execution = match executor.start(&*backend, &plan.spec, job, interrupts.next()).await? {
            Started::Running(execution) => *execution,
            Started::Cancelled(number) => return Ok(signal_status(number)),
        };
        work.finish();
        let sandbox = Arc::clone(execution.sandbox());
        let frozen = async {
            let exit = match wait(&execution, trigger, &mut sink, &mut interrupts).await? {
                Waited::Triggered => None,
                Waited::Ended(exit) => Some(exit),
                Waited::Interrupted(number) => return Ok(Outcome::Interrupted(number)),
            };
            tokio::select! {
                snapshot = sandbox.snapshot() => Ok(Outcome::Done(Frozen { snapshot: snapshot?, exit })),
                number = interrupts.next() => Ok(Outcome::Interrupted(number)),
            }
        };
        let frozen: Result<_> = frozen.await;
        // Writing the file needs the memory of the sandbox, which is no longer used.
        if let Err(error) = sandbox.close().await {
            report::remark(&format!("cannot close the sandbox: {error}"), Tone::Warning);
        }
        // A snapshot whose run cannot be logged is not saved.
        match frozen {
            Ok(Outcome::Done(frozen)) => {
                end(execution, frozen.exit.as_ref()).await?;
                self.write(&frozen, sink, &work, &mut interrupts).await
            }
            Ok(Outcome::Interrupted(number)) => {
                execution.abandon().await;
                Ok(signal_status(number))
            }
            Err(error) => Err(execution.failed(error).await),
        }
    }

    async fn write(self, frozen: &Frozen, sink: Sink, work: &Work, interrupts: &mut Interrupts) -> Result<u8> {
        let file = self.out.file()?;
        let saving = VmSnapshots::save(&frozen.snapshot, file, self.key.as_ref(), self.args.compression, work.watch());
        let saved = match work.run(interrupts, saving).await? {
            Outcome::Done(saved) => saved,
            Outcome::Interrupted(number) => return Ok(signal_status(number)),
        };
        let about = VmSnapshots::about(&frozen.snapshot)?;
        self.out.finish()?;
        Ok(report::printed(print(&self.args, self.form, &saved, &about, frozen.exit.as_ref(), sink), 0))
    }
}

/// Logs the end of the run. A program that was saved while it ran has ended in this VM, which was closed.
async fn end(execution: Execution, exit: Option<&Exit>) -> Result<()> {
    if exit.is_none() && execution.handle().exit().await.is_err() {
        execution.abandon().await;
        return Ok(());
    }
    execution.result().await.map(drop)
}

/// Forwards output until the trigger fires.
async fn wait(
    execution: &Execution,
    mut trigger: Trigger,
    sink: &mut Sink,
    interrupts: &mut Interrupts,
) -> Result<Waited> {
    let mut output = execution.output();
    let time = match &trigger {
        Trigger::After(time) => Some(*time),
        _ => None,
    };
    let mut later = std::pin::pin!(async {
        match time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    });
    loop {
        tokio::select! {
            biased;
            number = interrupts.next() => return Ok(Waited::Interrupted(number)),
            () = &mut later => break,
            event = output.next() => {
                let Some(event) = event else {
                    let exit = execution.handle().exit().await?;
                    unwritten(sink.finish().await)?;
                    return match trigger {
                        Trigger::Done => Ok(Waited::Ended(exit)),
                        _ => Err(ended_early(&exit)),
                    };
                };
                let fired = match &mut trigger {
                    Trigger::Printed(seen) => seen.found_in(&event),
                    _ => false,
                };
                unwritten(sink.put(event).await)?;
                if fired {
                    break;
                }
            }
        }
    }
    unwritten(sink.finish().await)?;
    Ok(Waited::Triggered)
}

fn unwritten(written: std::io::Result<()>) -> Result<()> {
    written.map_err(|error| {
        Error::new(ErrorKind::Io, "save", format!("cannot write the output: {error}; nothing was saved"))
            .with_remedy("connect standard output and standard error to a terminal, file or reader")
    })
}

fn ended_early(exit: &Exit) -> Error {
    let what = format!(
        "nothing was saved: the command ended with status {} before its VM was to be saved",
        exit.shell_status()
    );
    Error::new(ErrorKind::Conflict, "save", what).with_remedy(
        "use --when-done to save the VM after the command has ended, or save it sooner with --after or --when-prints",
    )
}

fn print(
    args: &SaveArgs,
    form: Form,
    saved: &SavedArchive,
    about: &SnapshotInfo,
    exit: Option<&Exit>,
    sink: Sink,
) -> std::io::Result<()> {
    let file = args.out.display().to_string();
    if form == Form::Text {
        if !args.answer.quiet {
            let encrypted = if saved.encrypted { ", encrypted" } else { "" };
            report::remark(
                &format!(
                    "wrote {} ({} for a VM with {} of memory, {}{encrypted}); use it: cofferdam snapshot restore {0}",
                    one_line(&file),
                    ByteSize::from_bytes(saved.bytes),
                    about.memory,
                    super::inspect::running(about),
                ),
                Tone::Good,
            );
        }
        return Ok(());
    }
    let mut document = json!({ "file": file, "archive": saved, "machine": about, "exit": exit });
    if let Sink::Collect(collected) = sink {
        let members = collected.into_json().map(|(key, value)| (key.to_owned(), value));
        merge(&mut document, Value::Object(members.into_iter().collect()));
    }
    report::document(&document)
}

/// A search for a text in output that arrives in chunks.
#[derive(Debug)]
struct Seen {
    text: Vec<u8>,
    /// The last bytes of each stream, fewer than the length of the text.
    ends: [Vec<u8>; 2],
}

impl Seen {
    fn new(text: &str) -> Self {
        Self { text: text.as_bytes().to_vec(), ends: Default::default() }
    }

    fn found_in(&mut self, event: &OutputEvent) -> bool {
        let OutputEvent::Chunk(chunk) = event else { return false };
        let end = &mut self.ends[usize::from(chunk.stream == cofferdam::OutputStream::Stderr)];
        end.extend_from_slice(&chunk.data);
        if end.windows(self.text.len()).any(|window| window == self.text) {
            return true;
        }
        end.drain(..end.len().saturating_sub(self.text.len() - 1));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam::{Chunk, OutputStream};

    #[test]
    fn a_text_is_found_wherever_it_is_cut() {
        let chunk = |stream, text: &str| OutputEvent::Chunk(Chunk { stream, data: text.as_bytes().to_vec().into() });
        let (out, error) = (OutputStream::Stdout, OutputStream::Stderr);
        let come = |chunks: &[(OutputStream, &str)]| {
            let mut seen = Seen::new("ready");
            chunks.iter().any(|(stream, text)| seen.found_in(&chunk(*stream, text)))
        };
        for chunks in
            [&[(out, "is ready now")][..], &[(out, "rea"), (out, "dy")], &[(error, "xrr"), (out, "x"), (error, "eady")]]
        {
            assert!(come(chunks), "{chunks:?}");
        }
        for chunks in [&[(out, "rea"), (error, "dy")][..], &[(out, "rea"), (out, " dy")], &[]] {
            assert!(!come(chunks), "{chunks:?}");
        }
        let mut seen = Seen::new("r");
        assert!(!seen.found_in(&chunk(out, "x")) && seen.found_in(&chunk(out, "r")) && seen.ends[0].len() == 1);
    }
}
