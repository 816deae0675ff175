//! Process 1 of a sandbox: starts programs, reaps, tells the host what ended, kills on order.
//!
//! It runs behind the same walls as its guests. Guests cannot signal it (the kernel shields process 1 of a pid
//! namespace) nor look into it (it is not dumpable), and it reads nothing that they write. When its owner goes away it
//! ends, and the kernel ends everything else in the sandbox with it.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use cofferdam_linux::process::{self, Resource};
use cofferdam_linux::seccomp::MarkKey;
use cofferdam_linux::spawn::{self, ExecPlan, ExecStep};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use super::PATIENCE;
use crate::protocol::{self, Create, Event, NotStarted, Order, Start};

/// How often memory and CPU time are summed up where no control group does it.
const WATCH_EVERY: Duration = Duration::from_millis(25);
/// What a descriptor may hold in the kernel: a socket's send buffer, by default. Pipes hold less, files nothing.
const DESCRIPTOR_BYTES: u64 = 208 * 1024;
/// Descriptors of a process that count for nothing.
const FREE_DESCRIPTORS: u64 = 8;
/// Scans for processes of one exec before everything in the sandbox is killed instead.
const KILL_SCANS: usize = 200;

/// Sums over the sandbox's processes, for hosts without control groups.
#[derive(Debug)]
pub struct Watch {
    memory: Option<u64>,
    cpu_micros: Option<u64>,
    /// CPU time at the start of the exec that started last.
    base_cpu_micros: u64,
    ledger: Ledger,
    last_look: Instant,
    due: Instant,
}

/// CPU time that one exec is charged with where no control group counts it: never less than it used.
///
/// The times of the processes that are there, and of those that their parents waited for, can be read. Those of a
/// process that nobody waits for vanish with it. So a span in which a process appeared or vanished counts as if every
/// processor had worked all the time; only a span with the same processes at both ends is charged with what they used.
#[derive(Debug, Default)]
struct Ledger {
    charged_micros: u64,
    sum_micros: u64,
    population: Population,
}

/// Which processes there are, and the number that was given out last: births between two looks change it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Population {
    pids: Vec<i32>,
    last: u64,
}

impl Ledger {
    /// Charges a span at whose end there are these processes, with this sum of their times.
    fn charge(&mut self, span_micros: u64, processors: u64, sum_micros: u64, population: Population) {
        let seen = sum_micros.saturating_sub(self.sum_micros);
        let same = population == self.population;
        self.charged_micros += if same { seen } else { seen.max(span_micros * processors) };
        self.sum_micros = sum_micros;
        self.population = population;
    }
}

impl Watch {
    /// A watch if there is something to watch.
    pub fn new(create: &Create, needed: bool) -> Option<Self> {
        let wanted = needed && (create.memory.is_some() || create.cpu_micros.is_some());
        wanted.then(|| Self {
            memory: create.memory,
            cpu_micros: create.cpu_micros,
            base_cpu_micros: 0,
            ledger: Ledger::default(),
            last_look: Instant::now(),
            due: Instant::now(),
        })
    }

    /// An exec starts: it is charged with what is used from now on.
    fn begin(&mut self) {
        let total = total();
        self.base_cpu_micros = total.cpu_micros;
        self.ledger = Ledger { charged_micros: 0, sum_micros: total.cpu_micros, population: total.population };
        self.last_look = Instant::now();
        self.due = Instant::now() + WATCH_EVERY;
    }

    fn passed(&mut self) -> Option<Event> {
        let total = total();
        if self.memory.is_some_and(|limit| total.memory > limit) {
            return Some(Event::LimitPassed { memory: true });
        }
        let now = Instant::now();
        let span = now.duration_since(std::mem::replace(&mut self.last_look, now)).as_micros() as u64;
        self.ledger.charge(span, u64::from(process::processors().max(1)), total.cpu_micros, total.population);
        self.cpu_micros
            .is_some_and(|limit| self.ledger.charged_micros > limit)
            .then_some(Event::LimitPassed { memory: false })
    }
}

