//! The main loop of the agent.
//!
//! ```text
//! begun --Hello--> greeted --probes--> --Configure--> ready --requests--> End, silence, end of the stream --> exit
//!
//! open --Quiesce--> quiesced, both sides silent --Release--> open
//!                     '--Reseed--> reseeded, guests still stopped --probes--> --Release--> open
//! ```

mod quiesce;

use super::asks;
use super::buffers::{Assembly, Inbox, Outbox};
use super::connections::{self, Connections};
use super::count::Counters;
use super::execs::{Execs, POLLED};
use super::jobs::{self, Failure, Jobs};
use super::launch::Desk;
use super::line::Line;
use super::notify::{Backlog, MAX_BACKLOG, Quotas};
use super::partner::Partner;
use super::probe::{self, Path};
use super::sys::{self, Fd, PollFd, Ready, Res, Stack};
use super::texts;
use super::tree;
use super::watch::{self, Passed, Since, Watch};
use super::wire::{
    Answer, Configure, Frame, HEAD, MAGIC, MAX_BODY, MAX_EXECS, MAX_WATCHES, NotStarted, PART, Request, Root, Start, Step, VERSION,
};

use quiesce::{EBUSY, Stage, StoppedBy};

/// The exit code if it is not process 1 of its pid namespace, so that kills would reach other processes.
const MISPLACED: i32 = 77;
/// The exit code after an unexpected failure of a system call.
const FAILED: i32 = 76;
/// The exit code after an invalid frame from the host.
const INVALID_FRAME: i32 = 74;
/// Microseconds of silence after which to exit, until the host configures another time.
const FIRST_SILENCE: u64 = 60_000_000;
/// Space in the outbox below which no request is handled.
const REQUEST_SPACE: usize = 2 * (HEAD + MAX_BODY);
/// The number of polled descriptors of the agent itself, and of execs.
const OWN: usize = 4 + MAX_WATCHES;
const EXECS: usize = MAX_EXECS * POLLED;
/// The highest number of processes reaped in one turn, so that a guest that creates many cannot block the agent.
const MAX_REAPED: usize = 1024;
/// The OOM score adjustment of guests, so that the kernel kills them before the agent.
const GUEST_SCORE: &[u8] = b"500";
const EPROTO: i32 = 71;

/// The static memory of the agent.
pub struct Buffers {
    inbox: Inbox,
    assembly: Assembly,
    polls: [PollFd; OWN + EXECS + connections::POLLED],
    table: Table,
}

/// The state that requests need.
struct Table {
    outbox: Outbox,
    desk: Desk,
    stack: Stack,
    execs: Execs,
    jobs: Jobs,
    counters: Counters,
    connections: Connections,
}

impl Buffers {
    /// The initial state.
    pub const NEW: Self = Self {
        inbox: Inbox::NEW,
        assembly: Assembly::NEW,
        polls: [PollFd::UNSET; OWN + EXECS + connections::POLLED],
        table: Table {
            outbox: Outbox::NEW,
            desk: Desk::NEW,
            stack: Stack::NEW,
            execs: Execs::NEW,
            jobs: Jobs::NEW,
            counters: Counters::NEW,
            connections: Connections::NEW,
        },
    };
}

/// Serves until the host closes the connection. Returns the exit code.
pub fn run(buffers: &mut Buffers) -> i32 {
    if sys::identity().0 != 1 {
        return MISPLACED;
    }
    buffers.table.connections.find_connection_attempts();
    let Ok(mut agent) = Agent::begin() else { return FAILED };
    match agent.serve(buffers) {
        Ok(()) => 0,
        Err(sys::EBADMSG) => INVALID_FRAME,
        Err(_) => FAILED,
    }
}

