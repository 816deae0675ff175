//! The running execs: their descriptors and streams.
//!
//! ```text
//! free --Start--> running --program reaped--> ended --its output is sent--> free
//! ```

use super::buffers::{Outbox, Pending};
use super::count::Counters;
use super::launch;
use super::sys::{self, Fd, PollFd, Ready, Reaped, Res};
use super::watch::Since;
use super::wire::{Answer, HEAD, MAX_DATA, MAX_EXECS, NotStarted, Start, Step};

/// The highest number of bytes of output per read.
const CHUNK: usize = 32 * 1024;
/// Space in the outbox that output leaves for answers.
const RESERVE: usize = 4 * (HEAD + MAX_DATA);
/// The highest number of bytes read from a program's pipes after its end: the default maximum size of a pipe.
const DRAIN_LIMIT: usize = 1 << 20;
/// The character that ends input on a terminal in canonical mode.
const END_OF_TRANSMISSION: u8 = 4;
/// The number of polled descriptors of each exec.
pub const POLLED: usize = 3;

/// A running exec.
pub struct Exec {
    /// The id; 0 if the slot is free.
    pub id: u64,
    /// The pid of the program; 0 once it is reaped.
    pub pid: i32,
    since: Since,
    out: [Option<Fd>; 2],
    input: Option<Fd>,
    /// Input that the program has not read yet.
    pending: Pending,
    input_ended: bool,
    terminal: bool,
    ended: Option<Reaped>,
    taken: usize,
}

impl Exec {
    const NEW: Self = Self {
        id: 0,
        pid: 0,
        since: Since::NOTHING,
        out: [const { None }; 2],
        input: None,
        pending: Pending::NEW,
        input_ended: false,
        terminal: false,
        ended: None,
        taken: 0,
    };

    fn is_used(&self) -> bool {
        self.id != 0
    }

    /// Buffers input. Fails if it exceeds the window.
    fn take(&mut self, data: &[u8], out: &mut Outbox) -> Res<()> {
        if self.input.is_none() {
            // The input has no reader any more.
            out.answer(self.id, &Answer::Credit { bytes: data.len() as u32 });
            return Ok(());
        }
        self.pending.add(data)?;
        self.feed(out);
        Ok(())
    }

    /// Writes as much input as the program reads.
    fn feed(&mut self, out: &mut Outbox) {
        let mut fed = 0;
        if let Some(input) = &self.input {
            let written = self.pending.write_to(input);
            fed = written.0;
            if written.1.is_err() {
                // The input has no reader any more.
                fed += self.pending.clear();
                self.input = None;
            }
        }
        if self.pending.is_empty() && self.input_ended {
            self.end_input();
        }
        if fed > 0 {
            out.answer(self.id, &Answer::Credit { bytes: fed as u32 });
        }
    }

    fn end_input(&mut self) {
        if let Some(input) = self.input.take().filter(|_| self.terminal) {
            let _ = sys::write(input.number(), &[END_OF_TRANSMISSION]);
        }
    }

    /// Drops the input of a former host. The next host gets the output.
    fn abandon(&mut self) {
        self.pending.clear();
        self.end_input();
    }

    /// Sends one chunk of output. Returns false if there is none now.
    fn send(&mut self, stream: usize, out: &mut Outbox) -> bool {
        let kind = Answer::Output { second: false, data: &[] }.kind();
        let Some(Some(fd)) = self.out.get(stream) else { return false };
        let read = out.fill(kind, self.id, &[stream as u8], CHUNK, |space| sys::read(fd.number(), space));
        match read {
            Err(sys::EAGAIN) => false,
            Ok(length) if length > 0 => {
                self.taken += length;
                true
            }
            // The controlling end of a terminal returns EIO once the other end is closed.
            Ok(_) | Err(_) => {
                if let Some(slot) = self.out.get_mut(stream) {
                    *slot = None;
                }
                false
            }
        }
    }

    /// Sends the output that the program wrote before its end, and then the end. Does not wait for the output of other
    /// processes.
    fn settle(&mut self, counters: &Counters, out: &mut Outbox) {
        for stream in 0..2 {
            while self.taken < DRAIN_LIMIT {
                if out.free() < RESERVE {
                    return;
                }
                if !self.send(stream, out) {
                    break;
                }
            }
        }
        let Some(ended) = self.ended.take() else { return };
        let (status, peak_bytes, cpu_micros) = (ended.status, ended.peak_bytes, ended.cpu_micros);
        out.answer(self.id, &Answer::Ended { status, peak_bytes, cpu_micros, counts: counters.read() });
        *self = Self::NEW;
    }
}

/// All execs.
pub struct Execs {
    list: [Exec; MAX_EXECS],
    /// The index of the exec with which a round begins.
    first: usize,
}

/// The program's ends of its pipes or terminal.
struct Ends {
    theirs: [i32; 3],
    /// The owners of these descriptors, until the program has inherited them.
    _held: [Option<Fd>; 3],
}

impl Execs {
    /// A list without execs.
    pub const NEW: Self = Self { list: [Exec::NEW; MAX_EXECS], first: 0 };

    fn find(&mut self, id: u64) -> Option<&mut Exec> {
        self.list.iter_mut().find(|exec| exec.is_used() && exec.id == id)
    }

    /// Returns the execs in use.
    pub fn iter(&self) -> impl Iterator<Item = &Exec> {
        self.list.iter().filter(|exec| exec.is_used())
    }

    /// Returns the start of each exec whose program is not reaped.
    pub fn since(&self) -> impl Iterator<Item = Since> {
        self.iter().filter(|exec| exec.pid != 0).map(|exec| exec.since)
    }

