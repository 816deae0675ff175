//! `cofferdam run`: creates a sandbox, runs one command or piece of code in it, prints the output and reports the exit.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::code::{
    CodeConfig, CodeRequest, CodeResult, Execution, Executor, Job, OnScreened, Oversight, Screened, Started, Want,
};
use cofferdam::publish::Published;
use cofferdam::registry::{self, BackendInfo, ForkedLauncher, ImageStep, Setup};
use cofferdam::volumes::{self, Volumes};
use cofferdam::{Backend, Error, ErrorKind, ExecHandle, ExecRequest, Exit, Result, Sandbox, Stdin, Workspace};
use serde_json::{Value, json};

use super::copies::Copies;
use super::observed::{self, Observation, Observed};
use super::review::{self, Review, Reviewed};
use super::{block_on, published};
use crate::args::RunArgs;
use crate::commands::volume;
use crate::images;
use crate::interrupts::{Interrupts, Resizes};
use crate::plan::{Code, Plan};
use crate::progress::Progress;
use crate::report::{self, FAILED, Form, READER_GONE};
use crate::resident::{self, ServerUse};
use crate::settings::{Environment, Settings};
use crate::sink::{Collected, Events, Live, RawOutput, Sink, merge};
use crate::style::Tone;
use crate::tty::{self, RawTerminal};

/// Runs the command. The exit status is that of the command, or the status of an error of Cofferdam.
pub fn main(args: &RunArgs, config: Option<PathBuf>, launcher: Option<ForkedLauncher>) -> u8 {
    let form = match (args.output.json, args.output.events) {
        (true, _) => Form::Json,
        (_, true) => Form::Events,
        _ => Form::Text,
    };
    let outcome = prepare(args, config.clone()).and_then(|(mut plan, settings)| {
        review::check(&args.review, &plan.spec)?;
        // A server gives no access to files, and starts one command per sandbox.
        let full_result = form == Form::Json && plan.code.is_some();
        let versioned = versioned(&plan, &settings.code);
        let copies = match args.copies.is_empty() {
            true => None,
            false => Some(Arc::new(Copies::open(&args.copies, args.output.quiet)?)),
        };
        if copies.is_some() && settings.use_server == ServerUse::Require {
            let message = "a server does not support --copy-in and --copy-out, which need access to the sandbox";
            return Err(Error::unsupported("run", message).with_remedy("use --use-server auto"));
        }
        let is_reviewed = matches!(plan.spec.workspace(), Workspace::CopyOnWrite { .. });
        if is_reviewed && settings.use_server == ServerUse::Require {
            let message = "a server does not support copy-on-write workspaces, whose changes are read from the sandbox";
            return Err(Error::unsupported("run", message)
                .with_remedy("use --use-server auto, or mount the directory with :ro or :rw"));
        }
        if full_result && settings.use_server == ServerUse::Require {
            let message = "a server does not support the full result of code, which needs access to the sandbox";
            return Err(Error::unsupported("run", message).with_remedy("use --use-server auto, or leave out --json"));
        }
        // Does not search or start a server that could not be used.
        let server = if full_result || is_reviewed || copies.is_some() || versioned.is_some() {
            None
        } else {
            resident::backend(args, &settings, config.as_deref())?
        };
        if full_result && settings.use_server != ServerUse::Never && args.output.verbose {
            let message = "run without a server: the full result of code needs access to the sandbox";
            report::remark(message, Tone::Warning);
        }
        let Settings { backend, setup, cancel_grace: grace, code, watched, .. } = settings;
        let volumes = volumes(args, backend, &mut plan)?;
        let called = wants_code(&plan, form, watched);
        let (about, published) = (Value::Null, Vec::new());
        let run = Run {
            args,
            form,
            plan,
            backend,
            setup,
            grace,
            launcher,
            server,
            copies,
            about,
            published,
            code,
            called,
            versioned,
            volumes,
        };
        block_on(run.session())
    });
    report::finish(outcome.map_err(|error| images::with_hint(args, error)), form)
}

