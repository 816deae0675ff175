//! `cofferdam daemon`: runs a daemon that prepares sandboxes and interpreters for later runs, queries or stops it.
//!
//! ```text
//! --detach --starts--> stage 1: session leader --starts--> stage 2: the daemon
//!     '--waits until it reports that it listens, or exits <------'
//! ```

use std::fmt::Write;
use std::io::Read;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam::configuration::{Bound, Human};
use cofferdam::daemon::{Connection, DaemonConfig, DaemonSettings, Place, Refusal, Server, Status};
use cofferdam::engine::{InterpreterConfig, InterpretersConfig, PreparedInterpreter};
use cofferdam::{Error, ErrorKind, Level, Result, Spec, registry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use super::block_on;
use crate::args::{DaemonArgs, DaemonCommand, RunArgs};
use crate::interrupts::Interrupts;
use crate::report::{self, FAILED, Form};
use crate::resident;
use crate::settings::{Environment, Settings};
use crate::style::Tone;
use crate::terminal::one_line;

/// Beginning of the message of a daemon that listens.
const READY: &str = "the daemon listens on";
/// Idle timeout of a daemon that a run started.
const ON_DEMAND_IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Timeout until a started daemon listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of the messages that are read from a starting daemon.
const MAX_MESSAGES: usize = 64 * 1024;
/// Stage of the session leader.
const STAGE_SESSION: u8 = 1;
/// Stage of the daemon.
const STAGE_DAEMON: u8 = 2;

/// Runs a daemon, or sends a command to a running one.
pub fn main(args: &DaemonArgs, config: Option<PathBuf>) -> u8 {
    let form = match &args.command {
        Some(DaemonCommand::Status { json: true }) => Form::Json,
        _ => Form::Text,
    };
    let outcome = match (&args.command, args.stage) {
        (Some(DaemonCommand::Status { .. }), _) => status(form),
        (Some(DaemonCommand::Stop), _) => stop(),
        (None, Some(STAGE_SESSION)) => lead_session(),
        (None, stage) if stage.is_none() && args.detach => detach(),
        (None, stage) => settings(args, config).and_then(|(settings, file)| serve(args, &settings, &file, stage)),
    };
    outcome.unwrap_or_else(|error| report::error(&error, form))
}

fn settings(args: &DaemonArgs, config: Option<PathBuf>) -> Result<(Settings, DaemonSettings)> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let run = RunArgs { backend: args.backend.clone(), ..RunArgs::default() };
    Ok((Settings::resolve(&run, &Environment::read(variable)?, &file)?, file.daemon))
}

