//! `cofferdam snapshot save`.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam::code::{Call, Want};
use cofferdam::registry::machines::{ArchiveKey, MachineSnapshots, SavedArchive, SnapshotInfo};
use cofferdam::registry::{self, MACHINE_BACKEND};
use cofferdam::{
    Backend, ByteSize, Completed, Error, ErrorKind, ExecHandle, ExecRequest, Exit, OutputEvent, Result, Sandbox,
    Snapshot,
};
use serde_json::{Value, json};

use super::{Outcome, Work, key};
use crate::args::SaveArgs;
use crate::commands::block_on;
use crate::commands::run::{Started, admit, give_up, look_at, no_signals, prepare, signal_status, start};
use crate::interrupts::Interrupts;
use crate::out_file::{Existing, OutFile};
use crate::plan::Plan;
use crate::report::{self, Form};
use crate::settings::Settings;
use crate::sink::{Collected, Live, Raw, Sink, merge};
use crate::style::Tone;
use crate::terminal::one_line;

/// How long it runs where nothing is said about that.
const USUAL: Duration = Duration::from_secs(1);

/// When the machine is frozen.
#[derive(Debug)]
enum Moment {
    /// When it has run for so long.
    After(Duration),
    /// When it has printed this.
    Printed(Seen),
    /// When it has ended.
    Done,
}

/// What ended the wait for the moment.
enum Waited {
    Now,
    Ended(Exit),
    Interrupted(i32),
}

pub(super) fn carry_out(mut args: SaveArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
    let run = args.take_run();
    run.backend.as_deref().map_or(Ok(()), check_backend)?;
    let (plan, settings) = prepare(&run, config)?;
    let moment = moment(&args)?;
    let key = key(args.key_file.as_deref())?;
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let out = OutFile::begin(&args.out, existing)?;
    let save = Save { args, form, key, out };
    block_on(save.session(&plan, settings, moment))
}

/// Refuses a backend whose sandboxes are no machines.
fn check_backend(name: &str) -> Result<()> {
    let info = registry::find(name)?;
    if info.name == MACHINE_BACKEND {
        return Ok(());
    }
    let what = format!("only machines can be frozen to a file, and the backend {} makes none", info.name);
    Err(Error::unsupported("save", what).with_remedy("leave --backend out, or name vm, vm:qemu or vm:firecracker"))
}

fn moment(args: &SaveArgs) -> Result<Moment> {
    match (&args.when_prints, args.when_done) {
        (Some(text), _) if text.is_empty() => {
            Err(Error::invalid("save", "--when-prints waits for a text, and there is none")
                .with_remedy("give a text that it prints, or a time with --after"))
        }
        (Some(text), _) => Ok(Moment::Printed(Seen::new(text))),
        (None, true) => Ok(Moment::Done),
        (None, false) => Ok(Moment::After(args.after.unwrap_or(USUAL))),
    }
}

struct Save {
    args: SaveArgs,
    form: Form,
    key: Option<ArchiveKey>,
    out: OutFile,
}

/// What was frozen.
struct Frozen {
    snapshot: Snapshot,
    /// How the command had ended, if it had.
    exit: Option<Exit>,
}

impl Save {
    async fn session(self, plan: &Plan, settings: Settings, moment: Moment) -> Result<u8> {
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let work = Work::new(self.form, self.args.answer.quiet);
        let snapshots = MachineSnapshots::new(&settings.setup.machines, work.tell())?;
        let mut sink = match self.form {
            Form::Text if self.args.answer.raw_output => Sink::Live(Live::new(Raw::Yes)),
            Form::Text => Sink::Live(Live::new(Raw::No)),
            _ => Sink::Collect(Collected::default()),
        };
        let backend = snapshots.backend();
        let (mut call, request) = begin(&*backend, plan, &settings).await?;
        let starting = async |_: Option<&mut Call>| backend.start_one(plan.spec.clone(), request).await;
        let (sandbox, handle) = match start(&mut call, &mut interrupts, starting).await? {
            Started::Goes(parts) => parts,
            Started::Interrupted(number) => return Ok(signal_status(number)),
        };
        work.finish();
        let frozen = async {
            let exit = match wait(&handle, moment, &mut sink, &mut interrupts).await? {
                Waited::Now => None,
                Waited::Ended(exit) => Some(exit),
                Waited::Interrupted(number) => return Ok(Outcome::Interrupted(number)),
            };
            tokio::select! {
                snapshot = sandbox.snapshot() => Ok(Outcome::Done(Frozen { snapshot: snapshot?, exit })),
                number = interrupts.next() => Ok(Outcome::Interrupted(number)),
            }
        };
        let frozen: Result<_> = frozen.await;
        // It is of no use any more, and its memory is needed.
        if let Err(error) = sandbox.close().await {
            report::remark(&format!("the sandbox was not cleaned up: {error}"), Tone::Warning);
        }
        // What cannot be logged is not saved either.
        match (frozen, call) {
            (Ok(Outcome::Done(frozen)), call) => {
                if let Some(call) = call {
                    end(call, &*sandbox, &handle, frozen.exit.clone(), &sink).await?;
                }
                self.write(&frozen, sink, &work, &mut interrupts).await
            }
            (Ok(Outcome::Interrupted(number)), call) => {
                give_up(call).await;
                Ok(signal_status(number))
            }
            (Err(error), Some(call)) => Err(call.failed(error).await),
            (Err(error), None) => Err(error),
        }
    }

