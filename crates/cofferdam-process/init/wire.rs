//! Decoding of requests and encoding of events, in the format of the owner's side (postcard), without allocations. A
//! test of the crate compares both sides for each message.

/// The owner's maximum size of a message.
pub const MAX_MESSAGE: usize = 4 << 20;
/// The maximum size of an inline body. Longer bodies come in a file in memory.
pub const MAX_INLINE: usize = 64 * 1024;
/// The first byte of a message with an inline body.
pub const INLINE: u8 = 0;
/// The first byte of a message with its body in the first descriptor.
pub const IN_MEMORY_FILE: u8 = 1;
/// The maximum size of an event other than Ready.
pub const MAX_EVENT: usize = 48;

/// A request of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Start a program.
    Start(Start<'a>),
    /// Signal all processes of an exec.
    Signal {
        /// The exec's number.
        exec: u64,
        /// True for SIGKILL, false for SIGTERM.
        kill: bool,
    },
}

/// A program to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start<'a> {
    /// The exec's number.
    pub exec: u64,
    /// The program and its arguments.
    pub argv: Texts<'a>,
    /// Alternating names and values.
    pub env: Texts<'a>,
    /// The working directory.
    pub directory: &'a [u8],
    /// The rows and columns of the terminal, if the program gets one.
    pub terminal: Option<(u16, u16)>,
    /// True to start only if the measurements are as expected.
    pub if_expected: bool,
    /// True if the sandbox ends with this exec.
    pub last: bool,
}

/// A sequence of encoded texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Texts<'a> {
    count: usize,
    encoded: &'a [u8],
}

impl<'a> Texts<'a> {
    /// Returns the number of texts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns at least the total size of all texts in bytes.
    pub fn size(&self) -> usize {
        self.encoded.len()
    }

    /// Returns an iterator over the texts.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader { rest: self.encoded };
        (0..self.count).map_while(move |_| reader.text())
    }
}

/// An event of an init, except Ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An exec runs.
    Started {
        /// The exec's number.
        exec: u64,
    },
    /// An exec could not be started.
    NotStarted {
        /// The exec's number.
        exec: u64,
        /// The details of the failure.
        failure: NotStarted,
    },
    /// An exec's program ended.
    Ended {
        /// The exec's number.
        exec: u64,
        /// The raw wait status.
        status: i32,
        /// The largest resident size in bytes.
        peak_bytes: u64,
        /// The used CPU time in microseconds.
        cpu_micros: u64,
        /// The number of processes that were refused since the sandbox was created.
        processes_refused: u64,
    },
    /// The sandbox exceeded a limit, and all its processes were killed.
    LimitPassed {
        /// True for memory, false for CPU time.
        memory: bool,
    },
}

/// A failed step and its system error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotStarted {
    /// The failed step.
    pub step: Step,
    /// The system's error number.
    pub errno: i32,
}

/// The steps to start a program, numbered as by the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The measurements are not as expected.
    Unexpected = 0,
    /// No process could be created.
    Fork = 1,
    /// The starting directory could not be entered.
    Directory = 2,
    /// Descriptors, limits or the terminal could not be set.
    Prepare = 3,
    /// The program could not be executed.
    Execute = 4,
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// Reads a number of at most `bits` bits, in groups of seven bits, the lowest first.
    fn number(&mut self, bits: u32) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..bits).step_by(7) {
            let byte = self.byte()?;
            let left = bits - shift;
            if left < 7 && byte >> left != 0 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number(64)?).ok()?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(text)
    }

    fn texts(&mut self, each: usize) -> Option<Texts<'a>> {
        let count = usize::try_from(self.number(64)?).ok()?.checked_mul(each)?;
        let before = self.rest;
        for _ in 0..count {
            self.text()?;
        }
        let encoded = before.get(..before.len() - self.rest.len())?;
        Some(Texts { count, encoded })
    }

    fn start(&mut self) -> Option<Start<'a>> {
        Some(Start {
            exec: self.number(64)?,
            argv: self.texts(1)?,
            env: self.texts(2)?,
            directory: self.text()?,
            terminal: if self.flag()? { Some((self.number(16)? as u16, self.number(16)? as u16)) } else { None },
            if_expected: self.flag()?,
            last: self.flag()?,
        })
    }
}

/// Decodes a request's body. Extra bytes are an error.
pub fn request(body: &[u8]) -> Option<Request<'_>> {
    let mut reader = Reader { rest: body };
    let request = match reader.number(32)? {
        0 => Request::Start(reader.start()?),
        1 => Request::Signal { exec: reader.number(64)?, kill: reader.flag()? },
        _ => return None,
    };
    reader.rest.is_empty().then_some(request)
}

/// A buffer for a short message.
pub struct Writer {
    bytes: [u8; MAX_EVENT],
    length: usize,
}

impl Writer {
    fn new() -> Self {
        Self { bytes: [0; MAX_EVENT], length: 0 }
    }

    /// Returns the written bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Appends a byte. The buffer is large enough for the longest event: seven fields, four of which have at most ten
    /// bytes.
    fn byte(mut self, byte: u8) -> Self {
        if let Some(slot) = self.bytes.get_mut(self.length) {
            *slot = byte;
            self.length += 1;
        }
        self
    }

    fn number(mut self, mut value: u64) -> Self {
        while value > 0x7f {
            self = self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8)
    }

    /// Appends a signed number: the sign goes into the lowest bit.
    fn signed(self, value: i32) -> Self {
        self.number(u64::from((value << 1 ^ value >> 31) as u32))
    }

    fn failure(self, failure: NotStarted) -> Self {
        self.byte(failure.step as u8).signed(failure.errno)
    }
}

impl Event {
    /// Encodes the event as a message.
    pub fn encode(&self) -> Writer {
        let message = Writer::new().byte(INLINE);
        match *self {
            Self::Started { exec } => message.byte(2).number(exec),
            Self::NotStarted { exec, failure } => message.byte(3).number(exec).failure(failure),
            Self::Ended { exec, status, peak_bytes, cpu_micros, processes_refused } => message
                .byte(4)
                .number(exec)
                .signed(status)
                .number(peak_bytes)
                .number(cpu_micros)
                .number(processes_refused),
            Self::LimitPassed { memory } => message.byte(5).byte(memory.into()),
        }
    }
}

/// Returns the bytes before and after the evidence in a Ready message.
pub fn ready(first: Option<Result<(), NotStarted>>) -> (&'static [u8], Writer) {
    let tail = match first {
        None => Writer::new().byte(0),
        Some(Ok(())) => Writer::new().byte(1).byte(0),
        Some(Err(failure)) => Writer::new().byte(1).byte(1).failure(failure),
    };
    (&[INLINE, 0], tail)
}