fn serve(args: &DaemonArgs, settings: &Settings, file: &DaemonSettings, stage: Option<u8>) -> Result<u8> {
    let config = plan(args, settings, file)?;
    let directory = resident::candidates().directory();
    block_on(async {
        let io = |what, error| Error::new(ErrorKind::Io, "daemon", what).with_source(error);
        let mut interrupts = Interrupts::listen().map_err(|error| io("cannot listen for signals", error))?;
        let server = Server::start(directory, registry::backend_with(settings.backend.name, &settings.setup)?, config)?;
        report::remark(&format!("{READY} {}", server.socket().display()), Tone::Good);
        if stage == Some(STAGE_DAEMON) {
            leave_terminal().map_err(|error| io("cannot leave the terminal", error))?;
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let mut run = pin!(server.run(async { drop(stopped.await) }));
        let number = tokio::select! {
            ended = &mut run => return ended.map(|()| 0),
            number = interrupts.next() => number,
        };
        report::remark(&format!("signal {number}: the daemon exits when its runs have finished"), Tone::Warning);
        drop(stop);
        tokio::select! {
            ended = &mut run => ended.map(|()| 0),
            // Remaining runs die with this process.
            number = interrupts.next() => Ok(128u8.saturating_add(u8::try_from(number).unwrap_or(127))),
        }
    })
}

/// Merges options, file and defaults, in this order of precedence.
fn plan(args: &DaemonArgs, settings: &Settings, file: &DaemonSettings) -> Result<DaemonConfig> {
    let mut template = Spec::builder().limits(settings.limits.clone()).tenant(settings.tenant.clone());
    for protection in &settings.allow_weaker {
        template = template.allow_weaker(*protection);
    }
    let merged = options(args).or(file.clone()).or(defaults(args));
    let base = DaemonConfig::new(resident::build(), resident::surroundings(settings)?);
    Ok(DaemonConfig {
        template: template.build()?,
        interpreters: InterpretersConfig::new(prepared_interpreters(args, settings, merged.clone())?),
        ..merged.apply(base)
    })
}

fn options(args: &DaemonArgs) -> DaemonSettings {
    DaemonSettings {
        idle_exit: args.idle_exit,
        drain: args.drain.map(Human),
        connections: args.connections,
        warm: args.warm,
        python: args.python,
        python_modules: args.python_modules.clone(),
        node: args.node,
        node_modules: args.node_modules.clone(),
    }
}

fn defaults(args: &DaemonArgs) -> DaemonSettings {
    let idle_exit = args.on_demand.then_some(Bound::Of(ON_DEMAND_IDLE_TIMEOUT));
    DaemonSettings { idle_exit, ..DaemonSettings::default() }
}

/// Returns the interpreters to prepare: those of allowed languages, started as the configuration describes.
fn prepared_interpreters(
    args: &DaemonArgs,
    settings: &Settings,
    merged: DaemonSettings,
) -> Result<Vec<PreparedInterpreter>> {
    // Prepared interpreters are processes. The interpreters of level wasm start from a snapshot without preparation.
    if settings.backend.level == Level::Wasm {
        if [args.python, args.node].into_iter().flatten().any(|ready| ready > 0) {
            let what = format!(
                "the backend '{}' prepares no interpreters: its own start from a snapshot",
                settings.backend.name
            );
            return Err(Error::unsupported("daemon", what).with_remedy("leave out --python and --node"));
        }
        return Ok(Vec::new());
    }
    let kinds = [
        ("python", InterpreterConfig::python(), merged.python, merged.python_modules),
        ("javascript", InterpreterConfig::node(), merged.node, merged.node_modules),
    ];
    let prepared = kinds.into_iter().filter_map(|(name, interpreter, ready, modules)| {
        let command = settings.code.languages.by_name(name).ok()?.interpreter.clone();
        let interpreter = InterpreterConfig { command, ..interpreter.with_modules(modules) };
        Some(PreparedInterpreter { name: name.to_owned(), interpreter, ready: ready.unwrap_or(1) })
    });
    Ok(prepared.filter(|kept| kept.ready > 0).collect())
}

/// Starts the first stage with this process's arguments, and waits until the daemon listens.
fn detach() -> Result<u8> {
    let mut child = own_command(STAGE_SESSION).stderr(Stdio::piped()).spawn().map_err(cannot_start)?;
    let stderr = child.stderr.take();
    // The child exits as soon as it has started the daemon, which inherits the pipe.
    child.wait().map_err(cannot_start)?;
    let messages = stderr.map(read_messages).transpose()?.unwrap_or_default();
    messages.lines().for_each(|line| report::remark(&one_line(line.trim_start_matches("cofferdam: ")), Tone::Good));
    if messages.contains(READY) {
        return Ok(0);
    }
    Ok(FAILED)
}

/// Becomes the leader of a session without a terminal, so that signals of the caller's terminal do not reach the
/// daemon, and starts the daemon. Does not wait for it, so that the daemon is reparented.
fn lead_session() -> Result<u8> {
    rustix::process::setsid().map_err(|errno| cannot_start(errno.into()))?;
    own_command(STAGE_DAEMON).stderr(Stdio::inherit()).spawn().map_err(cannot_start)?;
    Ok(0)
}

/// Returns the command of this process with another stage.
fn own_command(stage: u8) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "cofferdam".into());
    let mut command = Command::new(program);
    let mut words = std::env::args_os().skip(1).peekable();
    while let Some(word) = words.next() {
        if word == "--stage" {
            drop(words.next());
        } else {
            command.arg(word);
        }
    }
    command.args(["--stage", &stage.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn cannot_start(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "daemon", "cannot start the daemon").with_source(error)
}

/// Reads the messages of the daemon until it closes the pipe or exits.
fn read_messages(mut pipe: impl Read + std::os::fd::AsFd) -> Result<String> {
    let deadline = Instant::now() + START_TIMEOUT;
    let (mut messages, mut piece) = (Vec::new(), [0; 4096]);
    while messages.len() < MAX_MESSAGES {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&limit));
        match ready {
            Ok(0) => {
                return Err(Error::new(ErrorKind::Unavailable, "daemon", "the daemon does not listen within 30 s"));
            }
            Ok(_) => match pipe.read(&mut piece).map_err(cannot_start)? {
                0 => break,
                count => messages.extend_from_slice(&piece[..count]),
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(cannot_start(errno.into())),
        }
    }
    Ok(String::from_utf8_lossy(&messages).into_owned())
}

