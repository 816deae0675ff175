//! An exec, from its request to its exit.
//!
//! ```text
//! requested --Started--> running --Ended--> draining --> finished
//!                          |  time-out, CPU limit, cancel, kill: all processes of the exec are signalled
//!                          |  no Ended after a kill: the whole sandbox is killed
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::supervise::{Ended, ExecLimits, ExecUsage, StopRequest, Supervision};
use cofferdam_contract::{
    Command, Error, ErrorKind, ExecControl, ExecDriver, ExecHandle, ExecId, ExecRequest, Exit, Fault, OutputStream,
    Result, Retry, Stdin, StdinWriter, TerminalSize,
};
use cofferdam_linux::message;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use crate::core::{Core, Enrolled};
use crate::image::Surroundings;
use crate::protocol::{Request, Start};
use crate::stdio::{self, Read, Stream, Writer};
use crate::{error, files};

/// Environment of every exec, besides PATH.
const BASE_ENV: [(&str, &str); 2] = [("HOME", "/tmp"), ("LANG", "C.UTF-8")];
/// The maximum contents of a pipe after its last writer is gone (the default for `fs.pipe-max-size`).
const MAX_DRAINED: usize = 1 << 20;

struct Control {
    stops: mpsc::UnboundedSender<StopRequest>,
    terminal: Option<OwnedFd>,
}

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        let _ = self.stops.send(StopRequest::Cancel(grace));
    }

    fn kill(&self) {
        let _ = self.stops.send(StopRequest::Kill);
    }

    fn resize(&self, size: TerminalSize) -> Result<()> {
        let terminal =
            self.terminal.as_ref().ok_or_else(|| Error::unsupported("resize", "the exec has no terminal"))?;
        stdio::resize(terminal, size.rows, size.columns)
            .map_err(|error| error::os("resize", "cannot set the terminal's size", error))
    }
}

/// The host's ends of a program's descriptors.
pub struct Ends {
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    stdin: Option<StdinWriter>,
    /// Input that is not written yet.
    input: Option<(Writer, Bytes)>,
}

/// Starts an exec. Returns its handle once its program runs.
pub async fn start(core: &Arc<Core>, request: ExecRequest) -> Result<ExecHandle> {
    let begun = Instant::now();
    let enrolled = core.enroll();
    let prepared = prepare(&core.surroundings, Some(core.code()), enrolled.exec, &request)?;
    let guard = Unstarted { core, exec: Some(enrolled.exec) };
    let base = Base::begin(core, enrolled.exec);
    let fds: Vec<BorrowedFd<'_>> = prepared.theirs.iter().map(AsFd::as_fd).collect();
    let sent = core.request(&Request::Start(prepared.start), &fds).await;
    drop(fds);
    sent.map_err(|error| match *core.gone.borrow() || !message::is_crowded(&error) {
        true => died(core, "start").with_source(error),
        false => error::os("start", "cannot request the exec", error),
    })?;
    let running = Running { ours: prepared.ours, program: prepared.program, directory: prepared.directory };
    attach(core, &request, begun, (enrolled, base), running, guard).await
}

/// The host's state of a requested exec.
pub struct Running {
    pub ours: Ends,
    pub program: String,
    pub directory: String,
}

/// Kills an exec whose caller was dropped before it had a handle.
pub struct Unstarted<'a> {
    pub core: &'a Core,
    pub exec: Option<u64>,
}

impl Drop for Unstarted<'_> {
    fn drop(&mut self) {
        if let Some(exec) = self.exec
            && !self.core.kill_now(exec)
        {
            self.core.kill_all();
        }
    }
}

/// The sandbox's counters before an exec was requested.
pub struct Base {
    cpu_micros: u64,
    kills: u64,
    refusals: u64,
    processes_refused: u64,
}

impl Base {
    /// Reads the counters before an exec is requested. For the first exec, everything since the sandbox was created
    /// counts.
    pub fn begin(core: &Core, exec: u64) -> Self {
        let (cpu_micros, kills, refusals) = match &core.stats {
            Some(stats) if exec > 1 => (stats.cpu_micros().unwrap_or(0), stats.memory_kills(), stats.forks_refused()),
            _ => (0, core.group_base.0, core.group_base.1),
        };
        let processes_refused = core.processes_refused.load(Ordering::Acquire);
        Self { cpu_micros, kills, refusals, processes_refused }
    }

    /// Returns the CPU time of the sandbox since then in microseconds, if it is counted.
    fn cpu_used(&self, core: &Core) -> Option<u64> {
        Some(core.cpu_counted()?.saturating_sub(self.cpu_micros))
    }
}

