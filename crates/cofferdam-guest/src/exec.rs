//! The life of an exec, from its request to its exit.
//!
//! ```text
//! requested --Started--> running --Ended--> finished
//!                           |  timeout, CPU limit, cancel, kill: everything that the exec started is signalled
//!                           |  no Ended after a kill: the connection is closed, and everything ends with the agent
//! ```
//!
//! An exec of a former host begins as a running exec, with its limits.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::supervise::{Ended, ExecLimits, ExecUsage, StopRequest};
use cofferdam_contract::{
    ByteSize, Command, Error, ExecControl, ExecHandle, ExecId, ExecRequest, Exit, Limits, Result, Script, Stdin,
    StdinWriter, TerminalSize,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use crate::flow::Input;
use crate::inner::{ANSWER_TIMEOUT, Inner};
use crate::link::Link;
use crate::record::RunningExec;
use crate::running::{ExecState, RunningGuard};
use crate::slots::{ExecEnd, ExecSlot, Notifier, ReattachedSlot, Reply, Slot};
use crate::window::Window;
use crate::wire::{Counts, MAX_REQUEST, Make, NotStarted, Request, Root, Start, Texts};
use crate::{error, files};

/// The size of the output buffer of a reattached exec.
const REATTACHED_BUFFER: ByteSize = ByteSize::from_mebibytes(1);

struct Control {
    link: Arc<Link>,
    exec: u64,
    stop_requests: mpsc::UnboundedSender<StopRequest>,
    terminal: bool,
}

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        let _ = self.stop_requests.send(StopRequest::Cancel(grace));
    }

    fn kill(&self) {
        let _ = self.stop_requests.send(StopRequest::Kill);
    }

    fn resize(&self, size: TerminalSize) -> Result<()> {
        if !self.terminal {
            return Err(Error::unsupported("resize", "the exec has no terminal"));
        }
        self.link.check("resize")?;
        self.link.send(self.exec, &Request::Resize { rows: size.rows, columns: size.columns });
        Ok(())
    }
}

/// Starts an exec. Returns its handle once its program runs.
pub async fn start(inner: &Arc<Inner>, request: &ExecRequest, limits: &Limits) -> Result<ExecHandle> {
    let begun = Instant::now();
    let link = &inner.link;
    let metered = inner.metered().await;
    let base = metered.filter(|_| inner.is_metered_alike());
    let (started, on_start) = Notifier::new();
    let (ended, on_end) = Notifier::new();
    let (stop_requests, on_stop) = mpsc::unbounded_channel();
    let window = Window::new();
    let terminal = request.terminal();
    let mut handle = None;
    let exec = link.enroll("start", |exec| {
        let control = Control { link: Arc::clone(link), exec, stop_requests, terminal: terminal.is_some() };
        let stdin = matches!(request.stdin(), Stdin::Stream)
            .then(|| StdinWriter::new(Input::new(link, exec, Arc::clone(&window))));
        let (created, driver) = ExecHandle::new(ExecId(exec), request, stdin, Arc::new(control));
        let window = Arc::clone(&window);
        handle = Some(created);
        Slot::Exec(ExecSlot { driver, started, ended, window, terminal: terminal.is_some(), base })
    })?;
    let handle = handle.ok_or_else(|| Error::closed("start"))?;
    let mut unsent = Unsent { link, exec: Some(exec) };
    let exec_limits = ExecLimits {
        wall_time: request.timeout().unwrap_or(limits.wall_time),
        cpu: limits.cpu_time,
        counted: inner.counts_cpu(),
        processors: inner.processors(),
    };
    let script = matches!(request.command(), Command::Script(_));
    let state = inner.running.add(exec, ExecState::new(begun, exec_limits, script));
    let mut run = Run { inner: Arc::clone(inner), exec, begun, metered, around: None, state, limits: limits.clone() };
    // Its time begins now, whether or not the agent reads the request.
    let sent = tokio::select! {
        biased;
        sent = put_script_and_send_start(inner, exec, request) => Some(sent?),
        () = run.overdue() => None,
    };
    unsent.exec = None;
    let Some(arguments) = sent else {
        // Its program did not start.
        if let Some(Slot::Exec(slot)) = link.take(exec) {
            run.state.supervision().tick(Instant::now());
            slot.driver.finish(run.exit(None, None));
        }
        return Ok(handle);
    };
    // From here on the task ends the exec.
    let (ready, on_ready) = oneshot::channel();
    tokio::spawn(run.drive(on_start, on_end, on_stop, ready));
    if let Stdin::Bytes(data) = request.stdin() {
        feed(Input::new(link, exec, window), data.clone());
    }
    let directory = request.working_dir().inside();
    match link.wait("start", on_ready).await? {
        Ok(()) => Ok(handle),
        Err(Some(failure)) => {
            Err(error::not_started(failure, arguments.first().map_or("", String::as_str), &directory))
        }
        Err(None) => {
            let termination = link.closed().await;
            Err(error::ended("start", termination.as_ref()))
        }
    }
}