/// Process 1.
pub struct Init<'a> {
    control: BorrowedFd<'a>,
    children: OwnedFd,
    /// Main process of each exec that runs.
    running: BTreeMap<i32, u64>,
    watch: Option<Watch>,
    execs_started: u64,
    /// The first exec that was started.
    first: u64,
    mark_key: MarkKey,
    /// Whether the sandbox measured what the host expected.
    as_expected: bool,
    /// The exec with which the sandbox ends.
    last: Option<u64>,
}

impl<'a> Init<'a> {
    /// Process 1 of a sandbox that is ready.
    pub fn new(
        control: BorrowedFd<'a>,
        watch: Option<Watch>,
        mark_key: MarkKey,
        as_expected: bool,
    ) -> io::Result<Self> {
        Ok(Self {
            control,
            children: process::child_signal()?,
            running: BTreeMap::new(),
            watch,
            execs_started: 0,
            first: 0,
            mark_key,
            as_expected,
            last: None,
        })
    }

    /// The descriptor that tells of children.
    pub fn children(&self) -> i32 {
        self.children.as_raw_fd()
    }

    /// Starts what was ordered along with a sandbox that measures what was expected. What cannot be taken now is left
    /// to [`Self::serve`].
    pub fn start_ordered(&mut self) -> Option<Result<(), (NotStarted, i32)>> {
        if !self.as_expected {
            return None;
        }
        match protocol::receive::<Order>(self.control) {
            Ok(Some((Order::Start(start), fds))) if start.terminal.is_none() => {
                Some(self.try_start(&start, fds).map(drop))
            }
            // Nothing there yet, or nothing that can be answered here: the owner sends no such thing.
            _ => None,
        }
    }

