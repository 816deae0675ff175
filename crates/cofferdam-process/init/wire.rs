//! Orders read and events written, in the format of the owner's side (postcard), without allocating. A test of the
//! crate compares both sides, message by message.

/// The owner's limit on a message.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Longer bodies come in a memory file.
pub const MAX_INLINE: usize = 64 * 1024;
/// The first byte of a message whose body follows.
pub const INLINE: u8 = 0;
/// The first byte of a message whose body is in the first descriptor.
pub const IN_MEMORY_FILE: u8 = 1;
/// Room for any event but Ready.
pub const EVENT_ROOM: usize = 48;

/// What the owner asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order<'a> {
    /// Start a program.
    Start(Start<'a>),
    /// Signal everything that an exec started.
    Signal {
        /// Which exec.
        exec: u64,
        /// SIGKILL rather than SIGTERM.
        kill: bool,
    },
}

/// A program to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start<'a> {
    /// The exec's number.
    pub exec: u64,
    /// Program and arguments.
    pub argv: Texts<'a>,
    /// Names and values, in turn.
    pub env: Texts<'a>,
    /// Where to start.
    pub directory: &'a [u8],
    /// Rows and columns of the terminal to make.
    pub terminal: Option<(u16, u16)>,
    /// Whether to start only in a sandbox that measured what was expected.
    pub if_expected: bool,
    /// Whether the sandbox ends with this exec.
    pub last: bool,
}

/// Texts one after the other, as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Texts<'a> {
    count: usize,
    encoded: &'a [u8],
}

impl<'a> Texts<'a> {
    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// At least as many bytes as all texts have together.
    pub fn size(&self) -> usize {
        self.encoded.len()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader { rest: self.encoded };
        (0..self.count).map_while(move |_| reader.text())
    }
}

/// What an init says, but for Ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An exec runs.
    Started {
        /// Which.
        exec: u64,
    },
    /// An exec could not be started.
    NotStarted {
        /// Which.
        exec: u64,
        /// What failed.
        failure: NotStarted,
    },
    /// An exec's program ended.
    Ended {
        /// Which.
        exec: u64,
        /// The raw wait status.
        status: i32,
        /// Bytes.
        peak_bytes: u64,
        /// CPU microseconds.
        cpu_micros: u64,
        /// Processes that the sandbox was refused since it began.
        processes_refused: u64,
    },
    /// A limit was passed, and everything killed.
    LimitPassed {
        /// Memory rather than CPU time.
        memory: bool,
    },
}

/// The step that failed, and the system's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotStarted {
    /// What failed.
    pub step: Step,
    /// The system's error number.
    pub errno: i32,
}

/// The steps of starting a program, numbered as the owner numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The sandbox did not measure what was expected.
    Unexpected = 0,
    /// No process could be made.
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

    /// A number of at most `bits` bits: seven in each byte, the lowest first.
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

/// Reads an order's body; what is left over is an error.
pub fn order(body: &[u8]) -> Option<Order<'_>> {
    let mut reader = Reader { rest: body };
    let order = match reader.number(32)? {
        0 => Order::Start(reader.start()?),
        1 => Order::Signal { exec: reader.number(64)?, kill: reader.flag()? },
        _ => return None,
    };
    reader.rest.is_empty().then_some(order)
}

/// A few bytes of a message.
pub struct Writer {
    bytes: [u8; EVENT_ROOM],
    length: usize,
}

impl Writer {
    fn new() -> Self {
        Self { bytes: [0; EVENT_ROOM], length: 0 }
    }

    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// The room is enough for the longest event: seven fields, of which four have ten bytes or less.
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

    /// Numbers that may be negative: the sign goes into the lowest bit.
    fn signed(self, value: i32) -> Self {
        self.number(u64::from((value << 1 ^ value >> 31) as u32))
    }

    fn failure(self, failure: NotStarted) -> Self {
        self.byte(failure.step as u8).signed(failure.errno)
    }
}

impl Event {
    /// As a message.
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

/// What stands before and after the evidence in the message that tells of a ready sandbox.
pub fn ready(first: Option<Result<(), NotStarted>>) -> (&'static [u8], Writer) {
    let tail = match first {
        None => Writer::new().byte(0),
        Some(Ok(())) => Writer::new().byte(1).byte(0),
        Some(Err(failure)) => Writer::new().byte(1).byte(1).failure(failure),
    };
    (&[INLINE, 0], tail)
}
