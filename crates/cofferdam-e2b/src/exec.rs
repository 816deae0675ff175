//! The start of an exec: its process, the check that its program runs, and its handle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    Command, Error, ErrorKind, ExecControl, ExecHandle, ExecId, ExecRequest, OutputStream, Result, Script, Stdin,
    StdinWriter, TerminalSize,
};
use tokio::io::DuplexStream;
use tokio::sync::watch;

use crate::client::{Events, ROOT, USER};
use crate::core::{Core, Phase, random};
use crate::drive::Drive;
use crate::error::{Failure, shown};
use crate::guest::{EXEC, script};
use crate::input::{PIECE, feed};
use crate::upload::Upload;
use crate::wire::{Data, ProcessMessage, Pty, Size, StartRequest};

/// Time for a program to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The variables that every program has, beside `PATH` and `HOME`.
const LANG: &str = "C.UTF-8";
/// The `PATH` of a VM that has none.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The most bytes of errors before a program starts.
const MAX_BEFORE: usize = 64 << 10;

/// The number of the next exec of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Requests of a handle. A later one of a kind replaces an earlier one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub cancel: Option<Duration>,
    pub kill: bool,
    pub size: Option<TerminalSize>,
}

struct Controls {
    requests: watch::Sender<Requests>,
    has_terminal: bool,
}

impl ExecControl for Controls {
    fn cancel(&self, grace: Duration) {
        self.requests.send_modify(|requests| requests.cancel = requests.cancel.or(Some(grace)));
    }

    fn kill(&self) {
        self.requests.send_modify(|requests| requests.kill = true);
    }

    fn resize(&self, size: TerminalSize) -> Result<()> {
        if !self.has_terminal {
            return Err(Error::unsupported("resize", "the exec has no terminal"));
        }
        self.requests.send_modify(|requests| requests.size = Some(size));
        Ok(())
    }
}

/// Returns the size of a terminal as a message.
pub(crate) fn pty(size: TerminalSize) -> Pty {
    Pty { size: Size { cols: size.columns, rows: size.rows } }
}

/// A started process and its output so far.
struct StartedProcess {
    pid: u32,
    events: Events<ProcessMessage>,
    first: Vec<(OutputStream, Vec<u8>)>,
}

/// Starts an exec. `wall_time` is the time of one without a time of its own.
pub(crate) async fn start(core: Arc<Core>, request: ExecRequest, wall_time: Duration) -> Result<ExecHandle> {
    let (nonce, started_at) = (random(), Instant::now());
    // Below the default of both limits that carry it, and above the values that programs set. The scripts need at most
    // 48 bits.
    let exec_tag = (u64::from_str_radix(&nonce[..12], 16).unwrap_or_default() | 1 << 40).to_string();
    let script_file = match request.command() {
        Command::Script(script) => Some(ScriptFile::upload(&core, &nonce, script).await?),
        Command::Argv(_) | Command::Shell(_) => None,
    };
    let path = script_file.as_ref().map(|file| file.path.as_str());
    let message = StartRequest {
        process: process(&core, &request, &nonce, &exec_tag, path),
        pty: request.terminal().map(pty),
        tag: format!("cofferdam-{nonce}"),
        stdin: !matches!(request.stdin(), Stdin::Empty),
    };
    let started = tokio::time::timeout(START_TIMEOUT, start_process(&core, &message, &nonce)).await;
    let late = || Error::new(ErrorKind::Unavailable, "start", "the program did not start within 60 s");
    let started = match started.unwrap_or_else(|_| Err(late())) {
        Ok(started) => started,
        Err(error) => {
            // It may run, if the answer was lost.
            if error.kind() == ErrorKind::Unavailable {
                tokio::spawn(async move { core.end(&exec_tag, None).await });
            }
            return Err(error);
        }
    };
    Ok(handle(core, &request, started, HandleParts { exec_tag, script_file, started_at, wall_time }))
}