    /// Serves until the owner goes away. Gives the exit code.
    pub fn serve(mut self) -> i32 {
        loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => return 0,
                Err(_) => return 76,
            }
        }
    }

    fn turn(&mut self) -> io::Result<bool> {
        let (orders, ended) = self.wait()?;
        if ended && !self.collect()? {
            return Ok(false);
        }
        if orders {
            match protocol::receive::<Order>(self.control) {
                Ok(Some((order, fds))) => self.obey(order, fds)?,
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.look();
        Ok(true)
    }

    fn wait(&self) -> io::Result<(bool, bool)> {
        let mut fds = [PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.children, PollFlags::IN)];
        // Only while something runs: an idle sandbox sleeps.
        let due = self.watch.as_ref().filter(|_| process::has_children()).map(|watch| {
            let left = watch.due.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, due.as_ref()))?;
        Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty()))
    }

    fn look(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        if Instant::now() < watch.due {
            return;
        }
        let passed = watch.passed();
        watch.due = Instant::now() + WATCH_EVERY;
        if let Some(event) = passed {
            let _ = process::kill(-1, libc::SIGKILL);
            let _ = self.tell(&event, &[]);
        }
    }

    fn tell(&self, event: &Event, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        protocol::send(self.control, event, fds, PATIENCE)
    }

    fn obey(&mut self, order: Order, fds: Vec<OwnedFd>) -> io::Result<()> {
        match order {
            Order::Start(start) => self.start(start, fds),
            Order::Signal { exec, kill } => {
                self.signal_exec(exec, if kill { libc::SIGKILL } else { libc::SIGTERM });
                Ok(())
            }
        }
    }

    fn start(&mut self, start: Start, fds: Vec<OwnedFd>) -> io::Result<()> {
        let exec = start.exec;
        if start.if_expected && !self.as_expected {
            return self.tell(&Event::NotStarted { exec, reason: NotStarted::Unexpected, errno: 0 }, &[]);
        }
        match self.try_start(&start, fds) {
            Ok(master) => {
                let fds: Vec<BorrowedFd<'_>> = master.iter().map(AsFd::as_fd).collect();
                self.tell(&Event::Started { exec }, &fds)
            }
            Err((reason, errno)) => self.tell(&Event::NotStarted { exec, reason, errno }, &[]),
        }
    }

    /// Starts a program. Gives its terminal's controlling end if it has one.
    fn try_start(&mut self, start: &Start, fds: Vec<OwnedFd>) -> Result<Option<OwnedFd>, (NotStarted, i32)> {
        let exec = start.exec;
        self.execs_started += 1;
        if self.execs_started == 1 {
            self.first = exec;
        }
        if let Some(watch) = &mut self.watch {
            watch.begin();
        }
        let started = match start.terminal {
            None => <[OwnedFd; 3]>::try_from(fds)
                .map_err(|_| (ExecStep::Prepare, io::Error::from_raw_os_error(libc::EBADF)))
                .and_then(|stdio| launch(start, stdio.each_ref().map(AsRawFd::as_raw_fd), self.mark_key))
                .map(|pid| (pid, None)),
            Some(size) => make_terminal(size)
                .map_err(|error| (ExecStep::Prepare, error))
                .and_then(|(master, slave)| Ok((launch(start, [slave.as_raw_fd(); 3], self.mark_key)?, Some(master)))),
        };
        let (pid, master) = started.map_err(|(step, error)| {
            let reason = match step {
                ExecStep::Fork => NotStarted::Fork,
                ExecStep::Directory => NotStarted::Directory,
                ExecStep::Prepare => NotStarted::Prepare,
                ExecStep::Execute => NotStarted::Execute,
            };
            (reason, error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        self.running.insert(pid, exec);
        self.last = self.last.or(start.last.then_some(exec));
        Ok(master)
    }

    /// Reaps; `false` when the exec is over with which the sandbox ends.
    fn collect(&mut self) -> io::Result<bool> {
        let mut buffer = [0u8; 512];
        while rustix::io::read(&self.children, &mut buffer).is_ok() {}
        while let Ok(Some(reaped)) = process::reap() {
            if let Some(exec) = self.running.remove(&reaped.pid) {
                let cpu_micros = match &self.watch {
                    // Others of the exec may still be there, or were reaped by nobody but this process.
                    Some(watch) => total().cpu_micros.saturating_sub(watch.base_cpu_micros).max(reaped.cpu_micros),
                    None => reaped.cpu_micros,
                };
                let peak_bytes = reaped.peak_bytes;
                self.tell(&Event::Ended { exec, status: reaped.status, peak_bytes, cpu_micros }, &[])?;
                // A program that was killed leaves the question by what, and the answer is in the control group.
                let exited = reaped.status & 0x7f == 0;
                if exited && self.last == Some(exec) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Signals everything an exec started. The mark in a resource limit says what belongs to it, wherever it has gone:
    /// children inherit it, and the seccomp list lets nobody change it.
    fn signal_exec(&self, exec: u64, signal: i32) {
        let kills = signal == libc::SIGKILL;
        if kills && self.execs_started == 1 && self.first == exec {
            let _ = process::kill(-1, signal); // One step, which no fork can outrun.
            return;
        }
        // One that was killed forks no more, however long it takes to be gone.
        let mut signalled: Vec<i32> = Vec::new();
        for _ in 0..if kills { KILL_SCANS } else { 1 } {
            let marked = |pid: &i32| process::limit_of(*pid, Resource::MARK).ok() == Some(exec);
            let fresh: Vec<i32> = pids().filter(|pid| !signalled.contains(pid) && marked(pid)).collect();
            if fresh.is_empty() {
                return;
            }
            for &pid in &fresh {
                let _ = process::kill(pid, signal);
            }
            signalled.extend(fresh);
        }
        if kills {
            // It forks faster than it can be counted. The sandbox ends rather than the order be disobeyed.
            let _ = process::kill(-1, libc::SIGKILL);
        }
    }
}

fn launch(start: &Start, stdio: [i32; 3], key: MarkKey) -> Result<i32, (ExecStep, io::Error)> {
    let bad = |_| (ExecStep::Prepare, io::Error::from_raw_os_error(libc::EINVAL));
    let argv: Vec<CString> =
        start.argv.iter().map(|word| CString::new(word.as_str())).collect::<Result<_, _>>().map_err(bad)?;
    let env: Vec<CString> = start
        .env
        .iter()
        .map(|(key, value)| CString::new(format!("{key}={value}")))
        .collect::<Result<_, _>>()
        .map_err(bad)?;
    let program = argv.first().ok_or_else(|| (ExecStep::Execute, io::Error::from_raw_os_error(libc::ENOENT)))?;
    let path = start.env.iter().find(|(key, _)| key == "PATH").map_or("/usr/bin:/bin", |(_, value)| value);
    spawn::spawn(&ExecPlan {
        programs: spawn::candidates(program, path),
        argv,
        env,
        directory: CString::new(start.directory.as_str()).map_err(bad)?,
        mark: Some((key, start.exec)),
        stdio,
        terminal: start.terminal.is_some(),
    })
}

/// A new terminal of the sandbox's own: controlling end and the end for programs.
fn make_terminal((rows, columns): (u16, u16)) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&slave, size)?;
    Ok((master, slave))
}

/// Every process of the sandbox but this one.
fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| number(&entry.file_name())).filter(|pid| *pid > 1)
}

fn number(name: &OsStr) -> Option<i32> {
    name.to_str()?.parse().ok()
}

#[derive(Default)]
struct Total {
    memory: u64,
    cpu_micros: u64,
    population: Population,
}

/// Descriptors that a process has open and that count. One that hides them is judged by the size of its table, which
/// is 64 at first: so is a child of ours for the moment until it executes its program.
fn counted_descriptors(pid: i32, status: &str) -> u64 {
    match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => (entries.count() as u64).saturating_sub(FREE_DESCRIPTORS),
        Err(_) => field(status, "FDSize:").unwrap_or(0).saturating_sub(64),
    }
}