/// Waits until a requested exec runs, and creates its handle.
pub async fn attach(
    core: &Arc<Core>,
    request: &ExecRequest,
    begun: Instant,
    (enrolled, base): (Enrolled, Base),
    running: Running,
    mut guard: Unstarted<'_>,
) -> Result<ExecHandle> {
    let Enrolled { exec, on_start, on_end } = enrolled;
    let terminal = match on_start.await {
        Ok(Ok(terminal)) => terminal,
        Ok(Err((reason, errno))) => {
            guard.exec = None;
            return Err(error::not_started(reason, errno, &running.program, &running.directory));
        }
        Err(_) => return Err(died(core, "start")),
    };
    guard.exec = None;
    let mut ends = running.ours;
    let io = |error| error::os("start", "cannot watch the terminal", error);
    let control_end = match terminal {
        Some(master) => {
            let copy = |fd: &OwnedFd| fd.try_clone().map_err(io);
            ends.stdout = Some(Stream::reader(copy(&master)?).map_err(io)?);
            let writer = Writer::terminal(copy(&master)?).map_err(io)?;
            match request.stdin() {
                Stdin::Stream => ends.stdin = Some(StdinWriter::new(writer)),
                Stdin::Bytes(data) => ends.input = Some((writer, data.clone())),
                Stdin::Empty => {}
            }
            Some(master)
        }
        None => None,
    };
    let (stops, on_stop) = mpsc::unbounded_channel();
    let control = Arc::new(Control { stops, terminal: control_end });
    let (handle, driver) = ExecHandle::new(ExecId(exec), request, ends.stdin.take(), control);
    let limits = ExecLimits {
        wall_time: request.timeout().unwrap_or(core.limits().wall_time),
        cpu: core.limits().cpu_time,
        counted: core.stats.is_some(),
        processors: cofferdam_linux::process::processors(),
    };
    let run = Run {
        core: Arc::clone(core),
        exec,
        supervision: Supervision::new(begun, Instant::now(), limits),
        base,
        script: matches!(request.command(), Command::Script(_)),
    };
    if let Some((mut writer, data)) = ends.input.take() {
        tokio::spawn(async move {
            // It is no error if a program does not read its input.
            let _ = writer.write_all(&data).await;
            let _ = writer.shutdown().await;
        });
    }
    tokio::spawn(run.drive(driver, ends.stdout, ends.stderr, on_end, on_stop));
    Ok(handle)
}

fn died(core: &Core, operation: &'static str) -> Error {
    if core.is_closed_by_owner() {
        return Error::closed(operation);
    }
    Error::new(ErrorKind::Closed, operation, "the sandbox ended by itself: its launcher or its init was killed")
        .with_fault(Fault::Host)
        .with_retry(Retry::MayHelp)
        .with_remedy("check the kernel's log for processes killed by lack of memory, then try again")
}

/// An exec that is ready to be requested.
pub struct Prepared {
    pub start: Start,
    /// The program's ends, which are sent with the request.
    pub theirs: Vec<OwnedFd>,
    pub ours: Ends,
    pub program: String,
    pub directory: String,
}

/// Returns the directory in which a program starts. Code starts in the workspace.
fn directory(surroundings: &Surroundings, request: &ExecRequest) -> String {
    match &surroundings.directory {
        Some(directory) if request.working_dir().is_workspace() && !matches!(request.command(), Command::Script(_)) => {
            directory.clone()
        }
        _ => request.working_dir().inside(),
    }
}

/// Prepares an exec. Scripts need the directory that contains them.
pub fn prepare(
    surroundings: &Surroundings,
    code: Option<&OwnedFd>,
    exec: u64,
    request: &ExecRequest,
) -> Result<Prepared> {
    let argv = match request.command() {
        Command::Argv(argv) => argv.clone(),
        Command::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()],
        Command::Script(script) => {
            let code = code.ok_or_else(|| Error::closed("start"))?;
            let path = files::put_script(code, exec, script)?;
            script.interpreter.iter().chain([&path]).chain(&script.args).cloned().collect()
        }
    };
    let base = [("PATH", surroundings.path.as_str())].into_iter().chain(BASE_ENV);
    let base = base.chain(surroundings.variables.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let terminal = request.terminal();
    let base = base.chain(terminal.map(|_| ("TERM", "xterm-256color")));
    let env = request.env().apply(base);
    let env = env.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let io = |error| error::os("start", "cannot create the program's descriptors", error);
    let mut ours = Ends { stdout: None, stderr: None, stdin: None, input: None };
    let mut theirs = Vec::with_capacity(3);
    if terminal.is_none() {
        theirs.push(stdin_end(request.stdin(), &mut ours).map_err(io)?);
        for slot in [&mut ours.stdout, &mut ours.stderr] {
            let (reader, writer) = stdio::pipe().map_err(io)?;
            *slot = Some(Stream::reader(reader).map_err(io)?);
            theirs.push(writer);
        }
    }
    let start = Start {
        exec,
        argv,
        env,
        directory: directory(surroundings, request),
        terminal: terminal.map(|size| (size.rows, size.columns)),
        if_expected: false,
        last: false,
    };
    let program = start.argv.first().cloned().unwrap_or_default();
    let directory = start.directory.clone();
    Ok(Prepared { start, theirs, ours, program, directory })
}