struct Agent {
    partner: Option<Partner>,
    line: Line,
    stage: Stage,
    stopped_by: StoppedBy,
    children: Fd,
    /// The file of the OOM score adjustment, and its original contents.
    score: Option<(Fd, [u8; 8], usize)>,
    greeted: bool,
    configured: bool,
    ending: bool,
    /// True if there may be more processes to reap.
    reaping: bool,
    tag: Option<(u64, u64)>,
    silence: u64,
    heard: u64,
    watch: Option<Watch>,
    rules: Option<Fd>,
    quotas: Option<Quotas>,
    workspace: Option<Fd>,
    code: Option<Fd>,
    started: u64,
    first: u64,
}

impl Agent {
    fn begin() -> Res<Self> {
        let line = Line::find();
        let partner = Partner::find();
        let children = sys::child_signal()?;
        // Opened while this process still owns its files in `/proc`.
        let score = open_score();
        sys::renounce(c"cofferdam-agent")?;
        sys::set_nonblocking(0)?;
        sys::set_nonblocking(1)?;
        Ok(Self {
            partner,
            line,
            stage: Stage::Open,
            stopped_by: StoppedBy::Nothing,
            children,
            score,
            greeted: false,
            configured: false,
            ending: false,
            reaping: false,
            tag: None,
            silence: FIRST_SILENCE,
            heard: sys::now_micros(),
            watch: None,
            rules: None,
            quotas: None,
            workspace: None,
            code: None,
            started: 0,
            first: 0,
        })
    }

    fn root(&self, root: Root) -> Res<&Fd> {
        let found = match root {
            Root::Workspace => &self.workspace,
            Root::Code => &self.code,
        };
        found.as_ref().ok_or(EPROTO)
    }

    /// Installs the agent's part of the isolation for itself and its guests.
    fn configure(&mut self, it: &Configure<'_>, counters: &mut Counters) -> Res<()> {
        if self.configured {
            return Err(EPROTO);
        }
        self.configured = true;
        self.workspace = Some(open_directory(it.workspace)?);
        self.code = Some(match open_directory(it.code) {
            Ok(code) => code,
            Err(_) => {
                sys::make_directory(sys::AT_FDCWD, Path::new(it.code)?.bytes(), 0o755)?;
                open_directory(it.code)?
            }
        });
        self.rules = create_rules(it)?;
        counters.configure(it.groups, &it.stores);
        self.watch = Watch::new(it.watch_memory, it.watch_cpu, true, it.tag.map_or(0, |tag| tag.0 ^ tag.1));
        self.tag = it.tag;
        self.silence = it.silence;
        if !it.filter.is_empty() {
            sys::install_filter(it.filter)?;
        }
        if !it.quotas.is_empty() {
            let listener = sys::install_filter_with_listener(it.quotas)?;
            // The mounts hide the list of locks here.
            self.quotas = Some(Quotas::new(listener, None, backlog(), it.max_processes));
        }
        Ok(())
    }

    fn start(&mut self, start: &Start<'_>, desk: &mut Desk, execs: &mut Execs) -> Result<(), NotStarted> {
        if !self.configured || self.stopped_by != StoppedBy::Nothing || self.stage != Stage::Open {
            let errno = if self.configured { EBUSY } else { EPROTO };
            return Err(NotStarted { step: Step::Prepare, errno });
        }
        if let Some(quotas) = &mut self.quotas {
            quotas.reset_idle();
            if !quotas.allows_process() {
                return Err(NotStarted { step: Step::Fork, errno: sys::EAGAIN });
            }
        }
        let beside = execs.since().next().is_some();
        let since = self.watch.as_mut().map_or(Since::NOTHING, |watch| watch.begin(beside));
        let rules = self.rules.as_ref().map(Fd::number);
        let confine = || rules.map_or(Ok(()), sys::landlock_restrict);
        let tag = self.tag;
        self.set_score(true);
        let started = execs.start(start, since, |theirs| desk.launch(start, theirs, tag, &confine));
        self.set_score(false);
        started?;
        self.started += 1;
        if self.started == 1 {
            self.first = start.exec;
        }
        Ok(())
    }