/// The file of a script, in a directory of its own. Dropping it removes the directory in the background.
pub(crate) struct ScriptFile {
    core: Arc<Core>,
    path: String,
}

impl ScriptFile {
    async fn upload(core: &Arc<Core>, nonce: &str, script: &Script) -> Result<Self> {
        // Before the upload: one that fails may leave a part of the file.
        let file = Self { core: Arc::clone(core), path: format!("/tmp/cofferdam-{nonce}/{}", script.name) };
        let contents = Upload::new(Box::new(std::io::Cursor::new(Bytes::clone(&script.contents))));
        let uploaded = core.open("start")?.upload(&file.path, ROOT, contents).await;
        uploaded.map_err(|failure| core.failed("start", failure))?;
        Ok(file)
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        let (Some((directory, _)), Ok(runtime)) = (self.path.rsplit_once('/'), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (core, directory) = (Arc::clone(&self.core), directory.to_owned());
        runtime.spawn(async move {
            if matches!(core.phase(), Phase::Running(_)) {
                let remove = script("rm -rf -- \"$1\"", vec![directory], true);
                let _ = core.run("run", ROOT, remove, 4096).await;
            }
        });
    }
}

/// The parts of a handle besides its process.
struct HandleParts {
    exec_tag: String,
    script_file: Option<ScriptFile>,
    started_at: Instant,
    wall_time: Duration,
}

fn handle(core: Arc<Core>, request: &ExecRequest, started: StartedProcess, parts: HandleParts) -> ExecHandle {
    let (requests, requested) = watch::channel(Requests::default());
    let has_terminal = request.terminal().is_some();
    let control = Arc::new(Controls { requests, has_terminal });
    let (writer, reader): (_, Option<DuplexStream>) = match request.stdin() {
        Stdin::Stream => {
            let (ours, theirs) = tokio::io::duplex(PIECE);
            (Some(StdinWriter::new(ours)), Some(theirs))
        }
        Stdin::Empty | Stdin::Bytes(_) => (None, None),
    };
    let number = ExecId(NEXT.fetch_add(1, Ordering::Relaxed));
    let (handle, driver) = ExecHandle::new(number, request, writer, control);
    let (attached, is_attached) = watch::channel(None);
    let pid = started.pid;
    let bytes = match request.stdin() {
        Stdin::Bytes(bytes) => Some(std::io::Cursor::new(Bytes::clone(bytes))),
        // A terminal is open until its input ends.
        Stdin::Empty if has_terminal => Some(std::io::Cursor::new(Bytes::new())),
        Stdin::Empty | Stdin::Stream => None,
    };
    let input = match (bytes, reader) {
        (Some(bytes), _) => Some(tokio::spawn(feed(Arc::clone(&core), pid, has_terminal, bytes, is_attached))),
        (None, Some(reader)) => Some(tokio::spawn(feed(Arc::clone(&core), pid, has_terminal, reader, is_attached))),
        (None, None) => None,
    };
    for (stream, data) in started.first {
        driver.publisher().publish(stream, data);
    }
    let wall_time = request.timeout().unwrap_or(parts.wall_time);
    let drive =
        Drive::new(core, pid, parts.exec_tag, parts.script_file, requested, attached, (parts.started_at, wall_time));
    tokio::spawn(drive.run(started.events, driver, input));
    handle
}

/// Returns the process: the script that starts the program.
fn process(
    core: &Core,
    request: &ExecRequest,
    nonce: &str,
    exec_tag: &str,
    file: Option<&str>,
) -> crate::wire::ProcessConfig {
    let path = if core.path.is_empty() { DEFAULT_PATH } else { &core.path };
    let home = if core.home.is_empty() { "/" } else { &core.home };
    let environment: BTreeMap<_, _> = request.env().apply([("PATH", path), ("HOME", home), ("LANG", LANG)]);
    let program: Vec<String> = match request.command() {
        Command::Argv(argv) => argv.clone(),
        Command::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()],
        Command::Script(script) => {
            let file = file.map(str::to_owned);
            script.interpreter.iter().cloned().chain(file).chain(script.args.iter().cloned()).collect()
        }
    };
    let fixed = [nonce, exec_tag, &request.working_dir().inside(), file.unwrap_or_default()].map(str::to_owned);
    let variables = environment.into_iter().map(|(name, value)| format!("{name}={value}"));
    let arguments = fixed.into_iter().chain(variables).chain(["--".to_owned()]).chain(program).collect();
    script(EXEC, arguments, true)
}