fn stdin_end(stdin: &Stdin, ours: &mut Ends) -> std::io::Result<OwnedFd> {
    let data = match stdin {
        Stdin::Empty => Bytes::new(),
        Stdin::Bytes(data) => data.clone(),
        Stdin::Stream => {
            let (reader, writer) = stdio::pipe()?;
            ours.stdin = Some(StdinWriter::new(Writer::pipe(writer)?));
            return Ok(reader);
        }
    };
    if let Some(reader) = stdio::prefilled(&data)? {
        return Ok(reader);
    }
    let (reader, writer) = stdio::pipe()?;
    ours.input = Some((Writer::pipe(writer)?, data));
    Ok(reader)
}

/// A running exec.
struct Run {
    core: Arc<Core>,
    exec: u64,
    supervision: Supervision,
    base: Base,
    script: bool,
}

impl Run {
    async fn drive(
        mut self,
        driver: ExecDriver,
        mut stdout: Option<Stream>,
        mut stderr: Option<Stream>,
        mut on_end: oneshot::Receiver<Ended>,
        mut on_stop: mpsc::UnboundedReceiver<StopRequest>,
    ) {
        let mut accepts_stops = true;
        let ended = loop {
            tokio::select! {
                ended = &mut on_end => break ended.ok(),
                read = next(&mut stdout) => publish(&driver, OutputStream::Stdout, read, &mut stdout),
                read = next(&mut stderr) => publish(&driver, OutputStream::Stderr, read, &mut stderr),
                stop = on_stop.recv(), if accepts_stops => match stop {
                    Some(stop) => if self.supervision.request_stop(stop, Instant::now()) {
                        self.signal(false).await;
                    },
                    None => accepts_stops = false,
                },
                () = sleep_until(self.supervision.next()) => self.tick().await,
            }
        };
        if self.supervision.kills_the_rest() {
            // Kill processes that outlived the main program.
            self.signal(true).await;
        }
        for (stream, slot) in [(OutputStream::Stdout, &mut stdout), (OutputStream::Stderr, &mut stderr)] {
            drain(&driver, stream, slot);
        }
        drop((stdout, stderr));
        if self.script {
            files::remove_script(self.core.code(), self.exec);
        }
        driver.finish(self.exit(ended));
    }

    /// Performs the supervision actions of this moment.
    async fn tick(&mut self) {
        let now = Instant::now();
        let actions = self.supervision.tick(now);
        if actions.end_sandbox {
            // The init did not kill the exec: end the sandbox instead.
            self.core.kill_all();
        }
        if actions.poll_cpu_time {
            self.supervision.polled(self.base.cpu_used(&self.core), now);
        }
        if self.supervision.kill_now(now) {
            self.signal(true).await;
        }
    }

    async fn signal(&self, kill: bool) {
        if self.core.request(&Request::Signal { exec: self.exec, kill }, &[]).await.is_err() && kill {
            self.core.kill_all();
        }
    }

    fn exit(&self, ended: Option<Ended>) -> Result<Exit> {
        let (watched_memory, watched_cpu) = self.core.passed();
        let stats = self.core.stats.as_ref();
        let usage = ExecUsage {
            cpu_micros: self.base.cpu_used(&self.core),
            peak_bytes: self.core.peak_memory(),
            memory_kills: stats.map_or(0, |stats| stats.memory_kills()) > self.base.kills,
            forks_refused: stats.map_or(0, |stats| stats.forks_refused()) > self.base.refusals
                || self.core.processes_refused.load(Ordering::Acquire) > self.base.processes_refused,
            disk_full: self.disk_full(),
            watched_memory,
            watched_cpu,
            closed_by_owner: self.core.is_closed_by_owner(),
        };
        if let Some(error) = self.supervision.uncounted(ended) {
            return Err(error);
        }
        self.supervision.exit(ended, &usage, Instant::now()).ok_or_else(|| died(&self.core, "exit"))
    }

    fn disk_full(&self) -> bool {
        self.core.limits().disk.is_some()
            && rustix::fs::fstatvfs(self.core.code()).is_ok_and(|stat| stat.f_bfree == 0 || stat.f_ffree == 0)
    }
}

async fn next(stream: &mut Option<Stream>) -> Read {
    match stream {
        Some(stream) => stream.read().await,
        None => std::future::pending().await,
    }
}

fn publish(driver: &ExecDriver, name: OutputStream, read: Read, stream: &mut Option<Stream>) {
    match read {
        Read::Data(data) => driver.publisher().publish(name, data),
        Read::End => *stream = None,
    }
}

/// Reads the output from before the end of the program. Output of other writers to the same pipe is not waited for.
fn drain(driver: &ExecDriver, name: OutputStream, stream: &mut Option<Stream>) {
    let mut taken = 0;
    while let Some(open) = stream.as_mut().filter(|_| taken < MAX_DRAINED) {
        match open.read_now() {
            Some(Read::Data(data)) => {
                taken += data.len();
                driver.publisher().publish(name, data);
            }
            Some(Read::End) | None => return,
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