/// The number in one line of a status file.
fn field(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(key))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// What all processes of the sandbox use together. Shared memory counts for each process that maps it: rather too
/// much than too little.
fn total() -> Total {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let last = load.split_whitespace().last().and_then(|number| number.parse().ok()).unwrap_or(0);
    let population = Population { pids: pids().collect(), last };
    let mut total = Total { memory: 0, cpu_micros: process::reaped_cpu_micros(), population: Population::default() };
    for &pid in &population.pids {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kibibytes = |key: &str| field(&status, key);
        total.memory += (kibibytes("RssAnon:").unwrap_or(0) + kibibytes("RssShmem:").unwrap_or(0)) * 1024;
        total.memory += counted_descriptors(pid, &status) * DESCRIPTOR_BYTES;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        // Own and reaped children's user and system time, in hundredths of a second.
        let ticks: u64 = fields.skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        total.cpu_micros += ticks * 10_000;
    }
    // What is stored in the sandbox's own tmpfs is memory as well.
    if let Ok(stat) = rustix::fs::statvfs("/tmp") {
        total.memory += (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
    }
    total.population = population;
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn population(pids: &[i32], last: u64) -> Population {
        Population { pids: pids.to_vec(), last }
    }

    #[test]
    fn processes_that_come_and_go_are_charged_for_the_whole_span() {
        let mut ledger = Ledger::default();
        ledger.charge(1000, 2, 0, population(&[2], 2));
        assert_eq!(ledger.charged_micros, 2000, "one appeared");
        ledger.charge(1000, 2, 300, population(&[2], 2));
        assert_eq!(ledger.charged_micros, 2300, "the same processes at both ends");
        ledger.charge(1000, 2, 300, population(&[2], 9));
        assert_eq!(ledger.charged_micros, 4300, "some appeared and vanished unseen");
        ledger.charge(1000, 2, 100, population(&[], 9));
        assert_eq!(ledger.charged_micros, 6300, "one vanished with its times");
    }
}