    async fn write(self, frozen: &Frozen, sink: Sink, work: &Work, interrupts: &mut Interrupts) -> Result<u8> {
        let file = self.out.file()?;
        let saving =
            MachineSnapshots::save(&frozen.snapshot, file, self.key.as_ref(), self.args.compression, work.watch());
        let saved = match work.run(interrupts, saving).await? {
            Outcome::Done(saved) => saved,
            Outcome::Interrupted(number) => return Ok(signal_status(number)),
        };
        let about = MachineSnapshots::about(&frozen.snapshot)?;
        self.out.finish()?;
        Ok(report::printed(tell(&self.args, self.form, &saved, &about, frozen.exit.as_ref(), sink), 0))
    }
}

/// What comes before the machine: screening and the line in the audit log, where the configuration wants them.
async fn begin(backend: &dyn Backend, plan: &Plan, settings: &Settings) -> Result<(Option<Call>, ExecRequest)> {
    if !settings.watched {
        look_at(&settings.code, plan).await?;
        return Ok((None, plan.request.clone()));
    }
    let (call, request) = admit(&settings.code, backend, plan, Want::No, Want::No).await?;
    Ok((Some(call), request))
}

/// Ends the line in the audit log. What was frozen while it ran has ended here, with its machine.
async fn end(call: Call, sandbox: &dyn Sandbox, handle: &ExecHandle, exit: Option<Exit>, sink: &Sink) -> Result<()> {
    let exit = match exit {
        Some(exit) => exit,
        None => match handle.exit().await {
            Ok(exit) => exit,
            Err(_) => {
                give_up(Some(call)).await;
                return Ok(());
            }
        },
    };
    let (stdout, stderr) = match sink {
        Sink::Collect(collected) => collected.output(),
        _ => Default::default(),
    };
    call.finish(sandbox, Completed { exit, stdout, stderr }).await.map(drop)
}

/// Passes output on until the moment has come.
async fn wait(handle: &ExecHandle, mut moment: Moment, sink: &mut Sink, interrupts: &mut Interrupts) -> Result<Waited> {
    let mut output = handle.output();
    let time = match &moment {
        Moment::After(time) => Some(*time),
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
                    let exit = handle.exit().await?;
                    unwritten(sink.finish().await)?;
                    return match moment {
                        Moment::Done => Ok(Waited::Ended(exit)),
                        _ => Err(ended_early(&exit)),
                    };
                };
                let has_come = match &mut moment {
                    Moment::Printed(seen) => seen.has_come(&event),
                    _ => false,
                };
                unwritten(sink.put(event).await)?;
                if has_come {
                    break;
                }
            }
        }
    }
    unwritten(sink.finish().await)?;
    Ok(Waited::Now)
}

fn unwritten(written: std::io::Result<()>) -> Result<()> {
    written.map_err(|error| {
        Error::new(ErrorKind::Io, "save", format!("cannot write the output: {error}; nothing was saved"))
            .with_remedy("let standard output and standard error go somewhere")
    })
}

fn ended_early(exit: &Exit) -> Error {
    let what = format!(
        "nothing was saved: the command ended with status {} before the time to freeze its machine",
        exit.shell_status()
    );
    Error::new(ErrorKind::Conflict, "save", what)
        .with_remedy("add --when-done to save the machine with its files when the command has ended, or freeze it sooner with --after or --when-prints")
}

fn tell(
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
            let locked = if saved.encrypted { ", encrypted" } else { "" };
            report::remark(
                &format!(
                    "{} is there ({} for a machine with {} of memory, {}{locked}): cofferdam snapshot restore {0}",
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

/// Looks for a text in what is printed, wherever it is cut.
#[derive(Debug)]
struct Seen {
    text: Vec<u8>,
    /// The last bytes of either stream, fewer than the text has.
    ends: [Vec<u8>; 2],
}

impl Seen {
    fn new(text: &str) -> Self {
        Self { text: text.as_bytes().to_vec(), ends: Default::default() }
    }

    fn has_come(&mut self, event: &OutputEvent) -> bool {
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
            chunks.iter().any(|(stream, text)| seen.has_come(&chunk(*stream, text)))
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
        assert!(!seen.has_come(&chunk(out, "x")) && seen.has_come(&chunk(out, "r")) && seen.ends[0].len() == 1);
    }
}
