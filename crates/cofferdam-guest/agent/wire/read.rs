//! Decoding. It trusts no byte and does not panic.

use super::{
    Answer, Configure, Counts, Entry, Frame, Make, NONE, NotStarted, Probe, Request, Reseed, Root, Start, Step, Texts,
};

/// A decoder. Its methods return `None` if the bytes end too early or are malformed.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a decoder of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of remaining bytes.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the next bytes without a copy, since some are secret.
    fn chunk<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(bytes)
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.chunk().copied()
    }

    /// Reads the next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    /// Reads the next number.
    pub fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    /// Reads the next number.
    pub fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.bytes().map(i32::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.bytes().map(i64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    fn number(&mut self) -> Option<Option<u64>> {
        self.u64().map(|value| (value != NONE).then_some(value))
    }

    /// Reads the next text.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(text)
    }

    /// Reads texts whose number must be a multiple of `each`.
    fn texts(&mut self, each: usize) -> Option<Texts<'a>> {
        let count = self.u32()? as usize;
        if !count.is_multiple_of(each) {
            return None;
        }
        let before = self.rest;
        for _ in 0..count {
            self.text()?;
        }
        let encoded = before.get(..before.len() - self.rest.len())?;
        Some(Texts::new(count, encoded))
    }

    fn all(&mut self) -> Option<&'a [u8]> {
        Some(core::mem::take(&mut self.rest))
    }

    fn root(&mut self) -> Option<Root> {
        match self.u8()? {
            0 => Some(Root::Workspace),
            1 => Some(Root::Code),
            _ => None,
        }
    }

    fn modified(&mut self) -> Option<Option<(i64, u32)>> {
        self.option(|it| Some((it.i64()?, it.u32()?)))
    }

    fn counts(&mut self) -> Option<Counts> {
        Some(Counts {
            cpu_micros: self.number()?,
            memory: self.number()?,
            peak: self.number()?,
            kills: self.number()?,
            refused: self.number()?,
            tasks: self.number()?,
            stored: self.number()?,
            full: self.number()?,
        })
    }

    /// Reads one entry of a directory.
    pub fn entry(&mut self) -> Option<Entry<'a>> {
        Some(Entry {
            mode: self.u32()?,
            links: self.u32()?,
            inode: self.u64()?,
            size: self.u64()?,
            modified: (self.i64()?, self.u32()?),
            name: self.text()?,
            target: self.text()?,
        })
    }

    fn probe(&mut self) -> Option<Probe<'a>> {
        Some(match self.u8()? {
            0 => Probe::File { path: self.text()?, from: self.u32()? },
            1 => Probe::Open { path: self.text()?, flags: self.u32()?, confined: self.flag()? },
            2 => Probe::Stat { path: self.text()? },
            3 => Probe::Space { path: self.text()? },
            4 => Probe::Entries { path: self.text()? },
            5 => {
                let number = self.u64()?;
                let mut arguments = [0; 5];
                for slot in &mut arguments {
                    *slot = self.u64()?;
                }
                Probe::Call { number, arguments }
            }
            6 => Probe::Landlock,
            7 => Probe::Tag { key: (self.u64()?, self.u64()?) },
            8 => Probe::Confinement,
            9 => Probe::Denial,
            10 => Probe::ConfiguredTag,
            _ => return None,
        })
    }

    fn configure(&mut self) -> Option<Configure<'a>> {
        Some(Configure {
            workspace: self.text()?,
            code: self.text()?,
            stores: self.texts(1)?,
            groups: self.u8()?,
            watch_memory: self.number()?,
            watch_cpu: self.number()?,
            tag: self.option(|it| Some((it.u64()?, it.u64()?)))?,
            silence: self.u64()?,
            filter: self.text()?,
            quotas: self.text()?,
            max_processes: self.number()?,
            rights: self.u64()?,
            scopes: self.u64()?,
            rules: self.texts(2)?,
        })
    }

    fn reseed(&mut self) -> Option<Reseed<'a>> {
        Some(Reseed {
            silence: self.u64()?,
            now: (self.u64()?, self.u32()?),
            entropy: self.chunk()?,
            machine_id: self.chunk()?,
            boot_id: self.chunk()?,
            hostname: self.text()?,
        })
    }

    fn start(&mut self, exec: u64) -> Option<Start<'a>> {
        Some(Start {
            exec,
            argv: self.texts(1)?,
            env: self.texts(2)?,
            directory: self.text()?,
            terminal: self.option(|it| Some((it.u16()?, it.u16()?)))?,
            input: self.flag()?,
        })
    }

    fn failure(&mut self) -> Option<NotStarted> {
        let step = match self.u8()? {
            1 => Step::Fork,
            2 => Step::Directory,
            3 => Step::Prepare,
            4 => Step::Execute,
            _ => return None,
        };
        Some(NotStarted { step, errno: self.i32()? })
    }

    fn make(&mut self) -> Option<Make<'a>> {
        Some(match self.u8()? {
            0 => Make::Directory { mode: self.u32()? },
            1 => Make::Symlink { target: self.text()? },
            2 => Make::Link { target: self.text()? },
            _ => return None,
        })
    }
}

