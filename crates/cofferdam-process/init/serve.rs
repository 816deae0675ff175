//! The life of process 1: takes orders, reaps, reports, kills.
//!
//! ```text
//! walls up --ordered program started, if any--> Ready --orders, ends of children--> owner gone --> everything ends
//! ```

use super::handover::Handover;
use super::launch::{self, Desk};
use super::notify::{Backlog, Quotas};
use super::sys::{self, Fd, Fds, Mapping, PollFd, Ready, Res};
use super::tree;
use super::watch::{Passed, Since, Watch};
use super::wire::{self, Event, NotStarted, Order, Start, Step};

/// How long the owner may take to read what it was told.
const PATIENCE_MICROS: u64 = 10_000_000;
/// Programs of execs that can run at the same time.
const MAX_RUNNING: usize = 4096;
/// Orders up to this length need no memory of their own.
const USUAL_MESSAGE: usize = 4096;

/// The kernel ignores negative descriptors.
const NOTHING: (i32, Ready) = (-1, Ready::Read);

/// Memory that is there from the start.
pub struct Room {
    /// The last order.
    pub message: [u8; USUAL_MESSAGE],
    pub desk: Desk,
    pub running: Running,
}

impl Room {
    /// Unused.
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

    /// When each of them started.
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
    mark: (u64, u64),
    /// Descriptors that each program may have open.
    open_files: u64,
    /// Whether the sandbox measured what the host expected.
    as_expected: bool,
    execs_started: u64,
    /// The first exec that was started.
    first: u64,
    /// The exec with which the sandbox ends.
    last: Option<u64>,
}

impl Init {
    /// Begins with what was handed over.
    pub fn new(handover: &Handover) -> Res<Self> {
        Ok(Self {
            control: handover.control,
            children: sys::child_signal()?,
            quotas: Quotas::new(
                Fd::own(handover.listener),
                Some(Fd::own(handover.locks)),
                if handover.backlog_unbounded { Backlog::Shorten(sys::whole_key(handover.mark)) } else { Backlog::Bounded },
                handover.max_processes,
            ),
            watch: Watch::new(
                handover.watch_memory,
                handover.watch_cpu,
                handover.counts_files,
                handover.mark.0 ^ handover.mark.1,
            ),
            mark: handover.mark,
            open_files: handover.open_files,
            as_expected: handover.as_expected,
            execs_started: 0,
            first: 0,
            last: None,
        })
    }

    /// Starts what was ordered along with a sandbox that measures what was expected. What cannot be taken now is left
    /// to [`Self::serve`].
    pub fn start_ordered(&mut self, room: &mut Room) -> Option<Result<(), NotStarted>> {
        if !self.as_expected {
            return None;
        }
        let Room { message, desk, running } = room;
        // Nothing there yet, or nothing that can be answered here: the owner sends no such thing.
        receive(self.control, message, |order, fds| match order {
            Order::Start(start) if start.terminal.is_none() => {
                Some(self.try_start(&start, fds, desk, running).map(drop))
            }
            _ => None,
        })
        .ok()
        .flatten()
        .flatten()
    }