    /// Sets the OOM score adjustment that a child inherits.
    fn set_score(&self, for_guest: bool) {
        if let Some((file, text, length)) = &self.score {
            let own = text.get(..*length).unwrap_or_default();
            // If that fails, the kernel chooses by memory size alone.
            let _ = sys::write(file.number(), if for_guest { GUEST_SCORE } else { own });
        }
    }

    /// Signals everything that an exec started. A resource limit holds the exec tag. Children inherit it, and the
    /// filter forbids changing it, so that all processes of the exec are found. If the kernel has no such limit, this
    /// signals all processes that are not in the session of another exec, and so possibly too many.
    fn signal(&self, exec: u64, signal: i32, execs: &Execs) {
        let alone = self.started == 1 && self.first == exec;
        match self.tag {
            Some(_) => tree::signal(signal, alone, &|pid| sys::exec_tag_of(pid) == Some(exec)),
            None => tree::signal(signal, alone, &|pid| {
                let session = session_of(pid);
                !execs.iter().any(|other| other.id != exec && other.pid != 0 && other.pid == session)
            }),
        }
    }
}

/// Returns the means that bounds the queues of listening sockets, from the setting of the network namespace.
fn backlog() -> Backlog {
    let mut text = [0; 16];
    let max = texts::number(sys::read_file(b"/proc/sys/net/core/somaxconn\0", &mut text).trim_ascii());
    if max.is_some_and(|max| max <= MAX_BACKLOG.into()) { Backlog::Bounded } else { Backlog::Refuse }
}

fn open_directory(path: &[u8]) -> Res<Fd> {
    sys::open_at(sys::AT_FDCWD, Path::new(path)?.bytes(), sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW, 0)
}

fn open_score() -> Option<(Fd, [u8; 8], usize)> {
    const PATH: &[u8] = b"/proc/self/oom_score_adj\0";
    let mut text = [0; 8];
    let length = sys::read_file(PATH, &mut text).trim_ascii().len();
    let own = texts::number(text.get(..length)?)?;
    let file = sys::open_at(sys::AT_FDCWD, PATH, sys::O_WRONLY, 0).ok()?;
    (own < 500).then_some((file, text, length))
}