/// Closes the pipe of the starting process, and leaves its working directory.
fn leave_terminal() -> std::io::Result<()> {
    std::env::set_current_dir("/")?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

fn place() -> Result<Result<Place, Refusal>> {
    Ok(Place::open(resident::candidates().directory())?.ok_or(Refusal::None))
}

fn status(form: Form) -> Result<u8> {
    let status = match place()? {
        Ok(place) => Connection::status(&place)?,
        Err(refusal) => Err(refusal),
    };
    let status = match status {
        Ok(status) => status,
        Err(refusal) => return report_refusal(&refusal, form),
    };
    let printed = match form {
        Form::Json => report::document(&serde_json::to_value(&status).unwrap_or_default()),
        _ => report::print(&table(&status)),
    };
    Ok(report::printed(printed, 0))
}

fn report_refusal(refusal: &Refusal, form: Form) -> Result<u8> {
    if form == Form::Json {
        return Err(
            Error::new(ErrorKind::Unavailable, "daemon status", refusal.to_string()).with_remedy(refusal.remedy())
        );
    }
    report::remark(&refusal.to_string(), Tone::Warning);
    Ok(1)
}

fn table(status: &Status) -> String {
    let Status { pid, uptime_seconds, build, backend, level, running, runs, warm_runs, pool, interpreters } = status;
    let mut out = format!("process {pid}, for {uptime_seconds:.0} s, build {}\n", one_line(build));
    // Writing to a string cannot fail.
    let _ = writeln!(out, "  sandboxes     {} (level {level})", one_line(backend));
    let _ = writeln!(out, "  runs          {running} now, {runs} in total, {warm_runs} in prepared interpreters");
    let _ = writeln!(
        out,
        "  pool          {} prepared, {} in use, {} claimed prepared, {} created on request",
        pool.warm,
        pool.claimed,
        pool.claims.warm,
        pool.claims.total() - pool.claims.warm
    );
    for kind in interpreters {
        let _ = writeln!(
            out,
            "  {:<13} {} prepared, {} starting, {} used, {} missed",
            one_line(&kind.name),
            kind.waiting,
            kind.making,
            kind.taken,
            kind.missed
        );
        if let Some(error) = &kind.last_error {
            let _ = writeln!(out, "                failed: {}", one_line(error));
        }
    }
    out
}

fn stop() -> Result<u8> {
    let stopped = match place()? {
        Ok(place) => Connection::stop(&place)?,
        Err(refusal) => Err(refusal),
    };
    match stopped {
        Ok(pid) => report::remark(&format!("the daemon, process {pid}, has exited"), Tone::Good),
        Err(Refusal::None) => report::remark(&Refusal::None.to_string(), Tone::Warning),
        Err(refusal) => {
            return Err(
                Error::new(ErrorKind::Unavailable, "daemon stop", refusal.to_string()).with_remedy("send it SIGTERM")
            );
        }
    }
    Ok(0)
}