    /// Tells the owner that the sandbox is ready, and keeps no descriptor but what is needed from now on.
    pub fn report(&self, handover: &Handover, evidence: &[u8], first: Option<Result<(), NotStarted>>) -> Res<()> {
        let (head, tail) = wire::ready(first);
        let fds = handover.fds.get(..handover.fd_count).ok_or(sys::EBADF)?;
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

    /// Serves until the owner goes away. Gives the exit code.
    pub fn serve(&mut self, room: &mut Room) -> i32 {
        loop {
            match self.turn(room) {
                Ok(true) => {}
                Ok(false) => return 0,
                Err(_) => return 76,
            }
        }
    }

    fn turn(&mut self, room: &mut Room) -> Res<bool> {
        // Only while something runs: an idle sandbox sleeps.
        let due = self.watch.as_ref().filter(|_| sys::has_children()).map(Watch::left);
        let [asked, _] = self.quotas.numbers();
        let mut polled = [self.control, self.children.number(), asked].map(|fd| PollFd::new(fd, Ready::Read));
        sys::poll(&mut polled, due)?;
        let [orders, ended, asked] = polled.map(|fd| fd.is_ready());
        // One of them a turn, so that orders and ends are not kept waiting.
        if asked {
            self.quotas.answer_one()?;
        }
        if ended && !self.collect(&mut room.running)? {
            return Ok(false);
        }
        if orders {
            let Room { message, desk, running } = room;
            match receive(self.control, message, |order, fds| self.obey(order, fds, desk, running)) {
                Ok(Some(obeyed)) => obeyed?,
                Ok(None) => return Ok(false),
                Err(sys::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        if let Some(passed) = self.watch.as_mut().and_then(|watch| watch.look(room.running.since())) {
            sys::kill(-1, sys::SIGKILL);
            // What the owner does not hear of is killed all the same.
            let _ = self.tell(&Event::LimitPassed { memory: matches!(passed, Passed::Memory) }, &[]);
        }
        Ok(true)
    }

    fn tell(&self, event: &Event, fds: &[i32]) -> Res<()> {
        self.send([event.encode().bytes(), &[], &[]], fds)
    }

    fn send(&self, parts: [&[u8]; 3], fds: &[i32]) -> Res<()> {
        loop {
            match sys::send(self.control, parts, fds) {
                Err(sys::EAGAIN) => {
                    let [writable, _] = sys::wait([(self.control, Ready::Write), NOTHING], Some(PATIENCE_MICROS))?;
                    if !writable {
                        return Err(sys::EAGAIN);
                    }
                }
                other => return other,
            }
        }
    }

    fn obey(&mut self, order: Order<'_>, fds: Fds, desk: &mut Desk, running: &mut Running) -> Res<()> {
        match order {
            Order::Start(start) => self.start(&start, fds, desk, running),
            Order::Signal { exec, kill } => {
                self.signal_exec(exec, if kill { sys::SIGKILL } else { sys::SIGTERM });
                Ok(())
            }
        }
    }

    fn start(&mut self, start: &Start<'_>, fds: Fds, desk: &mut Desk, running: &mut Running) -> Res<()> {
        let exec = start.exec;
        if start.if_expected && !self.as_expected {
            let failure = NotStarted { step: Step::Unexpected, errno: 0 };
            return self.tell(&Event::NotStarted { exec, failure }, &[]);
        }
        match self.try_start(start, fds, desk, running) {
            Ok(Some(master)) => self.tell(&Event::Started { exec }, &[master.number()]),
            Ok(None) => self.tell(&Event::Started { exec }, &[]),
            Err(failure) => self.tell(&Event::NotStarted { exec, failure }, &[]),
        }
    }

    /// Starts a program. Gives its terminal's controlling end if it has one.
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
            None => (desk.launch(start, fds.three().map_err(prepare)?, Some(self.mark), &confine)?, None),
            Some(size) => {
                let (master, slave) = launch::make_terminal(size).map_err(prepare)?;
                (desk.launch(start, [slave.number(); 3], Some(self.mark), &confine)?, Some(master))
            }
        };
        running.add(pid, start.exec, since);
        self.last = self.last.or(start.last.then_some(start.exec));
        Ok(master)
    }

    /// Reaps; `false` when the exec is over with which the sandbox ends.
    fn collect(&self, running: &mut Running) -> Res<bool> {
        let mut told = [0; 512];
        while sys::read(self.children.number(), &mut told).is_ok() {}
        while let Some(reaped) = sys::reap() {
            let Some((exec, since)) = running.remove(reaped.pid) else { continue };
            let cpu_micros = match &self.watch {
                Some(watch) => watch.used(reaped.cpu_micros, since),
                None => reaped.cpu_micros,
            };
            let (status, peak_bytes) = (reaped.status, reaped.peak_bytes);
            let processes_refused = self.quotas.processes_refused().unwrap_or(0);
            self.tell(&Event::Ended { exec, status, peak_bytes, cpu_micros, processes_refused }, &[])?;
            // A program that was killed leaves the question by what, and the answer is in the control group.
            let exited = status & 0x7f == 0;
            if exited && self.last == Some(exec) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Signals everything an exec started. The mark in a resource limit says what belongs to it, wherever it has gone:
    /// children inherit it, and the seccomp list lets nobody change it.
    fn signal_exec(&self, exec: u64, signal: i32) {
        let alone = self.execs_started == 1 && self.first == exec;
        tree::signal(signal, alone, &|pid| sys::mark_of(pid) == Some(exec));
    }
}

/// Takes the next order, if there is one; `None` when the owner is gone.
fn receive<R>(control: i32, usual: &mut [u8], obey: impl FnOnce(Order<'_>, Fds) -> R) -> Res<Option<R>> {
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
        Some((&wire::INLINE, body)) => wire::order(body).map(|order| Some(obey(order, fds))).ok_or(sys::EBADMSG),
        Some((&wire::IN_MEMORY_FILE, [])) => {
            let body = Mapping::file(&fds.take_first()?, wire::MAX_MESSAGE)?;
            wire::order(body.bytes()).map(|order| Some(obey(order, fds))).ok_or(sys::EBADMSG)
        }
        Some(_) => Err(sys::EBADMSG),
    }
}