/// Starts the process, and reads until the script says that the program starts.
async fn start_process(core: &Core, message: &StartRequest, nonce: &str) -> Result<StartedProcess> {
    let failed = |failure| core.failed("start", failure);
    let mut events = core.open("start")?.stream::<ProcessMessage>("Start", USER, message).await.map_err(failed)?;
    let (mut pid, mut seen, mut first) = (None, Vec::new(), Vec::new());
    loop {
        let Some(ProcessMessage { event }) = events.next().await.map_err(failed)? else {
            return Err(failed(Failure::Cut("the stream ended before the program started".to_owned())));
        };
        pid = pid.or(event.start.map(|started| started.pid));
        for (stream, data) in event.data.map(parts).into_iter().flatten() {
            match stream {
                OutputStream::Stdout => seen.extend_from_slice(&data),
                OutputStream::Stderr => first.push((stream, data)),
            }
        }
        if seen.len() > nonce.len() {
            let Some(rest) = seen.strip_prefix(nonce.as_bytes()) else {
                return Err(unprepared("its first output is not that of the start script"));
            };
            if rest[0] != b'+' {
                return Err(refused(rest[0]));
            }
            if rest.len() > 1 {
                first.push((OutputStream::Stdout, rest[1..].to_vec()));
            }
            let pid = pid.ok_or_else(|| failed(Failure::Foreign("a process has no pid".to_owned())))?;
            return Ok(StartedProcess { pid, events, first });
        }
        if first.iter().map(|(_, data)| data.len()).sum::<usize>() > MAX_BEFORE {
            return Err(unprepared("it printed too much before the program started"));
        }
        if let Some(end) = event.end {
            let printed: Vec<u8> = first.into_iter().flat_map(|(_, data)| data).collect();
            let what = format!("{}: {}", end.status, String::from_utf8_lossy(&printed));
            return Err(unprepared(&shown(&what)));
        }
    }
}

/// Returns the output in a message.
pub(crate) fn parts(data: Data) -> impl Iterator<Item = (OutputStream, Vec<u8>)> {
    let Data { stdout, stderr, pty } = data;
    let one = |stream, data: Option<crate::wire::Base64>| data.map(|data| (stream, data.0));
    [one(OutputStream::Stdout, stdout), one(OutputStream::Stderr, stderr), one(OutputStream::Stdout, pty)]
        .into_iter()
        .flatten()
}

fn unprepared(reason: &str) -> Error {
    Error::new(ErrorKind::Io, "start", "the sandbox could not start the program")
        .with_context("reason", reason.to_owned())
        .with_remedy("use a template with bash, coreutils, findutils and grep")
}

/// Returns the error for a letter of the script.
fn refused(letter: u8) -> Error {
    match letter {
        b'n' => Error::new(ErrorKind::NotFound, "start", "there is no such program in the sandbox"),
        b'x' => Error::new(ErrorKind::NotExecutable, "start", "the program is not an executable file"),
        b'd' => Error::new(ErrorKind::NotFound, "start", "the working directory does not exist"),
        b's' => unprepared("the program could change the file of its script"),
        b't' => unprepared("its resource limits cannot be set, so that its processes would not be found"),
        _ => unprepared("the start script gave an unknown answer"),
    }
}
