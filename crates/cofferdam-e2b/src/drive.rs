//! The events of a running exec until its exit.
//!
//! ```text
//! following --cut, or the sandbox resumed--> reconnecting --Connect--> following
//!     |--end----------------------------------------------> ended
//!     '--sandbox closed or gone, or no connection for RECONNECT_TIMEOUT--> ended
//! ```
//!
//! E2B's agent keeps a program running whose connection is cut, and discards what it prints until the next connection.
//! The lost amount is unknown, so the exit is marked as truncated. An exit is kept by the agent for 30 s; later
//! it is unknown, which is an error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::supervise::{Ended, ExecLimits, ExecUsage, StopRequest, Supervision};
use cofferdam_contract::{Error, ErrorKind, ExecDriver, Exit, Result};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::client::{Events, USER};
use crate::core::{Core, Phase};
use crate::error::{Failure, gone};
use crate::exec::{Requests, ScriptFile, parts, pty};
use crate::wire::{End, OfProcess, ProcessMessage, Selector};

/// Time to reach the agent again after a cut.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The first and the longest pause between two attempts.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;

type Stream = Events<ProcessMessage>;

/// An exec that is followed.
pub(crate) struct Drive {
    core: Arc<Core>,
    pid: u32,
    exec_tag: String,
    script_file: Option<ScriptFile>,
    requested: watch::Receiver<Requests>,
    sent: Requests,
    attached: watch::Sender<Option<u64>>,
    supervision: Supervision,
    phases: watch::Receiver<Phase>,
    /// The number of the sandbox's time of running that the stream belongs to.
    epoch: u64,
    /// Scripts that end processes.
    ending: JoinSet<Result<()>>,
    /// The begin of the attempts to reconnect, and the next pause.
    lost: Option<(Instant, Duration)>,
    has_gap: bool,
}

/// A step of following.
enum Step {
    Event(std::result::Result<Option<ProcessMessage>, Failure>),
    Poll,
}

impl Drive {
    pub fn new(
        core: Arc<Core>,
        pid: u32,
        exec_tag: String,
        script_file: Option<ScriptFile>,
        requested: watch::Receiver<Requests>,
        attached: watch::Sender<Option<u64>>,
        (started_at, wall_time): (Instant, Duration),
    ) -> Self {
        let limits = ExecLimits { wall_time, cpu: None, counted: false, processors: 1 };
        let supervision = Supervision::new(started_at, Instant::now(), limits);
        let phases = core.phases();
        let epoch = match *phases.borrow() {
            Phase::Running(epoch) | Phase::Paused(epoch) => epoch,
            Phase::Closed | Phase::Gone => 0,
        };
        attached.send_replace(Some(epoch));
        Self {
            core,
            pid,
            exec_tag,
            script_file,
            requested,
            sent: Requests::default(),
            attached,
            supervision,
            phases,
            epoch,
            ending: JoinSet::new(),
            lost: None,
            has_gap: false,
        }
    }

    /// Publishes the output until the exit.
    pub async fn run(mut self, stream: Stream, driver: ExecDriver, input: Option<JoinHandle<()>>) {
        let outcome = self.follow(Some(stream), &driver).await;
        if let Some(input) = input {
            input.abort();
        }
        drop(self.script_file.take());
        driver.finish(outcome);
    }

    async fn follow(&mut self, mut stream: Option<Stream>, driver: &ExecDriver) -> Result<Exit> {
        loop {
            let phase = *self.phases.borrow_and_update();
            match phase {
                Phase::Closed => return self.closed(),
                Phase::Gone => return Err(gone("run")),
                Phase::Paused(_) => {
                    let since = Instant::now();
                    let step = self.wait(&mut stream, None).await;
                    self.supervision.postpone(since.elapsed());
                    if let Some(end) = self.take(step, &mut stream, driver)? {
                        return self.ended(&end).await;
                    }
                    continue;
                }
                Phase::Running(epoch) if epoch != self.epoch => {
                    // The connections of a VM do not survive its pause.
                    (self.epoch, stream) = (epoch, None);
                }
                Phase::Running(_) => {}
            }
            self.act();
            if stream.is_none() {
                stream = self.reconnect(driver).await?;
                continue;
            }
            let next = self.supervision.next();
            let step = self.wait(&mut stream, next).await;
            if let Some(end) = self.take(step, &mut stream, driver)? {
                return self.ended(&end).await;
            }
        }
    }

    /// Waits for an event, a change of the sandbox, a request, or a time.
    async fn wait(&mut self, stream: &mut Option<Stream>, until: Option<Instant>) -> Step {
        let event = async {
            match stream {
                Some(stream) => stream.next().await,
                None => std::future::pending().await,
            }
        };
        let time = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        // While the sandbox is paused, requests wait.
        let requested = async {
            if until.is_none() || self.requested.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            event = event => Step::Event(event),
            _ = self.phases.changed() => Step::Poll,
            () = requested => Step::Poll,
            () = time => Step::Poll,
        }
    }

    /// Publishes the output of an event. Returns the end, if it is one.
    fn take(&mut self, step: Step, stream: &mut Option<Stream>, driver: &ExecDriver) -> Result<Option<End>> {
        let message = match step {
            Step::Poll => return Ok(None),
            Step::Event(Ok(Some(message))) => message,
            Step::Event(Ok(None)) => {
                *stream = None;
                return Ok(None);
            }
            Step::Event(Err(failure)) => {
                *stream = None;
                return self.failed(failure).map(|()| None);
            }
        };
        let event = message.event;
        if event.start.is_some() {
            self.lost = None;
            self.attached.send_replace(Some(self.epoch));
        }
        for (stream, data) in event.data.map(parts).into_iter().flatten() {
            driver.publisher().publish(stream, data);
        }
        Ok(event.end)
    }