pub(super) fn prepare(args: &RunArgs, config: Option<PathBuf>) -> Result<(Plan, Settings)> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let settings = Settings::resolve(args, &Environment::read(variable)?, &file)?;
    published::check(&args.publish)?;
    let terminal = if args.output.tty { Some(tty::size()?) } else { None };
    // The entrypoint is read from the image.
    images::pull_missing(args, &settings)?;
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
    /// The server that executes the run.
    server: Option<Arc<dyn Backend>>,
    /// The files that are copied into and out of the sandbox.
    copies: Option<Arc<Copies>>,
    /// Further members of the JSON document about the sandbox.
    about: Value,
    /// The ports of the sandbox that are published.
    published: Vec<Published>,
    /// The configuration of code execution.
    code: CodeConfig,
    /// True if the run is a call: it has a full result, or is screened, logged or bounded.
    called: bool,
    /// The language, if a minimum version is required.
    versioned: Option<String>,
    /// The volumes of the sandbox.
    volumes: Option<Volumes>,
}

/// Opens the volumes of a run, and adds them to its spec.
fn volumes(args: &RunArgs, backend: &BackendInfo, plan: &mut Plan) -> Result<Option<Volumes>> {
    if args.volumes.volume.is_empty() {
        return Ok(None);
    }
    let volumes = Volumes::open(&volume::store()?, &args.volumes.volume, backend.level, "cofferdam run")
        .map_err(volumes::failed)?;
    plan.spec = volumes.add_to(plan.spec.to_builder()).build()?;
    Ok(Some(volumes))
}

/// Returns the language if it requires a minimum version: an older interpreter would report misleading errors.
fn versioned(plan: &Plan, config: &CodeConfig) -> Option<String> {
    let name = &plan.code.as_ref()?.request.language;
    let known = config.languages.by_name(name).ok()?;
    known.least_version.as_ref().map(|_| name.clone())
}

/// Creates the executor of a run. Without full oversight it neither logs nor bounds: the output of a run may exceed the
/// memory that a call may use.
pub(super) fn executor(config: &CodeConfig, oversight: Oversight) -> Result<Executor> {
    let (config, base) = (config.clone(), CodeConfig::default());
    Executor::new(match oversight {
        Oversight::Full => config,
        Oversight::Analysis => CodeConfig { audit: None, bounds: base.bounds, sessions: base.sessions, ..config },
    })
}

/// Returns the checks of a run: all, if it is a call.
pub(super) fn oversight(called: bool) -> Oversight {
    if called { Oversight::Full } else { Oversight::Analysis }
}

/// Returns the planned run as a job, without results besides the exit.
pub(super) fn job<'a>(plan: &Plan, oversight: Oversight, on_screened: OnScreened<'a>) -> Job<'a> {
    let of_code = |code: &Code| CodeRequest { files: Want::No, results: Want::No, ..code.request.clone() };
    Job {
        exec: plan.request.clone(),
        code: plan.code.as_ref().map(of_code),
        secrets: plan.secrets.clone(),
        oversight,
        checked_version: None,
        on_screened,
    }
}

/// Prints the findings of screening for code that runs despite them.
pub(super) fn warn_of(Screened { findings, truncated, not_screened }: &Screened) {
    for finding in findings {
        report::remark(&format!("screening: {finding}"), Tone::Warning);
    }
    if *truncated {
        report::remark("screening: further findings are not shown", Tone::Warning);
    }
    if let Some(why) = not_screened {
        report::remark(&format!("the code was not screened: {why}"), Tone::Warning);
    }
}

/// Returns true if a run is a call with code, or is screened, logged or bounded as one.
fn wants_code(plan: &Plan, form: Form, watched: bool) -> bool {
    watched || (form == Form::Json && plan.code.is_some())
}

/// The end of an exec.
struct End {
    exit: Exit,
    /// The first termination signal that this process received.
    interrupted: Option<i32>,
    /// The error of writing output.
    write_error: Option<io::Error>,
}