impl<'a> Request<'a> {
    /// Decodes a frame. Returns `None` if bytes are left over.
    pub fn decode(frame: &Frame<'a>) -> Option<Self> {
        let mut reader = Reader::new(frame.body);
        let it = &mut reader;
        let request = match frame.kind {
            1 => Self::Hello { magic: it.u32()?, version: it.u32()? },
            2 => Self::Configure(it.configure()?),
            3 => Self::Probe(it.probe()?),
            4 => Self::Start(it.start(frame.id)?),
            5 => Self::Signal { kill: it.flag()? },
            6 => Self::Input { data: it.all()? },
            7 => Self::InputEnd,
            8 => Self::Resize { rows: it.u16()?, columns: it.u16()? },
            9 => Self::Read { root: it.root()?, path: it.text()?, window: it.u32()? },
            10 => Self::More { bytes: it.u32()? },
            11 => Self::Write { root: it.root()?, path: it.text()?, strict: it.flag()? },
            12 => Self::Data { data: it.all()? },
            13 => Self::Finish { mode: it.u32()?, modified: it.modified()? },
            14 => Self::Forget,
            15 => Self::List { root: it.root()?, path: it.text()? },
            16 => Self::Remove { root: it.root()?, path: it.text()? },
            17 => Self::Make { root: it.root()?, path: it.text()?, make: it.make()? },
            18 => Self::Adjust {
                root: it.root()?,
                path: it.text()?,
                mode: it.option(Reader::u32)?,
                modified: it.modified()?,
            },
            19 => Self::Count,
            20 => Self::Freeze { on: it.flag()? },
            21 => Self::Ping,
            22 => Self::End,
            23 => Self::Quiesce,
            24 => Self::Release,
            25 => Self::Reseed(it.reseed()?),
            26 => Self::Listen { ports: it.all()? },
            27 => Self::Response { from: it.chunk()?, data: it.all()? },
            28 => Self::Accept { window: it.u32()? },
            29 => Self::Connect { port: it.u16()?, window: it.u32()? },
            30 => Self::Watch { window: it.u32()? },
            31 => Self::Mark { watch: it.u64()?, path: it.text()?, mask: it.u32()?, list: it.flag()? },
            32 => Self::Unmark { wd: it.i32()? },
            33 => Self::Rename { root: it.root()?, path: it.text()?, to: it.text()? },
            _ => return None,
        };
        reader.rest.is_empty().then_some(request)
    }
}

impl<'a> Answer<'a> {
    /// Decodes a frame. Returns `None` if bytes are left over.
    pub fn decode(frame: &Frame<'a>) -> Option<Self> {
        let mut reader = Reader::new(frame.body);
        let it = &mut reader;
        let answer = match frame.kind {
            1 => Self::Hello { magic: it.u32()?, version: it.u32()?, pid: it.u32()? },
            2 => Self::Done { errno: it.i32()?, kind: it.u32()? },
            3 => Self::Probed { errno: it.i32()?, value: it.u64()?, data: it.all()? },
            4 => Self::Started { counts: it.counts()? },
            5 => Self::NotStarted { failure: it.failure()? },
            6 => Self::Output { second: it.flag()?, data: it.all()? },
            7 => Self::Ended { status: it.i32()?, peak_bytes: it.u64()?, cpu_micros: it.u64()?, counts: it.counts()? },
            8 => Self::Credit { bytes: it.u32()? },
            9 => Self::LimitPassed { memory: it.flag()? },
            10 => Self::Opened { size: it.u64()?, mode: it.u32()? },
            11 => Self::Data { data: it.all()? },
            12 => Self::Entries { entries: it.all()? },
            13 => Self::Counted { counts: it.counts()? },
            14 => Self::Pong,
            15 => Self::Quiesced,
            16 => Self::Reseeded { version: it.u32()?, execs: it.all()? },
            17 => Self::Query { from: it.chunk()?, data: it.all()? },
            18 => Self::Connected { address: it.bytes()?, port: it.u16()? },
            19 => Self::DataEnd,
            20 => Self::Marked { wd: it.i32()? },
            21 => Self::Requested { address: it.bytes()?, port: it.u16()? },
            _ => return None,
        };
        reader.rest.is_empty().then_some(answer)
    }
}
