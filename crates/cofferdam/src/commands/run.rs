//! `cofferdam run`: makes a sandbox, runs one thing in it, shows what comes out, tells how it ended.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::registry::{self, BackendInfo, ForkedLauncher, ImageStep, Setup};
use cofferdam::{Backend, Error, ErrorKind, ExecHandle, Exit, Result, Sandbox, Stdin};
use serde_json::{Value, json};

use super::block_on;
use crate::args::RunArgs;
use crate::interrupts::{Interrupts, Resizes};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::{self, Form, READER_GONE};
use crate::resident;
use crate::settings::{Environment, Settings};
use crate::sink::{Collected, Events, Live, Raw, Sink, merge};
use crate::style::Tone;
use crate::tty::{self, RawTerminal};

/// Runs; the exit status is that of what was run, or says how Cofferdam failed.
pub fn main(args: &RunArgs, config: Option<PathBuf>, launcher: Option<ForkedLauncher>) -> u8 {
    let form = match (args.output.json, args.output.events) {
        (true, _) => Form::Json,
        (_, true) => Form::Events,
        _ => Form::Text,
    };
    let outcome = prepare(args, config.clone()).and_then(|(plan, settings)| {
        let daemon = resident::backend(args, &settings, config.as_deref())?;
        let Settings { backend, setup, cancel_grace: grace, .. } = settings;
        let run = Run { args, form, plan, backend, setup, grace, launcher, daemon, about: Value::Null };
        block_on(run.session())
    });
    outcome.unwrap_or_else(|error| report::error(&error, form))
}

pub(super) fn prepare(args: &RunArgs, config: Option<PathBuf>) -> Result<(Plan, Settings)> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let settings = Settings::resolve(args, &Environment::read(variable)?, &file)?;
    let terminal = if args.output.tty { Some(tty::size()?) } else { None };
    Ok((Plan::new(args, &settings, terminal)?, settings))
}

pub(super) struct Run<'a> {
    args: &'a RunArgs,
    form: Form,
    plan: Plan,
    backend: &'static BackendInfo,
    setup: Setup,
    grace: Duration,
    launcher: Option<ForkedLauncher>,
    /// A daemon that runs it for us.
    daemon: Option<Arc<dyn Backend>>,
    /// What else is to be said of the sandbox, as members of an object.
    about: Value,
}

/// How driving an exec ended.
struct End {
    exit: Exit,
    /// The first signal that asked us to end.
    interrupted: Option<i32>,
    /// Why output could not be written.
    write_error: Option<io::Error>,
}

impl<'a> Run<'a> {
    /// A run in a sandbox that is there already.
    pub(super) fn inside(args: &'a RunArgs, form: Form, plan: Plan, settings: Settings, about: Value) -> Self {
        let Settings { backend, setup, cancel_grace: grace, .. } = settings;
        Self { args, form, plan, backend, setup, grace, launcher: None, daemon: None, about }
    }

    async fn session(mut self) -> Result<u8> {
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let progress = Arc::new((self.form == Form::Text && !self.args.output.quiet).then(Progress::new));
        let backend = match self.daemon.clone() {
            Some(daemon) => daemon,
            None => {
                let shown = Arc::clone(&progress);
                let tell = Arc::new(move |step: ImageStep| {
                    shown.iter().for_each(|progress: &Progress| progress.tell(step.clone()))
                });
                registry::backend_forked(self.backend.name, self.launcher.take(), &self.setup, tell)?
            }
        };
        let (sandbox, handle) = tokio::select! {
            started = backend.start_one(self.plan.spec.clone(), self.plan.request.clone()) => started?,
            number = interrupts.next() => return Ok(signal_status(number)),
        };
        progress.iter().for_each(Progress::finish);
        let outcome = self.follow(&*backend, &*sandbox, handle, &mut interrupts).await;
        if let Err(error) = sandbox.close().await {
            report::remark(&format!("the sandbox was not cleaned up: {error}"), Tone::Warning);
        }
        outcome
    }

    pub(super) async fn follow(
        &self,
        backend: &dyn Backend,
        sandbox: &dyn Sandbox,
        handle: ExecHandle,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let mut sink = self.sink();
        if let Sink::Events(events) = &mut sink {
            let mut line = json!({"type": "started", "exec": handle.id()});
            merge(&mut line, identity(backend, sandbox));
            if let Err(error) = events.line(&line).await {
                return self.unwritable(&error);
            }
        }
        let raw = if self.args.output.tty { Some(RawTerminal::enter()?) } else { None };
        let end = self.drive(&handle, &mut sink, interrupts).await;
        drop(raw);
        self.conclude(end?, sink, backend, sandbox).await
    }

    fn sink(&self) -> Sink {
        match self.form {
            Form::Json => Sink::Collect(Collected::default()),
            Form::Events => Sink::Events(Events::new()),
            Form::Text if self.args.output.raw_output || self.args.output.tty => Sink::Live(Live::new(Raw::Yes)),
            Form::Text => Sink::Live(Live::new(Raw::No)),
        }
    }