impl<'a> Run<'a> {
    /// Creates a run in an existing sandbox.
    #[cfg(feature = "vm")]
    pub(super) fn inside(args: &'a RunArgs, form: Form, plan: Plan, settings: Settings, about: Value) -> Self {
        let Settings { backend, setup, cancel_grace: grace, code, .. } = settings;
        Self {
            args,
            form,
            plan,
            backend,
            setup,
            grace,
            launcher: None,
            server: None,
            copies: None,
            about,
            published: Vec::new(),
            code,
            called: false,
            versioned: None,
            volumes: None,
        }
    }

    /// Runs it, and releases its volumes.
    async fn session(mut self) -> Result<u8> {
        let volumes = self.volumes.take();
        let outcome = self.in_sandbox().await;
        if let Some(volumes) = volumes
            && let Err(error) = volumes.release().await
        {
            report::remark(&format!("cannot close a volume: {error}"), Tone::Warning);
        }
        outcome
    }

    async fn in_sandbox(mut self) -> Result<u8> {
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let progress = Arc::new((self.form == Form::Text && !self.args.output.quiet).then(Progress::new));
        let backend = match self.server.clone() {
            Some(server) => server,
            None => {
                let shown = Arc::clone(&progress);
                let on_step = Arc::new(move |step: ImageStep| {
                    shown.iter().for_each(|progress: &Progress| progress.report(step.clone()))
                });
                registry::backend_forked(self.backend.name, self.launcher.take(), &self.setup, on_step)?
            }
        };
        let backend = match &self.copies {
            Some(copies) => copies.around(backend),
            None => backend,
        };
        let log = observed::open(self.args.observe.net_log.as_deref())?;
        let listeners = published::listen(&self.args.publish, &*backend)?;
        let oversight = oversight(self.called);
        let executor = executor(&self.code, oversight)?;
        let on_screened = |screened: &Screened| {
            if !(self.called && self.args.output.quiet) {
                warn_of(screened);
            }
        };
        let job = self.job(oversight, &on_screened);
        let execution = match executor.start(&*backend, &self.plan.spec, job, interrupts.next()).await? {
            Started::Running(execution) => *execution,
            Started::Cancelled(number) => return Ok(signal_status(number)),
        };
        progress.iter().for_each(Progress::finish);
        let sandbox = Arc::clone(execution.sandbox());
        self.published = published::start(listeners, &sandbox, self.args.output.quiet);
        let observation = Observation::start(&sandbox, self.backend.name, log);
        let outcome = self.follow(&*backend, execution, &mut interrupts).await;
        if !self.args.output.quiet {
            let denials = sandbox.network_denials();
            denials.iter().for_each(|denial| report::remark(&format!("network: {denial}"), Tone::Warning));
        }
        if let Err(error) = sandbox.close().await {
            report::remark(&format!("cannot close the sandbox: {error}"), Tone::Warning);
        }
        if let Some(observation) = observation {
            self.report_observed(observation.finish().await);
        }
        published::finish(std::mem::take(&mut self.published), self.args.output.quiet).await;
        outcome
    }

    /// Reports a log that could not be written, and the policy that was learned.
    fn report_observed(&self, observed: Observed) {
        if let Some(error) = observed.error {
            report::remark(&format!("cannot write the log of the network: {error}"), Tone::Warning);
        }
        if self.args.observe.net_learn.is_some() && !["process", "vm"].contains(&self.backend.name) {
            report::remark("network: this backend may report only connections to usual ports", Tone::Warning);
        }
        if self.args.observe.net_learn.is_some() && !observed.hosts.is_empty() {
            let hosts: Vec<String> = observed.hosts.into_iter().collect();
            report::remark(
                &format!("network: the smallest policy that allows this: --net {}", hosts.join(",")),
                Tone::Good,
            );
        }
    }