/// A guard that frees the slot of an exec whose request is not sent.
struct Unsent<'a> {
    link: &'a Link,
    exec: Option<u64>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Some(exec) = self.exec {
            self.link.withdraw(exec);
        }
    }
}

/// Writes all input of an exec in a task. Ignores errors, since a program need not read its input.
fn feed(mut input: Input, data: Bytes) {
    tokio::spawn(async move {
        let _ = input.write_all(&data).await;
        let _ = input.shutdown().await;
    });
}

fn arguments(command: &Command, script: Option<&str>) -> Vec<String> {
    match command {
        Command::Argv(argv) => argv.clone(),
        Command::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()],
        Command::Script(it) => {
            let path = script.map(str::to_owned);
            it.interpreter.iter().cloned().chain(path).chain(it.args.iter().cloned()).collect()
        }
    }
}

struct Encoded(Vec<u8>);

impl crate::wire::Sink for Encoded {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn encoded<'t>(texts: impl Iterator<Item = &'t str>) -> (usize, Vec<u8>) {
    let mut bytes = Encoded(Vec::new());
    let count = texts.map(|text| crate::wire::put_text(&mut bytes, text.as_bytes())).count();
    (count, bytes.0)
}

/// Writes the script, if there is one, and requests the exec. Returns its arguments.
async fn put_script_and_send_start(inner: &Arc<Inner>, exec: u64, request: &ExecRequest) -> Result<Vec<String>> {
    let script = match request.command() {
        Command::Script(script) => Some(put_script(inner, exec, script).await?),
        Command::Argv(_) | Command::Shell(_) => None,
    };
    let arguments = arguments(request.command(), script.as_deref());
    send_start(inner, exec, request, &arguments).await?;
    Ok(arguments)
}

