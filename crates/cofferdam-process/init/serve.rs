//! The main loop of process 1: takes requests, reaps, reports, kills.
//!
//! ```text
//! isolated --start a requested program--> Ready --requests, ends of children--> owner gone --> everything ends
//! ```

use super::handover::Handoff;
use super::launch::{self, Desk};
use super::notify::{Backlog, Quotas};
use super::sys::{self, Fd, Fds, Mapping, PollFd, Ready, Res};
use super::tree;
use super::watch::{Passed, Since, Watch};
use super::wire::{self, Event, NotStarted, Request, Start, Step};

/// Time for the owner to read an event.
const SEND_TIMEOUT_MICROS: u64 = 10_000_000;
/// The maximum of programs of execs that run at the same time.
const MAX_RUNNING: usize = 4096;
/// Requests up to this length need no additional memory.
const USUAL_MESSAGE: usize = 4096;

/// The kernel ignores negative descriptors.
const NOTHING: (i32, Ready) = (-1, Ready::Read);

/// Memory that is allocated from the start.
pub struct Buffers {
    /// The last request.
    pub message: [u8; USUAL_MESSAGE],
    pub desk: Desk,
    pub running: Running,
}

impl Buffers {
    /// Unused buffers.
    pub const NEW: Self = Self {
        message: [0; USUAL_MESSAGE],
        desk: Desk::NEW,
        running: Running { list: [(0, 0, Since::NOTHING); MAX_RUNNING], count: 0 },
    };
}

/// The main process of each exec that runs.
pub struct Running {
    list: [(i32, u64, Since); MAX_RUNNING],
    count: usize,
}

impl Running {
    fn is_full(&self) -> bool {
        self.count >= MAX_RUNNING
    }

    /// Returns the usage at the start of each exec that runs.
    fn since(&self) -> impl Iterator<Item = Since> {
        self.list.iter().take(self.count).map(|(_, _, since)| *since)
    }

    fn add(&mut self, pid: i32, exec: u64, since: Since) {
        if let Some(slot) = self.list.get_mut(self.count) {
            *slot = (pid, exec, since);
            self.count += 1;
        }
    }

    fn remove(&mut self, pid: i32) -> Option<(u64, Since)> {
        let used = self.list.get_mut(..self.count)?;
        let at = used.iter().position(|(known, _, _)| *known == pid)?;
        let (_, exec, since) = *used.get(at)?;
        used.swap(at, used.len() - 1);
        self.count -= 1;
        Some((exec, since))
    }
}

/// Process 1.
pub struct Init {
    control: i32,
    children: Fd,
    quotas: Quotas,
    watch: Option<Watch>,
    tag: (u64, u64),
    /// The maximum of open descriptors of each program.
    open_files: u64,
    /// True if the measurements are those that the host expects.
    matches_expected: bool,
    execs_started: u64,
    /// The number of the first exec.
    first: u64,
    /// The exec after which the sandbox ends.
    last: Option<u64>,
}

impl Init {
    /// Creates the init from its handoff.
    pub fn new(handoff: &Handoff) -> Res<Self> {
        Ok(Self {
            control: handoff.control,
            children: sys::child_signal()?,
            quotas: Quotas::new(
                Fd::own(handoff.listener),
                Some(Fd::own(handoff.locks)),
                if handoff.backlog_unbounded { Backlog::Shorten(sys::joined_key(handoff.tag)) } else { Backlog::Bounded },
                handoff.max_processes,
            ),
            watch: Watch::new(
                handoff.watch_memory,
                handoff.watch_cpu,
                handoff.counts_files,
                handoff.tag.0 ^ handoff.tag.1,
            ),
            tag: handoff.tag,
            open_files: handoff.open_files,
            matches_expected: handoff.matches_expected,
            execs_started: 0,
            first: 0,
            last: None,
        })
    }