    /// Returns the job of this run. It has a full result in one JSON document only.
    fn job<'b>(&self, oversight: Oversight, on_screened: OnScreened<'b>) -> Job<'b> {
        let mut job = Job { checked_version: self.versioned.clone(), ..job(&self.plan, oversight, on_screened) };
        if let (Form::Json, Some(code), Some(plan)) = (self.form, &mut job.code, &self.plan.code) {
            code.files = Want::Yes;
            code.results = if plan.in_place { Want::No } else { Want::Yes };
        }
        job
    }

    pub(super) async fn follow(
        &self,
        backend: &dyn Backend,
        execution: Execution,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let mut sink = self.sink();
        if let Sink::Events(events) = &mut sink {
            let mut line = json!({"type": "started", "exec": execution.handle().id()});
            merge(&mut line, identity(backend, &**execution.sandbox()));
            published::add_to(&mut line, &self.published);
            if let Err(error) = events.line(&line).await {
                execution.abandon().await;
                return self.unwritable(&error);
            }
        }
        match self.watch(&execution, &mut sink, interrupts).await {
            Ok(end) => self.conclude(end, sink, backend, execution, interrupts).await,
            Err(error) => {
                let sandbox = Arc::clone(execution.sandbox());
                let failed = execution.failed(error).await;
                self.copy_out(&*sandbox, FAILED, interrupts).await;
                self.review(&*sandbox, FAILED).await;
                Err(failed)
            }
        }
    }

    /// Copies files out of the sandbox, until a signal arrives. Returns the exit status, and the copies in the JSON form.
    async fn copy_out(&self, sandbox: &dyn Sandbox, status: u8, interrupts: &mut Interrupts) -> (u8, Option<Value>) {
        let Some(copies) = &self.copies else { return (status, None) };
        tokio::select! {
            (is_whole, document) = copies.copy_out(sandbox) => {
                (if is_whole || status != 0 { status } else { FAILED }, Some(document))
            }
            number = interrupts.next() => {
                report::remark(&format!("interrupted by signal {number}; not every file was copied out"), Tone::Warning);
                (signal_status(number), None)
            }
        }
    }

    /// Keeps, shows, applies or saves the changes of a copy-on-write workspace. Returns the exit status, and the changes
    /// in the JSON form.
    async fn review(&self, sandbox: &dyn Sandbox, status: u8) -> (u8, Option<Value>) {
        let review = Review { args: &self.args.review, form: self.form, quiet: self.args.output.quiet };
        match review::review(sandbox, review, status).await {
            Ok(None) => (status, None),
            Ok(Some(Reviewed { status, document })) => (status, Some(document)),
            Err(error) => {
                report::remark(&format!("the changes of the workspace are lost: {error}"), Tone::Bad);
                (FAILED, Some(json!({"error": error.to_json()})))
            }
        }
    }

    async fn watch(&self, execution: &Execution, sink: &mut Sink, interrupts: &mut Interrupts) -> Result<End> {
        let raw = if self.args.output.tty { Some(RawTerminal::enter()?) } else { None };
        let end = self.drive(execution, sink, interrupts).await;
        drop(raw);
        end
    }

    fn sink(&self) -> Sink {
        match self.form {
            Form::Json => Sink::Collect(Collected::default()),
            Form::Events => Sink::Events(Events::new()),
            Form::Text if self.args.output.raw_output || self.args.output.tty => Sink::Live(Live::new(RawOutput::Yes)),
            Form::Text => Sink::Live(Live::new(RawOutput::No)),
        }
    }

    /// Forwards output, input, terminal sizes and signals until the exec has ended.
    async fn drive(&self, execution: &Execution, sink: &mut Sink, interrupts: &mut Interrupts) -> Result<End> {
        let handle = execution.handle();
        let mut resizes = if self.args.output.tty { Resizes::listen().map_err(no_signals)? } else { Resizes::none() };
        let mut output = pin!(self.pump(execution, sink));
        let mut input = pin!(forward(handle, execution.request().stdin()));
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
                        // The second signal, or one while only the reader of the output delays the exit, kills.
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

    /// Forwards output until it ends. Cancels the exec if the output cannot be written.
    async fn pump(&self, execution: &Execution, sink: &mut Sink) -> Result<(Exit, Option<io::Error>)> {
        let (handle, mut output) = (execution.handle(), execution.output());
        let mut write_error = None;
        while let Some(event) = output.next().await {
            if let Err(error) = sink.put(event).await {
                handle.request_cancel(self.grace);
                write_error = Some(error);
                break;
            }
            // A program that never stops writing must not starve signals and timeouts.
            tokio::task::consume_budget().await;
        }
        let exit = handle.exit().await?;
        if write_error.is_none() {
            write_error = sink.finish().await.err();
        }
        Ok((exit, write_error))
    }

    async fn conclude(
        &self,
        end: End,
        sink: Sink,
        backend: &dyn Backend,
        execution: Execution,
        interrupts: &mut Interrupts,
    ) -> Result<u8> {
        let (sandbox, request) = (Arc::clone(execution.sandbox()), execution.request().clone());
        let result = execution.result().await?;
        let status = end.interrupted.map_or_else(|| end.exit.shell_status(), signal_status);
        if let Sink::Live(live) = &sink {
            self.report(&end, &request, live.lost);
        }
        let (status, copies) = self.copy_out(&*sandbox, status, interrupts).await;
        let (status, changes) = self.review(&*sandbox, status).await;
        if let Some(error) = &end.write_error {
            return self.unwritable(error);
        }
        let ended = || {
            let mut document = json!({
                "exit": end.exit, "status": status, "usage": end.exit.usage, "posture": sandbox.posture(),
                "limits": sandbox.spec().limits(),
            });
            let denials = sandbox.network_denials();
            if !denials.is_empty() {
                document["network_denials"] = denials.iter().map(ToString::to_string).collect();
            }
            if let Some(usage) = sandbox.network_usage() {
                document["network"] = json!(usage);
            }
            if let Some(copies) = &copies {
                document["copies"] = copies.clone();
            }
            if let Some(changes) = &changes {
                document["changes"] = changes.clone();
            }
            published::add_to(&mut document, &self.published);
            merge(&mut document, identity(backend, &*sandbox));
            merge(&mut document, self.about.clone());
            if self.plan.code.is_some() {
                merge(&mut document, result.as_ref().map(|result| of_code(result, self.form)).unwrap_or_default());
            }
            document
        };
        match sink {
            Sink::Live(_) => Ok(status),
            Sink::Collect(collected) => {
                let mut document = ended();
                merge(
                    &mut document,
                    Value::Object(collected.into_json().map(|(key, value)| (key.into(), value)).into_iter().collect()),
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

    fn report(&self, end: &End, request: &ExecRequest, lost: u64) {
        if self.args.output.quiet {
            return;
        }
        if let Some(number) = end.interrupted {
            report::remark(&format!("interrupted by signal {number}; the run was cancelled"), Tone::Warning);
        }
        let mut limits = self.plan.spec.limits().clone();
        limits.wall_time = request.timeout().unwrap_or(limits.wall_time);
        for text in report::remarks(&end.exit, &limits, request.max_output(), lost) {
            report::remark(&text, Tone::Warning);
        }
    }

    /// Returns the status of a closed output, or the error of any other failed write.
    fn unwritable(&self, error: &io::Error) -> Result<u8> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Ok(READER_GONE);
        }
        Err(Error::new(ErrorKind::Io, "run", format!("cannot write the output: {error}; the run was cancelled"))
            .with_remedy("free space where standard output or standard error is written"))
    }
}

/// Returns the members of a code result that the form of output includes.
fn of_code(result: &CodeResult, form: Form) -> Value {
    let mut value = serde_json::to_value(result).unwrap_or_default();
    if let (Value::Object(members), true) = (&mut value, form != Form::Json) {
        // Output was printed as events, and the other members were not collected. An empty value would mean that there
        // are none.
        for name in ["stdout", "stderr", "results", "results_dropped", "files"] {
            members.remove(name);
        }
    }
    value
}

/// Forwards standard input of this process if the request streams it.
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
