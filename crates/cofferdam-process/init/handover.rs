//! What a child that has built its walls hands to the program that it executes: a few numbers, and the evidence as it
//! is to be sent. It travels through a pipe, for one of the numbers is a secret.

/// The most descriptors that go with the evidence.
pub const MAX_FDS: usize = 8;
/// The longest handover, evidence included: what a pipe of the smallest kind holds.
pub const MAX_BYTES: usize = 4096;
/// Bytes before the evidence.
const HEAD: usize = WORDS * 8;
const WORDS: usize = 14 + MAX_FDS;
/// A number that is not there.
const NONE: u64 = u64::MAX;

/// The numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handover {
    /// What marks a process: the arguments of `prlimit64`.
    pub mark: (u64, u64),
    /// The owner's socket.
    pub control: i32,
    /// Where the filter asks about calls that make what no memory limit counts.
    pub listener: i32,
    /// The list of the locks of files.
    pub locks: i32,
    /// What to send with the evidence; the first `fd_count` count.
    pub fds: [i32; MAX_FDS],
    /// How many of them.
    pub fd_count: usize,
    /// Bytes of memory at which to kill, where the init watches.
    pub watch_memory: Option<u64>,
    /// CPU microseconds at which to kill, where the init watches.
    pub watch_cpu: Option<u64>,
    /// Processes of guests that there may be at once, where their number is limited.
    pub max_processes: Option<u64>,
    /// True where the kernel offers no setting for the length of a listening socket's queue.
    pub backlog_unbounded: bool,
    /// Descriptors that each program may have open: fewer than the init, see `set_open_files`.
    pub open_files: u64,
    /// Whether the watch counts files of the sandbox's tmpfs as memory.
    pub counts_files: bool,
    /// Whether the sandbox measured what its owner expects.
    pub as_expected: bool,
    /// What was measured before the program was executed, and must hold now, too.
    pub measured: Measured,
}

/// What could not change by executing, and is cheap to look at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// Effective, permitted and inheritable capabilities.
    pub capabilities: [u64; 3],
    /// Whether privileges cannot be gained by executing.
    pub no_new_privileges: bool,
    /// Whether a seccomp filter is on.
    pub seccomp: bool,
}

impl Handover {
    /// As bytes, to be followed by the evidence.
    pub fn encode(&self) -> [u8; HEAD] {
        let measured = &self.measured;
        let flags =
            [self.as_expected, measured.no_new_privileges, measured.seccomp, self.counts_files, self.backlog_unbounded];
        let flags = flags.iter().rev().fold(0, |flags, &flag| flags << 1 | u64::from(flag));
        let mut words = [0; WORDS];
        words[0] = self.mark.0;
        words[1] = self.mark.1;
        words[2] = self.control as u64;
        words[3] = self.watch_memory.unwrap_or(NONE);
        words[4] = self.watch_cpu.unwrap_or(NONE);
        words[5] = flags;
        words[6..9].copy_from_slice(&measured.capabilities);
        words[9] = self.fd_count as u64;
        words[10] = self.open_files;
        words[11] = self.listener as u64;
        words[12] = self.locks as u64;
        words[13] = self.max_processes.unwrap_or(NONE);
        for (word, &fd) in words[14..].iter_mut().zip(&self.fds) {
            *word = fd as u64;
        }
        let mut bytes = [0; HEAD];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Reads it back; what follows is the evidence.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, evidence) = bytes.split_at_checked(HEAD)?;
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_ne_bytes(place.try_into().ok()?);
        }
        let some = |word: u64| (word != NONE).then_some(word);
        let mut fds = [0; MAX_FDS];
        for (fd, word) in fds.iter_mut().zip(&words[14..]) {
            *fd = *word as i32;
        }
        let handover = Self {
            mark: (words[0], words[1]),
            control: words[2] as i32,
            listener: words[11] as i32,
            locks: words[12] as i32,
            fds,
            fd_count: words[9] as usize,
            watch_memory: some(words[3]),
            watch_cpu: some(words[4]),
            max_processes: some(words[13]),
            backlog_unbounded: words[5] & 16 != 0,
            open_files: words[10],
            counts_files: words[5] & 8 != 0,
            as_expected: words[5] & 1 != 0,
            measured: Measured {
                capabilities: [words[6], words[7], words[8]],
                no_new_privileges: words[5] & 2 != 0,
                seccomp: words[5] & 4 != 0,
            },
        };
        (handover.fd_count <= MAX_FDS).then_some((handover, evidence))
    }
}