/// Creates the Landlock rules for guests, if they are configured. Skips a path that does not exist, since everything
/// without a rule is forbidden.
fn create_rules(it: &Configure<'_>) -> Res<Option<Fd>> {
    if it.rights == 0 && it.scopes == 0 {
        return Ok(None);
    }
    let rules = sys::landlock_rules(sys::landlock_abi(), it.rights, it.scopes)?;
    let mut texts = it.rules.iter();
    while let (Some(path), Some(rights)) = (texts.next(), texts.next()) {
        let rights = u64::from_le_bytes(rights.try_into().map_err(|_| sys::EBADMSG)?);
        match sys::open_at(sys::AT_FDCWD, Path::new(path)?.bytes(), sys::O_PATH, 0) {
            Ok(file) => sys::landlock_allow(&rules, &file, rights)?,
            Err(sys::ENOENT | sys::EACCES) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(Some(rules))
}

fn session_of(pid: i32) -> i32 {
    let mut stat = [0; 512];
    texts::session(sys::read_file(texts::Path::new("/proc/", pid as u32, "/stat").bytes(), &mut stat)).unwrap_or(-1)
}

/// Reaps processes. Returns true if there may be more.
fn reap(agent: &Agent, execs: &mut Execs) -> bool {
    let mut buffer = [0; 512];
    while sys::read(agent.children.number(), &mut buffer).is_ok() {}
    for _ in 0..MAX_REAPED {
        let Some(reaped) = sys::reap() else { return false };
        // Only for the program of an exec and not for every orphan, since adding up the CPU time is slow.
        execs.reaped(reaped, |micros, since| agent.watch.as_ref().map_or(micros, |watch| watch.used(micros, since)));
    }
    true
}

impl Agent {
    fn serve(&mut self, buffers: &mut Buffers) -> Res<()> {
        while !self.ending {
            self.turn(buffers)?;
        }
        // The host should get the last answers.
        buffers.table.outbox.flush()
    }

    /// Waits, and handles everything that is ready.
    fn turn(&mut self, buffers: &mut Buffers) -> Res<()> {
        let Buffers { inbox, assembly, polls, table } = buffers;
        let [requests, ended, readable] = self.wait(inbox, polls, table)?;
        // Only one in each turn, so that the other sources are served.
        if let Some(quotas) = self.quotas.as_mut().filter(|_| readable) {
            quotas.answer_one()?;
            table.counters.processes_refused = quotas.processes_refused();
        }
        if requests && !self.receive(inbox)? {
            self.ending = true;
            return Ok(());
        }
        let now = sys::now_micros();
        if requests {
            self.heard = now;
        } else if self.stage != Stage::Quiesced && now > self.heard.saturating_add(self.silence) {
            self.ending = true;
            return Ok(());
        }
        if self.stage == Stage::Open {
            let (execs, connections) = polls.get(OWN..).and_then(|polls| polls.split_at_checked(EXECS)).ok_or(EPROTO)?;
            // The first one can fill the outbox, so they take turns.
            let first = table.connections.serve_first();
            if first {
                table.connections.serve(connections, &mut table.outbox);
            }
            table.execs.serve(execs, &mut table.outbox);
            if !first {
                table.connections.serve(connections, &mut table.outbox);
            }
            if ended || self.reaping {
                self.reaping = reap(self, &mut table.execs);
            }
            // Before the ends of execs that made them.
            table.connections.report_connection_attempts(&mut table.outbox);
            table.execs.settle(&table.counters, &mut table.outbox);
            table.jobs.advance(&mut table.outbox);
        }
        self.handle_requests(inbox, assembly, table)?;
        if self.stage == Stage::Reseeded {
            // Overwrites the entropy, so that no later copy contains it.
            inbox.wipe();
        }
        let watch = self.watch.as_mut().filter(|_| self.stage == Stage::Open && sys::has_children());
        if let Some(passed) = watch.and_then(|watch| watch.poll(table.execs.since())) {
            sys::kill(-1, sys::SIGKILL);
            table.outbox.answer(0, &Answer::LimitPassed { memory: matches!(passed, Passed::Memory) });
        }
        table.outbox.flush()?;
        if table.outbox.is_broken() { Err(EPROTO) } else { Ok(()) }
    }

    /// Reads from the host, or accepts its connection. Returns false at the end of the last connection.
    fn receive(&mut self, inbox: &mut Inbox) -> Res<bool> {
        if self.line.is_lost() {
            return self.line.accept().map(|()| true);
        }
        let heard = inbox.fill();
        // No request is pending before the greeting and while quiesced.
        let replaceable = !self.greeted || self.stage == Stage::Quiesced;
        if replaceable && matches!(heard, Ok(false) | Err(_)) && self.line.drop_connection() {
            inbox.clear();
            return Ok(true);
        }
        heard
    }

    /// Waits until a descriptor is ready or a timeout is due. Returns whether there are requests, whether a child has
    /// ended, and whether a system call with a quota waits.
    fn wait(&self, inbox: &Inbox, polls: &mut [PollFd], table: &Table) -> Res<[bool; 3]> {
        let taking = table.outbox.free() >= REQUEST_SPACE;
        let open = self.stage == Stage::Open;
        let (own, theirs) = polls.split_at_mut_checked(OWN).ok_or(EPROTO)?;
        let used = match theirs.split_at_mut_checked(EXECS).filter(|_| open) {
            Some((execs, connections)) => {
                table.execs.wait_for(execs, &table.outbox) + table.connections.wait_for(connections, &table.outbox)
            }
            None => 0,
        };
        let (input, writable) = self.line.readable();
        let wanted = [
            (input, taking && inbox.has_space(), Ready::Read),
            (1, writable && !table.outbox.is_empty(), Ready::Write),
            (self.children.number(), open, Ready::Read),
            (self.quotas.as_ref().map_or(-1, |quotas| quotas.numbers()[0]), open, Ready::Read),
        ];
        let watches = table.jobs.watches(&table.outbox).map(|fd| (fd, open, Ready::Read));
        let nothing = core::iter::repeat((-1, false, Ready::Read));
        for (poll, (fd, wanted, ready)) in own.iter_mut().zip(wanted.into_iter().chain(watches).chain(nothing)) {
            *poll = if wanted { PollFd::new(fd, ready) } else { PollFd::NONE };
        }
        let going_on = open && (self.reaping || table.jobs.is_busy(&table.outbox));
        let busy = going_on || (taking && inbox.has_frame());
        let silent = self.heard.saturating_add(self.silence).saturating_sub(sys::now_micros());
        let watch = self.watch.as_ref().filter(|_| open && sys::has_children());
        let due = if busy { 0 } else { silent.min(watch.map_or(u64::MAX, Watch::left)).saturating_add(1) };
        // A host may return to a quiesced agent after years, whether or not the VM's clock counts them.
        let due = (self.stage != Stage::Quiesced || busy).then_some(due);
        sys::poll(polls.get_mut(..OWN + used).unwrap_or_default(), due)?;
        Ok([0, 2, 3].map(|at| polls.get(at).is_some_and(PollFd::is_ready)))
    }

    fn handle_requests(&mut self, inbox: &mut Inbox, assembly: &mut Assembly, table: &mut Table) -> Res<()> {
        while table.outbox.free() >= REQUEST_SPACE && !self.ending {
            let Some(frame) = inbox.next()? else { return Ok(()) };
            if frame.kind == PART {
                assembly.add(frame.body)?;
            } else if assembly.is_empty() {
                self.handle(&frame, table)?;
            } else {
                assembly.add(frame.body)?;
                let whole = core::mem::replace(assembly, Assembly::NEW);
                self.handle(&Frame { body: whole.bytes(), ..frame }, table)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, frame: &Frame<'_>, table: &mut Table) -> Res<()> {
        let id = frame.id;
        let request = Request::decode(frame).ok_or(sys::EBADMSG)?;
        let waking = matches!(request, Request::Release | Request::Reseed(_) | Request::End);
        if self.stage == Stage::Quiesced && !waking {
            return Err(sys::EBADMSG);
        }
        if let Request::Hello { magic, version } = request {
            let pid = sys::identity().0 as u32;
            table.outbox.answer(id, &Answer::Hello { magic: MAGIC, version: VERSION, pid });
            self.greeted = magic == MAGIC && version == VERSION;
            self.ending = !self.greeted;
            return Ok(());
        }
        if !self.greeted {
            return Err(sys::EBADMSG);
        }
        let Table { outbox: out, desk, stack, execs, jobs, counters, connections } = table;
        match request {
            Request::Configure(it) => {
                let configured = self.configure(&it, counters);
                if let Some(quotas) = &mut self.quotas {
                    quotas.exclude_listeners(connections.listeners());
                }
                done(id, configured, out);
            }
            Request::Probe(it) => probe::probe(id, &it, stack, (self.rules.as_ref(), self.tag), out),
            Request::Start(it) => {
                let counts = counters.read();
                match self.start(&it, desk, execs) {
                    Ok(()) => out.answer(id, &Answer::Started { counts }),
                    Err(failure) => out.answer(id, &Answer::NotStarted { failure }),
                }
            }
            Request::Signal { kill } => self.signal(id, if kill { sys::SIGKILL } else { sys::SIGTERM }, execs),
            Request::Listen { ports } => {
                if let Some(partner) = self.partner.as_mut().filter(|_| connections.sees_connection_attempts()) {
                    // A copy has the route already. Without it, other addresses are unreachable, and not reported.
                    let _ = partner.ask(&asks::Request::Route);
                }
                done(id, connections.listen(id, ports), out);
            }
            Request::Response { from, data } => connections.respond(from, data),
            Request::Accept { window } => connections.accept(id, window, out),
            Request::Connect { port, window } => connections.connect(id, port, window, out),
            Request::Input { data } if connections.has(id) => connections.input(id, data, out)?,
            Request::InputEnd if connections.has(id) => connections.end_input(id, out),
            Request::More { bytes } if connections.has(id) => connections.more(id, bytes),
            Request::Forget if connections.has(id) => connections.forget(id, out),
            Request::Input { data } => execs.input(id, data, out)?,
            Request::InputEnd => execs.end_input(id, out),
            Request::Resize { rows, columns } => execs.resize(id, (rows, columns)),
            Request::Count => out.answer(id, &Answer::Counted { counts: counters.read() }),
            Request::Freeze { on } => done(id, self.freeze(on), out),
            Request::Quiesce => match self.quiesce(jobs) {
                Ok(()) => out.answer(id, &Answer::Quiesced),
                Err(errno) => done(id, Err(errno), out),
            },
            Request::Release => done(id, self.release(), out),
            Request::Reseed(it) => {
                // The sent bytes may contain data of guests.
                out.wipe();
                match self.reseed(&it, desk, execs, (jobs, connections)) {
                    Ok(()) => quiesce::answer_reseeded(id, execs, out),
                    Err(errno) => done(id, Err(errno), out),
                }
            }
            Request::Ping => out.answer(id, &Answer::Pong),
            Request::End => self.ending = true,
            _ => self.handle_file_request(id, &request, jobs, out)?,
        }
        Ok(())
    }

    fn handle_file_request(&self, id: u64, request: &Request<'_>, jobs: &mut Jobs, out: &mut Outbox) -> Res<()> {
        let begun = |begun: Result<(), Failure>, out: &mut Outbox| {
            if let Err(Failure { errno, kind }) = begun {
                out.answer(id, &Answer::Done { errno, kind });
            }
        };
        match *request {
            Request::Read { root, path, window } => {
                let root = self.root(root).map_err(Failure::from);
                let read = root.and_then(|root| jobs.read(id, root, path, window, out));
                begun(read, out);
            }
            Request::More { bytes } => jobs.more(id, bytes),
            Request::Write { root, path, strict } => {
                let write = self.root(root).map_err(Failure::from).and_then(|root| jobs.write(id, root, path, strict));
                begun(write, out);
            }
            Request::Data { data } => jobs.data(id, data, out)?,
            Request::Finish { mode, modified } => jobs.finish(id, mode, modified, out),
            Request::Forget => jobs.forget(id),
            Request::List { root, path } => {
                let list = self.root(root).map_err(Failure::from).and_then(|root| jobs.list(id, root, path));
                begun(list, out);
            }
            Request::Watch { window } => begun(jobs.watch(id, window, out), out),
            Request::Mark { watch, path, mask, list } => {
                let root = self.root(Root::Workspace).map_err(Failure::from);
                match root.and_then(|root| jobs.mark(id, watch, (root, path), mask, list, out)) {
                    Ok(false) => {}
                    Ok(true) => done(id, Ok(()), out),
                    Err(failure) => begun(Err(failure), out),
                }
            }
            Request::Unmark { wd } => jobs.unmark(id, wd),
            Request::Remove { root, path } => {
                match self.root(root).map_err(Failure::from).and_then(|root| jobs.remove(id, root, path)) {
                    Ok(false) => {}
                    Ok(true) => done(id, Ok(()), out),
                    Err(failure) => begun(Err(failure), out),
                }
            }
            Request::Rename { root, path, to } => {
                done(id, self.root(root).and_then(|root| jobs::rename(root, path, to)), out);
            }
            Request::Make { root, path, make } => {
                done(id, self.root(root).and_then(|root| jobs::make(root, path, make)), out);
            }
            Request::Adjust { root, path, mode, modified } => {
                done(id, self.root(root).and_then(|root| jobs::adjust(root, path, mode, modified)), out);
            }
            _ => return Err(sys::EBADMSG),
        }
        Ok(())
    }
}

fn done(id: u64, result: Res<()>, out: &mut Outbox) {
    out.answer(id, &Answer::Done { errno: result.err().unwrap_or(0), kind: 0 });
}