async fn send_start(inner: &Inner, exec: u64, request: &ExecRequest, arguments: &[String]) -> Result<()> {
    let terminal = request.terminal();
    let base = [("PATH", inner.path.as_str())].into_iter();
    let base = base.chain(inner.env.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let base = base.chain(terminal.map(|_| ("TERM", "xterm-256color")));
    let env = request.env().apply(base);
    let (argc, argv) = encoded(arguments.iter().map(String::as_str));
    let (envc, env) = encoded(env.iter().flat_map(|(key, value)| [*key, *value]));
    let directory = inner.inside(request.working_dir());
    let start = Start {
        exec,
        argv: Texts::new(argc, &argv),
        env: Texts::new(envc, &env),
        directory: directory.as_bytes(),
        terminal: terminal.map(|size| (size.rows, size.columns)),
        input: !matches!(request.stdin(), Stdin::Empty),
    };
    if argv.len() + env.len() > MAX_REQUEST - (64 << 10) {
        return Err(Error::invalid("start", "arguments and environment are too long in total"));
    }
    inner.link.send_long("start", exec, &Request::Start(start)).await
}

/// Writes a script into a directory of its own. Returns its path inside.
async fn put_script(inner: &Arc<Inner>, exec: u64, script: &Script) -> Result<String> {
    let directory = exec.to_string();
    let path = format!("{directory}/{}", script.name);
    let make = Make::Directory { mode: 0o755 };
    files::simple(inner, "start", &directory, &Request::Make { root: Root::Code, path: directory.as_bytes(), make })
        .await?;
    put_file(inner, &path, script.contents.clone()).await?;
    let adjust = Request::Adjust { root: Root::Code, path: directory.as_bytes(), mode: Some(0o555), modified: None };
    files::simple(inner, "start", &directory, &adjust).await?;
    Ok(format!("{}/{path}", inner.code))
}

/// Writes a file to the directory of scripts. Returns when it is complete.
pub async fn put_file(inner: &Arc<Inner>, path: &str, contents: Bytes) -> Result<()> {
    let contents = Box::new(std::io::Cursor::new(contents));
    let target = files::Target { root: Root::Code, path: path.as_bytes(), strict: true, mode: 0o444, modified: None };
    files::write(inner, "start", &target, contents).await.map(drop)
}

async fn remove_script(inner: &Arc<Inner>, exec: u64) {
    // The removal of the sandbox removes the rest.
    let _ = tokio::time::timeout(ANSWER_TIMEOUT, try_remove_script(inner, exec)).await;
}

async fn try_remove_script(inner: &Arc<Inner>, exec: u64) {
    let directory = exec.to_string();
    let path = directory.as_bytes();
    let adjust = Request::Adjust { root: Root::Code, path, mode: Some(0o755), modified: None };
    for request in [adjust, Request::Remove { root: Root::Code, path }] {
        inner.link.wait_until_running().await;
        let _ = files::simple(inner, "start", &directory, &request).await;
    }
}

/// The control of an exec that a former host started.
struct ReattachedControl(mpsc::UnboundedSender<StopRequest>);

impl ExecControl for ReattachedControl {
    fn cancel(&self, grace: Duration) {
        let _ = self.0.send(StopRequest::Cancel(grace));
    }

    fn kill(&self) {
        let _ = self.0.send(StopRequest::Kill);
    }

    fn resize(&self, _: TerminalSize) -> Result<()> {
        Err(Error::unsupported("resize", "the exec was started by another host"))
    }
}

/// The handle and the receivers of an exec that a former host started.
pub struct Reattached {
    pub handle: ExecHandle,
    on_stop: mpsc::UnboundedReceiver<StopRequest>,
    on_end: oneshot::Receiver<ExecEnd>,
}

/// Creates the slot of an exec that a former host started, and its handle. The first reader gets the newest
/// [`REATTACHED_BUFFER`] of its output.
pub fn reattach(exec: &RunningExec) -> Result<(Slot, Reattached)> {
    let request = ExecRequest::builder(Command::Argv(vec!["reattached".to_owned()]))
        .max_output(ByteSize::from_bytes(u64::MAX))
        .output_buffer(REATTACHED_BUFFER)
        .build()?;
    let (stop_requests, on_stop) = mpsc::unbounded_channel();
    let (ended, on_end) = Notifier::new();
    let (handle, driver) = ExecHandle::new(ExecId(exec.id), &request, None, Arc::new(ReattachedControl(stop_requests)));
    Ok((Slot::Reattached(ReattachedSlot { driver, ended }), Reattached { handle, on_stop, on_end }))
}

/// Enforces the limits of an exec that a former host started: its own, and these. `first` is the count of CPU time
/// before it resumed. Returns its handle.
pub fn enforce_limits(
    inner: &Arc<Inner>,
    exec: &RunningExec,
    limits: &Limits,
    first: Option<u64>,
    reattached: Reattached,
) -> ExecHandle {
    let state = ExecState::reattach(exec, limits, first, inner.counts_cpu(), inner.processors());
    let state = inner.running.add(exec.id, state);
    let run = Run {
        inner: Arc::clone(inner),
        exec: exec.id,
        begun: Instant::now(),
        // All CPU time of a copy belongs to its execs.
        metered: Some(0),
        around: None,
        state,
        limits: limits.clone(),
    };
    let Reattached { handle, on_stop, on_end } = reattached;
    tokio::spawn(run.drive_to_end(on_end, on_stop));
    handle
}

/// The task of one exec.
struct Run {
    inner: Arc<Inner>,
    exec: u64,
    begun: Instant,
    /// The host's own count before the request.
    metered: Option<u64>,
    /// The host's count of the enclosure and its VMM between the request and the end.
    around: Option<u64>,
    state: RunningGuard,
    limits: Limits,
}

type UsagePoll = Pin<Box<dyn Future<Output = Option<u64>> + Send>>;
type StartResult = std::result::Result<(), Option<NotStarted>>;

impl Run {
    async fn drive(
        mut self,
        on_start: oneshot::Receiver<std::result::Result<Counts, NotStarted>>,
        on_end: oneshot::Receiver<ExecEnd>,
        on_stop: mpsc::UnboundedReceiver<StopRequest>,
        ready: oneshot::Sender<StartResult>,
    ) {
        let started = tokio::select! {
            biased;
            started = on_start => Some(started),
            () = self.overdue() => None,
        };
        match started {
            Some(Ok(Ok(counts))) => {
                self.state.begin(counts);
                let _ = ready.send(Ok(()));
            }
            // Its time is over, and the agent does not report its start. Ends it as a running exec.
            None => {
                let _ = ready.send(Ok(()));
            }
            Some(not_started) => {
                if self.state.script {
                    remove_script(&self.inner, self.exec).await;
                }
                let _ = ready.send(Err(not_started.ok().and_then(std::result::Result::err)));
                return;
            }
        }
        self.drive_to_end(on_end, on_stop).await;
    }

    /// Enforces the limits until the exec has ended, and reports its exit.
    async fn drive_to_end(mut self, on_end: oneshot::Receiver<ExecEnd>, on_stop: mpsc::UnboundedReceiver<StopRequest>) {
        let end = self.until_end(on_end, on_stop).await;
        self.clean_up().await;
        if let Some(ExecEnd { ended, driver }) = end {
            let used = self.settle(ended).await;
            driver.finish(self.exit(ended, used));
        }
    }

    /// Waits until the limit of wall time.
    async fn overdue(&mut self) {
        let mut pauses = self.inner.link.pauses();
        loop {
            let paused = pauses.borrow_and_update().since();
            if let Some(since) = paused {
                // Time does not count until the guest resumes.
                let _ = pauses.wait_for(|pause| pause.since().is_none()).await;
                self.state.supervision().postpone(since.elapsed());
                continue;
            }
            let left = self.state.supervision().left(Instant::now());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                _ = pauses.changed() => {}
            }
        }
    }

    /// Enforces the limits until the exec has ended.
    async fn until_end<E>(
        &mut self,
        mut on_end: oneshot::Receiver<E>,
        mut on_stop: mpsc::UnboundedReceiver<StopRequest>,
    ) -> Option<E> {
        let mut accepts_stops = true;
        let mut poll: Option<UsagePoll> = None;
        let mut pauses = self.inner.link.pauses();
        loop {
            let paused = pauses.borrow_and_update().since();
            if let Some(since) = paused {
                // Stop requests wait until the guest resumes, and time does not count.
                tokio::select! {
                    end = &mut on_end => return end.ok(),
                    _ = pauses.wait_for(|pause| pause.since().is_none()) => {
                        self.state.supervision().postpone(since.elapsed());
                    }
                }
                continue;
            }
            let next = self.state.supervision().next();
            tokio::select! {
                end = &mut on_end => return end.ok(),
                stop = on_stop.recv(), if accepts_stops => match stop {
                    Some(stop) => {
                        let terminate = self.state.supervision().request_stop(stop, Instant::now());
                        if terminate {
                            self.signal(false);
                        }
                    }
                    None => accepts_stops = false,
                },
                used = poll_usage(&mut poll) => {
                    poll = None;
                    self.state.supervision().polled(used, Instant::now());
                }
                _ = pauses.changed() => {}
                () = sleep_until(next) => self.tick(&mut poll),
            }
        }
    }

    /// Kills the processes that outlived the program, if the exec was stopped, and removes the script.
    async fn clean_up(&mut self) {
        if self.state.supervision().kills_the_rest() {
            self.signal(true);
        }
        if self.state.script {
            remove_script(&self.inner, self.exec).await;
        }
    }

    /// Carries out the actions of the supervision that are due.
    fn tick(&mut self, poll: &mut Option<UsagePoll>) {
        let now = Instant::now();
        let action = self.state.supervision().tick(now);
        if action.end_sandbox {
            // The agent did not kill the exec. Ends the sandbox instead.
            self.inner.link.close();
        }
        if action.poll_cpu_time {
            let inner = Arc::clone(&self.inner);
            let base = self.state.base().cpu_micros.or(self.metered).unwrap_or(0);
            let metered = self.metered;
            *poll = Some(Box::pin(async move {
                let used = count(&inner).await.map(|counted| counted.saturating_sub(base));
                let around = inner.metered_around(metered).await;
                inner.effective_cpu(used, around)
            }));
        }
        let kill = self.state.supervision().kill_now(Instant::now());
        if kill {
            self.signal(true);
        }
    }

    fn signal(&self, kill: bool) {
        self.inner.link.send(self.exec, &Request::Signal { kill });
    }

    /// Updates the counts after the end. Returns the CPU time of the sandbox since the exec began, if a counter exists.
    async fn settle(&mut self, ended: Option<(Ended, Counts)>) -> Option<u64> {
        let counted = match self.inner.metered_alike().await {
            Some(counted) => Some(counted),
            None => ended.and_then(|(_, counts)| counts.cpu_micros),
        };
        self.around = self.inner.metered_around(self.metered).await;
        let base = self.state.base().cpu_micros;
        counted.zip(base).map(|(now, before)| now.saturating_sub(before))
    }

    fn exit(&self, end: Option<(Ended, Counts)>, used: Option<u64>) -> Result<Exit> {
        let link = &self.inner.link;
        let (watched_memory, watched_cpu) = link.passed();
        // Bounds the agent's counts: an exec cannot use more than all processors for the whole time, or more memory
        // than the limit.
        let max_cpu = self.begun.elapsed().saturating_mul(self.inner.processors());
        let max_cpu = u64::try_from(max_cpu.as_micros()).unwrap_or(u64::MAX);
        let max_cpu = self.around.map_or(max_cpu, |around| around.min(max_cpu));
        let used = used.map(|used| used.min(max_cpu));
        let memory = self.limits.memory.map_or(u64::MAX, |size| size.as_bytes());
        let base = self.state.base();
        let counts = end.map_or(base, |(_, counts)| counts);
        // The counts at the start of a reattached exec are unknown.
        let more = |now: Option<u64>, before: Option<u64>| now.zip(before).is_some_and(|(now, before)| now > before);
        let accounts = ExecUsage {
            cpu_micros: used,
            peak_bytes: counts.peak.map(|peak| peak.min(memory)),
            memory_kills: more(counts.kills, base.kills) || link.is_out_of_memory(),
            forks_refused: more(counts.refused, base.refused),
            disk_full: self.limits.disk.is_some() && counts.full.is_some_and(|full| full > 0),
            watched_memory,
            watched_cpu,
            closed_by_owner: link.is_closed_by_owner(),
        };
        let ended = end.map(|(ended, _)| Ended {
            cpu_micros: ended.cpu_micros.min(used.unwrap_or(max_cpu)),
            peak_bytes: ended.peak_bytes.min(memory),
            ..ended
        });
        if let Some(error) = self.state.supervision().uncounted(ended) {
            return Err(error);
        }
        let exit = self.state.supervision().exit(ended, &accounts, Instant::now());
        exit.ok_or_else(|| link.error("exit"))
    }
}

/// Returns the CPU microseconds of the sandbox: the host's own count if there is one, else the agent's.
async fn count(inner: &Inner) -> Option<u64> {
    if let Some(counted) = inner.metered_alike().await {
        return Some(counted);
    }
    match inner.answer(&Request::Count).await {
        Some(Reply::Counted(counts)) => counts.cpu_micros,
        _ => None,
    }
}

async fn poll_usage(poll: &mut Option<UsagePoll>) -> Option<u64> {
    match poll {
        Some(poll) => poll.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