    /// Starts the program that was requested together with the sandbox, if the measurements are as expected. Leaves
    /// other requests to [`Self::serve`].
    pub fn start_requested(&mut self, buffers: &mut Buffers) -> Option<Result<(), NotStarted>> {
        if !self.matches_expected {
            return None;
        }
        let Buffers { message, desk, running } = buffers;
        // There is no request yet, or none that can be answered here. The owner sends no such request.
        receive(self.control, message, |request, fds| match request {
            Request::Start(start) if start.terminal.is_none() => {
                Some(self.try_start(&start, fds, desk, running).map(drop))
            }
            _ => None,
        })
        .ok()
        .flatten()
        .flatten()
    }

    /// Reports to the owner that the sandbox is ready. Closes all descriptors that are not needed any more.
    pub fn report_ready(&self, handoff: &Handoff, evidence: &[u8], first: Option<Result<(), NotStarted>>) -> Res<()> {
        let (head, tail) = wire::ready(first);
        let fds = handoff.fds.get(..handoff.fd_count).ok_or(sys::EBADF)?;
        self.send([head, evidence, tail.bytes()], fds)?;
        let [listener, locks] = self.quotas.numbers();
        let keep = [self.control, self.children.number(), listener, locks];
        let mut from = 3;
        while let Some(&fd) = keep.iter().filter(|&&fd| fd >= from).min() {
            sys::close_range(from, fd - 1);
            from = fd + 1;
        }
        sys::close_range(from, i32::MAX);
        Ok(())
    }

    /// Serves until the owner ends. Returns the exit code.
    pub fn serve(&mut self, buffers: &mut Buffers) -> i32 {
        loop {
            match self.turn(buffers) {
                Ok(true) => {}
                Ok(false) => return 0,
                Err(_) => return 76,
            }
        }
    }