    /// Starts a program through `launch`, with new pipes or a new terminal.
    pub fn start(
        &mut self,
        start: &Start<'_>,
        since: Since,
        launch: impl FnOnce([i32; 3]) -> Result<i32, NotStarted>,
    ) -> Result<(), NotStarted> {
        let prepare = |errno| NotStarted { step: Step::Prepare, errno };
        let full = NotStarted { step: Step::Fork, errno: sys::EAGAIN };
        let slot = self.list.iter_mut().find(|exec| !exec.is_used()).ok_or(full)?;
        let mut exec = Exec { id: start.exec, since, terminal: start.terminal.is_some(), ..Exec::NEW };
        let ends = match start.terminal {
            Some(size) => terminal(&mut exec, start, size),
            None => pipes(&mut exec, start),
        }
        .map_err(prepare)?;
        exec.pid = launch(ends.theirs)?;
        *slot = exec;
        Ok(())
    }

    /// Buffers input for an exec. Ignores input for an exec that has ended.
    pub fn input(&mut self, id: u64, data: &[u8], out: &mut Outbox) -> Res<()> {
        self.find(id).map_or(Ok(()), |exec| exec.take(data, out))
    }

    /// Ends the input of an exec.
    pub fn end_input(&mut self, id: u64, out: &mut Outbox) {
        if let Some(exec) = self.find(id) {
            exec.input_ended = true;
            exec.feed(out);
        }
    }

    /// Drops the input of all execs, whose host has gone.
    pub fn abandon(&mut self) {
        self.list.iter_mut().filter(|exec| exec.is_used()).for_each(Exec::abandon);
    }

    /// Resizes the terminal of an exec.
    pub fn resize(&mut self, id: u64, size: (u16, u16)) {
        let terminal = self.find(id).filter(|exec| exec.terminal);
        if let Some(Some(master)) = terminal.map(|exec| &exec.out[0]) {
            // If that fails, the size stays unchanged.
            let _ = sys::set_size(master, size);
        }
    }

    /// Records the end of an exec's program. `used` returns the CPU time of the whole exec, from that of the reaped
    /// program and the exec's start. Ignores other processes.
    pub fn reaped(&mut self, mut reaped: Reaped, used: impl FnOnce(u64, Since) -> u64) {
        let own = |exec: &&mut Exec| exec.is_used() && exec.pid == reaped.pid;
        let Some(exec) = self.list.iter_mut().find(own) else { return };
        reaped.cpu_micros = used(reaped.cpu_micros, exec.since);
        exec.pid = 0;
        exec.taken = 0;
        exec.ended = Some(reaped);
    }

    /// Sends the ends of execs that have ended, while the outbox has space.
    pub fn settle(&mut self, counters: &Counters, out: &mut Outbox) {
        for exec in self.list.iter_mut().filter(|exec| exec.is_used() && exec.ended.is_some()) {
            if out.free() >= RESERVE {
                exec.settle(counters, out);
            }
        }
    }

    /// Fills a list with the descriptors to poll. Returns the number of used items.
    pub fn wait_for(&self, polls: &mut [PollFd], out: &Outbox) -> usize {
        let mut used = 0;
        let reading = out.free() >= RESERVE;
        for (exec, polls) in self.list.iter().zip(polls.chunks_exact_mut(POLLED)) {
            used += POLLED;
            let fds = [(&exec.out[0], reading, Ready::Read), (&exec.out[1], reading, Ready::Read)];
            let input = (&exec.input, !exec.pending.is_empty(), Ready::Write);
            for (poll, (fd, wanted, ready)) in polls.iter_mut().zip(fds.into_iter().chain([input])) {
                *poll = match fd {
                    Some(fd) if wanted && exec.ended.is_none() => PollFd::new(fd.number(), ready),
                    _ => PollFd::NONE,
                };
            }
        }
        used
    }

    /// Transfers input and output of ready descriptors. Each round begins with another exec, so that no exec is always
    /// last.
    pub fn serve(&mut self, polls: &[PollFd], out: &mut Outbox) {
        self.first = (self.first + 1) % MAX_EXECS;
        let ready = |index: usize, at: usize| polls.get(index * POLLED + at).is_some_and(PollFd::is_ready);
        for index in (self.first..MAX_EXECS).chain(0..self.first) {
            let Some(exec) = self.list.get_mut(index).filter(|exec| exec.is_used()) else { continue };
            for stream in 0..2 {
                if ready(index, stream) && out.free() >= RESERVE {
                    exec.send(stream, out);
                }
            }
            if ready(index, 2) {
                exec.feed(out);
            }
        }
    }
}

fn pipes(exec: &mut Exec, start: &Start<'_>) -> Res<Ends> {
    let (reader, writer) = sys::pipe()?;
    if start.input {
        sys::set_nonblocking(writer.number())?;
        exec.input = Some(writer);
    }
    let mut held = [Some(reader), None, None];
    for (slot, theirs) in exec.out.iter_mut().zip(held.iter_mut().skip(1)) {
        let (reader, writer) = sys::pipe()?;
        sys::set_nonblocking(reader.number())?;
        (*slot, *theirs) = (Some(reader), Some(writer));
    }
    let number = |end: &Option<Fd>| end.as_ref().map_or(-1, Fd::number);
    let [input, output, error] = &held;
    Ok(Ends { theirs: [number(input), number(output), number(error)], _held: held })
}

fn terminal(exec: &mut Exec, start: &Start<'_>, size: (u16, u16)) -> Res<Ends> {
    let (master, slave) = launch::make_terminal(size)?;
    sys::set_nonblocking(master.number())?;
    if start.input {
        exec.input = Some(sys::duplicate(&master)?);
    }
    exec.out[0] = Some(master);
    Ok(Ends { theirs: [slave.number(); 3], _held: [Some(slave), None, None] })
}