    /// Connects to the events from now on. Returns `None` if the state changed before.
    async fn reconnect(&mut self, driver: &ExecDriver) -> Result<Option<Stream>> {
        self.attached.send_replace(None);
        let (since, pause) = *self.lost.get_or_insert((Instant::now(), Duration::ZERO));
        if since.elapsed() >= RECONNECT_TIMEOUT {
            let failure = Failure::Cut(format!(
                "the events of the program were out of reach for {} s",
                RECONNECT_TIMEOUT.as_secs()
            ));
            let error = failure.into_error("run");
            return Err(self.given_up(error));
        }
        self.lost = Some((since, (pause * 2).clamp(MIN_PAUSE, MAX_PAUSE)));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = self.phases.changed() => {
                self.phases.mark_changed();
                return Ok(None);
            }
        }
        if !self.has_gap {
            // The output meanwhile is lost, and its length is not known: the exit is marked as truncated.
            self.has_gap = true;
            driver.publisher().count_dropped(1);
        }
        let selected = OfProcess { process: Selector { pid: self.pid }, input: None, pty: None };
        let agent = self.core.agent();
        match agent.stream("Connect", USER, &selected).await {
            Ok(stream) => Ok(Some(stream)),
            Err(failure) => self.failed(failure).map(|()| None),
        }
    }

    /// Returns the error of a failure, unless the events can be followed again, or the sandbox's state explains it.
    fn failed(&mut self, failure: Failure) -> Result<()> {
        match self.core.phase() {
            Phase::Running(epoch) if epoch == self.epoch => {}
            _ => return Ok(()),
        }
        if failure.is_missing() {
            return Err(unknown_exit());
        }
        if failure.is_passing() {
            return Ok(());
        }
        let error = self.core.failed("run", failure);
        match self.core.phase() {
            Phase::Running(_) => Err(self.given_up(error)),
            Phase::Paused(_) | Phase::Closed | Phase::Gone => Ok(()),
        }
    }

    /// Carries out requests and due actions.
    fn act(&mut self) {
        let now = Instant::now();
        let requests = *self.requested.borrow_and_update();
        if let (Some(grace), None) = (requests.cancel, self.sent.cancel)
            && self.supervision.request_stop(StopRequest::Cancel(grace), now)
        {
            self.end_processes(Some(grace));
        }
        if requests.kill && !self.sent.kill {
            self.supervision.request_stop(StopRequest::Kill, now);
        }
        if let Some(size) = requests.size.filter(|_| requests.size != self.sent.size) {
            let (agent, process) = (self.core.agent(), Selector { pid: self.pid });
            tokio::spawn(async move {
                // A size that does not arrive is corrected by the next one.
                let _ = agent.call("Update", &OfProcess { process, input: None, pty: Some(pty(size)) }).await;
            });
        }
        self.sent = requests;
        let actions = self.supervision.tick(now);
        if actions.end_sandbox {
            self.core.abandon();
        }
        if self.supervision.kill_now(now) {
            self.end_processes(None);
        }
    }

    fn end_processes(&mut self, grace: Option<Duration>) {
        let (core, exec_tag) = (Arc::clone(&self.core), self.exec_tag.clone());
        self.ending.spawn(async move { core.end(&exec_tag, grace).await });
    }

    /// Returns the exit of a program that ended, after all processes that must end with it have.
    async fn ended(&mut self, end: &End) -> Result<Exit> {
        let now = Instant::now();
        let mut failed = false;
        while let Some(ended) = self.ending.join_next().await {
            failed |= !matches!(ended, Ok(Ok(())));
        }
        if failed
            && self.core.end(&self.exec_tag, None).await.is_err()
            && matches!(self.core.phase(), Phase::Running(_))
        {
            // Processes that cannot be ended alone end with their sandbox.
            self.core.abandon();
        }
        let status = match end.outcome() {
            Ok(code) => (code & 0xff) << 8,
            Err(signal) => signal,
        };
        let ended = Ended { status, peak_bytes: 0, cpu_micros: 0 };
        self.exit(Some(ended), &ExecUsage::default(), now)
    }

    /// Returns the exit of a program whose sandbox was closed.
    fn closed(&self) -> Result<Exit> {
        let usage = ExecUsage { closed_by_owner: true, ..ExecUsage::default() };
        let ended =
            self.supervision.kills_the_rest().then_some(Ended { status: SIGKILL, peak_bytes: 0, cpu_micros: 0 });
        self.exit(ended, &usage, Instant::now())
    }

    fn exit(&self, ended: Option<Ended>, usage: &ExecUsage, now: Instant) -> Result<Exit> {
        let exit = self.supervision.exit(ended, usage, now);
        let mut exit = exit.ok_or_else(|| Error::new(ErrorKind::Internal, "run", "nothing explains the exit"))?;
        // E2B measures no exec, and no limit of an exec is enforced: the guess from a signal would be wrong.
        (exit.usage.peak_memory_bytes, exit.killed_by) = (None, None);
        exit.limits_hit.clear();
        Ok(exit)
    }

    /// Ends the processes of an exec that nothing follows any more.
    fn given_up(&mut self, error: Error) -> Error {
        let (core, exec_tag) = (Arc::clone(&self.core), self.exec_tag.clone());
        tokio::spawn(async move { core.end(&exec_tag, None).await });
        error
    }
}

fn unknown_exit() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "run",
        "the program ended while its connection was cut: its exit is unknown, and output may be missing",
    )
    .with_remedy("let the program write its result to a file, and read that")
}