    fn turn(&mut self, buffers: &mut Buffers) -> Res<bool> {
        // Poll only while a program runs: an idle sandbox sleeps.
        let due = self.watch.as_ref().filter(|_| sys::has_children()).map(Watch::left);
        let [notified, _] = self.quotas.numbers();
        let mut polled = [self.control, self.children.number(), notified].map(|fd| PollFd::new(fd, Ready::Read));
        sys::poll(&mut polled, due)?;
        let [requests, ended, notified] = polled.map(|fd| fd.is_ready());
        // Answer one call per turn, so that requests and ends are not delayed.
        if notified {
            self.quotas.answer_one()?;
        }
        if ended && !self.collect(&mut buffers.running)? {
            return Ok(false);
        }
        if requests {
            let Buffers { message, desk, running } = buffers;
            match receive(self.control, message, |request, fds| self.handle(request, fds, desk, running)) {
                Ok(Some(handled)) => handled?,
                Ok(None) => return Ok(false),
                Err(sys::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        if let Some(passed) = self.watch.as_mut().and_then(|watch| watch.poll(buffers.running.since())) {
            sys::kill(-1, sys::SIGKILL);
            // The processes are killed even if the owner cannot be informed.
            let _ = self.report(&Event::LimitPassed { memory: matches!(passed, Passed::Memory) }, &[]);
        }
        Ok(true)
    }

    fn report(&self, event: &Event, fds: &[i32]) -> Res<()> {
        self.send([event.encode().bytes(), &[], &[]], fds)
    }

    fn send(&self, parts: [&[u8]; 3], fds: &[i32]) -> Res<()> {
        loop {
            match sys::send(self.control, parts, fds) {
                Err(sys::EAGAIN) => {
                    let [writable, _] = sys::wait([(self.control, Ready::Write), NOTHING], Some(SEND_TIMEOUT_MICROS))?;
                    if !writable {
                        return Err(sys::EAGAIN);
                    }
                }
                other => return other,
            }
        }
    }

    fn handle(&mut self, request: Request<'_>, fds: Fds, desk: &mut Desk, running: &mut Running) -> Res<()> {
        match request {
            Request::Start(start) => self.start(&start, fds, desk, running),
            Request::Signal { exec, kill } => {
                self.signal_exec(exec, if kill { sys::SIGKILL } else { sys::SIGTERM });
                Ok(())
            }
        }
    }

    fn start(&mut self, start: &Start<'_>, fds: Fds, desk: &mut Desk, running: &mut Running) -> Res<()> {
        let exec = start.exec;
        if start.if_expected && !self.matches_expected {
            let failure = NotStarted { step: Step::Unexpected, errno: 0 };
            return self.report(&Event::NotStarted { exec, failure }, &[]);
        }
        match self.try_start(start, fds, desk, running) {
            Ok(Some(master)) => self.report(&Event::Started { exec }, &[master.number()]),
            Ok(None) => self.report(&Event::Started { exec }, &[]),
            Err(failure) => self.report(&Event::NotStarted { exec, failure }, &[]),
        }
    }

    /// Starts a program. Returns its terminal's controlling end if it has one.
    fn try_start(
        &mut self,
        start: &Start<'_>,
        fds: Fds,
        desk: &mut Desk,
        running: &mut Running,
    ) -> Result<Option<Fd>, NotStarted> {
        if running.is_full() || !self.quotas.allows_process() {
            return Err(NotStarted { step: Step::Fork, errno: sys::EAGAIN });
        }
        self.execs_started += 1;
        if self.execs_started == 1 {
            self.first = start.exec;
        }
        let beside = running.count > 0;
        let since = self.watch.as_mut().map_or(Since::NOTHING, |watch| watch.begin(beside));
        let prepare = |errno| NotStarted { step: Step::Prepare, errno };
        let confine = || sys::set_open_files(self.open_files);
        let (pid, master) = match start.terminal {
            None => (desk.launch(start, fds.three().map_err(prepare)?, Some(self.tag), &confine)?, None),
            Some(size) => {
                let (master, slave) = launch::make_terminal(size).map_err(prepare)?;
                (desk.launch(start, [slave.number(); 3], Some(self.tag), &confine)?, Some(master))
            }
        };
        running.add(pid, start.exec, since);
        self.last = self.last.or(start.last.then_some(start.exec));
        Ok(master)
    }

    /// Reaps ended children. Returns false after the end of the exec with which the sandbox ends.
    fn collect(&self, running: &mut Running) -> Res<bool> {
        let mut signals = [0; 512];
        while sys::read(self.children.number(), &mut signals).is_ok() {}
        while let Some(reaped) = sys::reap() {
            let Some((exec, since)) = running.remove(reaped.pid) else { continue };
            let cpu_micros = match &self.watch {
                Some(watch) => watch.used(reaped.cpu_micros, since),
                None => reaped.cpu_micros,
            };
            let (status, peak_bytes) = (reaped.status, reaped.peak_bytes);
            let processes_refused = self.quotas.processes_refused().unwrap_or(0);
            self.report(&Event::Ended { exec, status, peak_bytes, cpu_micros, processes_refused }, &[])?;
            // If a program was killed, the cause is in the control group, which must stay for the owner.
            let exited = status & 0x7f == 0;
            if exited && self.last == Some(exec) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Signals all processes of an exec. The tag in a resource limit identifies them everywhere: children inherit it,
    /// and the seccomp filter prevents changes of it.
    fn signal_exec(&self, exec: u64, signal: i32) {
        let alone = self.execs_started == 1 && self.first == exec;
        tree::signal(signal, alone, &|pid| sys::exec_tag_of(pid) == Some(exec));
    }
}

/// Takes the next request, if there is one. Returns `None` if the owner has ended.
fn receive<R>(control: i32, usual: &mut [u8], handle: impl FnOnce(Request<'_>, Fds) -> R) -> Res<Option<R>> {
    let expected = sys::next_length(control)?.min(wire::MAX_INLINE);
    let mut own;
    let buffer = if expected <= usual.len() {
        usual
    } else {
        own = Mapping::anonymous(expected)?;
        own.bytes_mut()
    };
    let (length, mut fds) = sys::receive(control, buffer)?;
    match buffer.get(..length).and_then(<[u8]>::split_first) {
        None => Ok(None),
        Some((&wire::INLINE, body)) => {
            wire::request(body).map(|request| Some(handle(request, fds))).ok_or(sys::EBADMSG)
        }
        Some((&wire::IN_MEMORY_FILE, [])) => {
            let body = Mapping::file(&fds.take_first()?, wire::MAX_MESSAGE)?;
            wire::request(body.bytes()).map(|request| Some(handle(request, fds))).ok_or(sys::EBADMSG)
        }
        Some(_) => Err(sys::EBADMSG),
    }
}
