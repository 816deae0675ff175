//! The handoff from an isolated child to the program that it executes: a few numbers, and the evidence as it will be
//! sent. A pipe transports it, because one of the numbers is secret.

/// The maximum of descriptors that are sent with the evidence.
pub const MAX_FDS: usize = 8;
/// The maximum size of a handoff with its evidence: the capacity of the smallest pipe.
pub const MAX_BYTES: usize = 4096;
/// The number of bytes before the evidence.
const HEAD: usize = WORDS * 8;
const WORDS: usize = 14 + MAX_FDS;
/// The encoding of a missing number.
const NONE: u64 = u64::MAX;

/// The numbers of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Handoff {
    /// The key of the exec tags: the arguments of `prlimit64` that set one.
    pub tag: (u64, u64),
    /// The socket to the owner.
    pub control: i32,
    /// The listener of the filter, which reports calls that create objects without a memory limit.
    pub listener: i32,
    /// The list of file locks.
    pub locks: i32,
    /// The descriptors to send with the evidence, of which the first `fd_count` are valid.
    pub fds: [i32; MAX_FDS],
    /// The number of valid entries in `fds`.
    pub fd_count: usize,
    /// The memory limit in bytes, if the init enforces it.
    pub watch_memory: Option<u64>,
    /// The CPU time limit in microseconds, if the init enforces it.
    pub watch_cpu: Option<u64>,
    /// The maximum of guest processes, if their number is limited.
    pub max_processes: Option<u64>,
    /// True if the kernel has no setting for the length of a listening socket's queue.
    pub backlog_unbounded: bool,
    /// The maximum of open descriptors of each program. It is lower than the init's; see `set_open_files`.
    pub open_files: u64,
    /// True if the init counts files of the sandbox's tmpfs as memory.
    pub counts_files: bool,
    /// True if the measurements are those that the owner expects.
    pub matches_expected: bool,
    /// Measurements from before the program was executed, which must still hold.
    pub measured: Measured,
}

/// Settings that execution does not change and that are cheap to read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measured {
    /// Effective, permitted and inheritable capabilities.
    pub capabilities: [u64; 3],
    /// True if execution grants no privileges.
    pub no_new_privileges: bool,
    /// True if a seccomp filter is installed.
    pub seccomp: bool,
}

impl Handoff {
    /// Encodes the numbers. The evidence follows them.
    pub fn encode(&self) -> [u8; HEAD] {
        let measured = &self.measured;
        let flags = [
            self.matches_expected,
            measured.no_new_privileges,
            measured.seccomp,
            self.counts_files,
            self.backlog_unbounded,
        ];
        let flags = flags.iter().rev().fold(0, |flags, &flag| flags << 1 | u64::from(flag));
        let mut words = [0; WORDS];
        words[0] = self.tag.0;
        words[1] = self.tag.1;
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
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Decodes the numbers. Returns also the rest, which is the evidence.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, evidence) = bytes.split_at_checked(HEAD)?;
        let mut words = [0; WORDS];
        for (word, chunk) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().ok()?);
        }
        let some = |word: u64| (word != NONE).then_some(word);
        let mut fds = [0; MAX_FDS];
        for (fd, word) in fds.iter_mut().zip(&words[14..]) {
            *fd = *word as i32;
        }
        let handoff = Self {
            tag: (words[0], words[1]),
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
            matches_expected: words[5] & 1 != 0,
            measured: Measured {
                capabilities: [words[6], words[7], words[8]],
                no_new_privileges: words[5] & 2 != 0,
                seccomp: words[5] & 4 != 0,
            },
        };
        (handoff.fd_count <= MAX_FDS).then_some((handoff, evidence))
    }
}