    /// Moves output, input, sizes and signals until the exec has ended.
    async fn drive(&self, handle: &ExecHandle, sink: &mut Sink, interrupts: &mut Interrupts) -> Result<End> {
        let mut resizes = if self.args.output.tty { Resizes::listen().map_err(no_signals)? } else { Resizes::none() };
        let mut output = pin!(self.pump(handle, sink));
        let mut input = pin!(forward(handle, self.plan.request.stdin()));
        let (mut input_ended, mut interrupted) = (false, None);
        loop {
            tokio::select! {
                biased;
                number = interrupts.next() => {
                    let first = interrupted.is_none();
                    interrupted.get_or_insert(number);
                    if first && handle.try_exit().is_none() {
                        handle.request_cancel(self.grace);
                    } else {
                        // The second time, or when only our reader keeps us: at once.
                        handle.close().await?;
                        return Ok(End { exit: handle.exit().await?, interrupted, write_error: None });
                    }
                }
                () = resizes.next() => {
                    if let Some(size) = tty::current_size() {
                        // The exec may have ended just now.
                        let _ = handle.resize(size);
                    }
                }
                ended = &mut output => {
                    let (exit, write_error) = ended?;
                    return Ok(End { exit, interrupted, write_error });
                }
                () = &mut input, if !input_ended => input_ended = true,
            }
        }
    }

    /// Passes output on until it ends. When nobody takes it any more, the exec is cancelled.
    async fn pump(&self, handle: &ExecHandle, sink: &mut Sink) -> Result<(Exit, Option<io::Error>)> {
        let mut output = handle.output();
        let mut write_error = None;
        while let Some(event) = output.next().await {
            if let Err(error) = sink.put(event).await {
                handle.request_cancel(self.grace);
                write_error = Some(error);
                break;
            }
            // A program that never stops writing must not keep signals and time-outs from their turn.
            tokio::task::consume_budget().await;
        }
        let exit = handle.exit().await?;
        if write_error.is_none() {
            write_error = sink.finish().await.err();
        }
        Ok((exit, write_error))
    }

    async fn conclude(&self, end: End, sink: Sink, backend: &dyn Backend, sandbox: &dyn Sandbox) -> Result<u8> {
        if let Some(error) = &end.write_error {
            return self.unwritable(error);
        }
        let status = end.interrupted.map_or_else(|| end.exit.shell_status(), signal_status);
        let ended = || {
            let mut document = json!({
                "exit": end.exit, "status": status, "usage": end.exit.usage, "posture": sandbox.posture(),
                "limits": sandbox.spec().limits(),
            });
            merge(&mut document, identity(backend, sandbox));
            merge(&mut document, self.about.clone());
            document
        };
        match sink {
            Sink::Live(live) => {
                self.tell(&end, live.lost);
                Ok(status)
            }
            Sink::Collect(collected) => {
                let mut document = ended();
                merge(
                    &mut document,
                    Value::Object(collected.to_json().map(|(key, value)| (key.into(), value)).into_iter().collect()),
                );
                Ok(report::printed(report::document(&document), status))
            }
            Sink::Events(mut events) => {
                let mut line = json!({"type": "exit"});
                merge(&mut line, ended());
                events.line(&line).await.map_or_else(|error| self.unwritable(&error), |()| Ok(status))
            }
        }
    }

    fn tell(&self, end: &End, lost: u64) {
        if self.args.output.quiet {
            return;
        }
        if let Some(number) = end.interrupted {
            report::remark(&format!("interrupted by signal {number}; the run was cancelled"), Tone::Warning);
        }
        let max_output = self.plan.request.max_output();
        for text in report::remarks(&end.exit, self.plan.spec.limits(), max_output, lost) {
            report::remark(&text, Tone::Warning);
        }
    }

    /// A reader that went away is its own business; any other failure to write is an error.
    fn unwritable(&self, error: &io::Error) -> Result<u8> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Ok(READER_GONE);
        }
        Err(Error::new(ErrorKind::Io, "run", format!("cannot write the output: {error}; the run was cancelled"))
            .with_remedy("make room where standard output or standard error goes"))
    }
}

/// Forwards our standard input if the request wants it.
async fn forward(handle: &ExecHandle, stdin: &Stdin) {
    if let (Stdin::Stream, Some(writer)) = (stdin, handle.stdin()) {
        crate::stdin::forward(writer).await;
    }
}

pub(super) fn identity(backend: &dyn Backend, sandbox: &dyn Sandbox) -> Value {
    json!({
        "sandbox": sandbox.id(),
        "backend": backend.name(),
        "level": backend.level(),
        "tenant": sandbox.spec().tenant(),
    })
}

pub(super) fn signal_status(number: i32) -> u8 {
    128u8.saturating_add(u8::try_from(number).unwrap_or(127))
}

pub(super) fn no_signals(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "run", "cannot listen for signals").with_source(error)
}
