//! Encoding.

use super::{Answer, Configure, Counts, Entry, Make, NONE, Probe, Request, Reseed, Root, Sink, Start, Texts};

/// Encodes one text.
pub fn put_text(sink: &mut impl Sink, text: &[u8]) {
    sink.put(&(text.len() as u32).to_le_bytes());
    sink.put(text);
}

fn put_texts(sink: &mut impl Sink, texts: &Texts<'_>) {
    sink.put(&(texts.count as u32).to_le_bytes());
    sink.put(texts.encoded);
}

fn put_number(sink: &mut impl Sink, number: Option<u64>) {
    sink.put(&number.unwrap_or(NONE).to_le_bytes());
}

/// Encodes whether there is a value. The caller encodes the value itself.
fn put_some<T>(sink: &mut impl Sink, value: Option<T>) -> Option<T> {
    sink.put(&[value.is_some().into()]);
    value
}

fn put_modified(sink: &mut impl Sink, modified: Option<(i64, u32)>) {
    if let Some((seconds, nanoseconds)) = put_some(sink, modified) {
        sink.put(&seconds.to_le_bytes());
        sink.put(&nanoseconds.to_le_bytes());
    }
}

fn put_path(sink: &mut impl Sink, root: Root, path: &[u8]) {
    sink.put(&[root as u8]);
    put_text(sink, path);
}

impl Probe<'_> {
    fn encode(&self, sink: &mut impl Sink) {
        let mut about = |kind: u8, path: &[u8]| {
            sink.put(&[kind]);
            put_text(sink, path);
        };
        match *self {
            Self::File { path, from } => {
                about(0, path);
                sink.put(&from.to_le_bytes());
            }
            Self::Open { path, flags, confined } => {
                about(1, path);
                sink.put(&flags.to_le_bytes());
                sink.put(&[confined.into()]);
            }
            Self::Stat { path } => about(2, path),
            Self::Space { path } => about(3, path),
            Self::Entries { path } => about(4, path),
            Self::Call { number, arguments } => {
                sink.put(&[5]);
                sink.put(&number.to_le_bytes());
                arguments.iter().for_each(|argument| sink.put(&argument.to_le_bytes()));
            }
            Self::Landlock => sink.put(&[6]),
            Self::Tag { key } => {
                sink.put(&[7]);
                sink.put(&key.0.to_le_bytes());
                sink.put(&key.1.to_le_bytes());
            }
            Self::Confinement => sink.put(&[8]),
            Self::Denial => sink.put(&[9]),
            Self::ConfiguredTag => sink.put(&[10]),
        }
    }
}

impl Configure<'_> {
    fn encode(&self, sink: &mut impl Sink) {
        put_text(sink, self.workspace);
        put_text(sink, self.code);
        put_texts(sink, &self.stores);
        sink.put(&[self.groups]);
        put_number(sink, self.watch_memory);
        put_number(sink, self.watch_cpu);
        if let Some((process, resource)) = put_some(sink, self.tag) {
            sink.put(&process.to_le_bytes());
            sink.put(&resource.to_le_bytes());
        }
        sink.put(&self.silence.to_le_bytes());
        put_text(sink, self.filter);
        put_text(sink, self.quotas);
        put_number(sink, self.max_processes);
        sink.put(&self.rights.to_le_bytes());
        sink.put(&self.scopes.to_le_bytes());
        put_texts(sink, &self.rules);
    }
}

impl Reseed<'_> {
    fn encode(&self, sink: &mut impl Sink) {
        sink.put(&self.silence.to_le_bytes());
        sink.put(&self.now.0.to_le_bytes());
        sink.put(&self.now.1.to_le_bytes());
        sink.put(self.entropy);
        sink.put(self.machine_id);
        sink.put(self.boot_id);
        put_text(sink, self.hostname);
    }
}

impl Start<'_> {
    fn encode(&self, sink: &mut impl Sink) {
        put_texts(sink, &self.argv);
        put_texts(sink, &self.env);
        put_text(sink, self.directory);
        if let Some((rows, columns)) = put_some(sink, self.terminal) {
            sink.put(&rows.to_le_bytes());
            sink.put(&columns.to_le_bytes());
        }
        sink.put(&[self.input.into()]);
    }
}

impl Counts {
    fn encode(&self, sink: &mut impl Sink) {
        let Self { cpu_micros, memory, peak, kills, refused, tasks, stored, full } = *self;
        for number in [cpu_micros, memory, peak, kills, refused, tasks, stored, full] {
            put_number(sink, number);
        }
    }
}

impl Entry<'_> {
    /// Returns the encoded length.
    pub fn encoded_len(&self) -> usize {
        44 + self.name.len() + self.target.len()
    }

    /// Encodes the entry.
    pub fn encode(&self, sink: &mut impl Sink) {
        sink.put(&self.mode.to_le_bytes());
        sink.put(&self.links.to_le_bytes());
        sink.put(&self.inode.to_le_bytes());
        sink.put(&self.size.to_le_bytes());
        sink.put(&self.modified.0.to_le_bytes());
        sink.put(&self.modified.1.to_le_bytes());
        put_text(sink, self.name);
        put_text(sink, self.target);
    }
}

impl Request<'_> {
    /// Returns the kind of the frame.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Configure(_) => 2,
            Self::Probe(_) => 3,
            Self::Start(_) => 4,
            Self::Signal { .. } => 5,
            Self::Input { .. } => 6,
            Self::InputEnd => 7,
            Self::Resize { .. } => 8,
            Self::Read { .. } => 9,
            Self::More { .. } => 10,
            Self::Write { .. } => 11,
            Self::Data { .. } => 12,
            Self::Finish { .. } => 13,
            Self::Forget => 14,
            Self::List { .. } => 15,
            Self::Remove { .. } => 16,
            Self::Make { .. } => 17,
            Self::Adjust { .. } => 18,
            Self::Count => 19,
            Self::Freeze { .. } => 20,
            Self::Ping => 21,
            Self::End => 22,
            Self::Quiesce => 23,
            Self::Release => 24,
            Self::Reseed(_) => 25,
            Self::Listen { .. } => 26,
            Self::Response { .. } => 27,
            Self::Accept { .. } => 28,
            Self::Connect { .. } => 29,
            Self::Watch { .. } => 30,
            Self::Mark { .. } => 31,
            Self::Unmark { .. } => 32,
            Self::Rename { .. } => 33,
        }
    }

    /// Encodes the body.
    pub fn encode(&self, sink: &mut impl Sink) {
        match *self {
            Self::Hello { magic, version } => {
                sink.put(&magic.to_le_bytes());
                sink.put(&version.to_le_bytes());
            }
            Self::Configure(ref it) => it.encode(sink),
            Self::Probe(ref it) => it.encode(sink),
            Self::Start(ref it) => it.encode(sink),
            Self::Reseed(ref it) => it.encode(sink),
            Self::Signal { kill: on } | Self::Freeze { on } => sink.put(&[on.into()]),
            Self::Input { data } | Self::Data { data } | Self::Listen { ports: data } => sink.put(data),
            Self::Response { from, data } => {
                sink.put(from);
                sink.put(data);
            }
            Self::Accept { window } | Self::Watch { window } => sink.put(&window.to_le_bytes()),
            Self::Mark { watch, path, mask, list } => {
                sink.put(&watch.to_le_bytes());
                put_text(sink, path);
                sink.put(&mask.to_le_bytes());
                sink.put(&[list.into()]);
            }
            Self::Unmark { wd } => sink.put(&wd.to_le_bytes()),
            Self::Connect { port, window } => {
                sink.put(&port.to_le_bytes());
                sink.put(&window.to_le_bytes());
            }
            Self::Resize { rows, columns } => {
                sink.put(&rows.to_le_bytes());
                sink.put(&columns.to_le_bytes());
            }
            Self::Read { root, path, window } => {
                put_path(sink, root, path);
                sink.put(&window.to_le_bytes());
            }
            Self::More { bytes } => sink.put(&bytes.to_le_bytes()),
            Self::Write { root, path, strict } => {
                put_path(sink, root, path);
                sink.put(&[strict.into()]);
            }
            Self::Finish { mode, modified } => {
                sink.put(&mode.to_le_bytes());
                put_modified(sink, modified);
            }
            Self::List { root, path } | Self::Remove { root, path } => put_path(sink, root, path),
            Self::Rename { root, path, to } => {
                put_path(sink, root, path);
                put_text(sink, to);
            }
            Self::Make { root, path, make } => {
                put_path(sink, root, path);
                match make {
                    Make::Directory { mode } => {
                        sink.put(&[0]);
                        sink.put(&mode.to_le_bytes());
                    }
                    Make::Symlink { target } => {
                        sink.put(&[1]);
                        put_text(sink, target);
                    }
                    Make::Link { target } => {
                        sink.put(&[2]);
                        put_text(sink, target);
                    }
                }
            }
            Self::Adjust { root, path, mode, modified } => {
                put_path(sink, root, path);
                if let Some(mode) = put_some(sink, mode) {
                    sink.put(&mode.to_le_bytes());
                }
                put_modified(sink, modified);
            }
            Self::InputEnd | Self::Forget | Self::Count | Self::Ping | Self::End | Self::Quiesce | Self::Release => {}
        }
    }
}

impl Answer<'_> {
    /// Returns the kind of the frame.
    pub fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Done { .. } => 2,
            Self::Probed { .. } => 3,
            Self::Started { .. } => 4,
            Self::NotStarted { .. } => 5,
            Self::Output { .. } => 6,
            Self::Ended { .. } => 7,
            Self::Credit { .. } => 8,
            Self::LimitPassed { .. } => 9,
            Self::Opened { .. } => 10,
            Self::Data { .. } => 11,
            Self::Entries { .. } => 12,
            Self::Counted { .. } => 13,
            Self::Pong => 14,
            Self::Quiesced => 15,
            Self::Reseeded { .. } => 16,
            Self::Query { .. } => 17,
            Self::Connected { .. } => 18,
            Self::DataEnd => 19,
            Self::Marked { .. } => 20,
            Self::Requested { .. } => 21,
        }
    }

    /// Encodes the body.
    pub fn encode(&self, sink: &mut impl Sink) {
        match *self {
            Self::Hello { magic, version, pid } => {
                [magic, version, pid].iter().for_each(|number| sink.put(&number.to_le_bytes()));
            }
            Self::Done { errno, kind } => {
                sink.put(&errno.to_le_bytes());
                sink.put(&kind.to_le_bytes());
            }
            Self::Probed { errno, value, data } => {
                sink.put(&errno.to_le_bytes());
                sink.put(&value.to_le_bytes());
                sink.put(data);
            }
            Self::Started { ref counts } | Self::Counted { ref counts } => counts.encode(sink),
            Self::NotStarted { failure } => {
                sink.put(&[failure.step as u8]);
                sink.put(&failure.errno.to_le_bytes());
            }
            Self::Output { second, data } => {
                sink.put(&[second.into()]);
                sink.put(data);
            }
            Self::Ended { status, peak_bytes, cpu_micros, ref counts } => {
                sink.put(&status.to_le_bytes());
                sink.put(&peak_bytes.to_le_bytes());
                sink.put(&cpu_micros.to_le_bytes());
                counts.encode(sink);
            }
            Self::Credit { bytes } => sink.put(&bytes.to_le_bytes()),
            Self::LimitPassed { memory } => sink.put(&[memory.into()]),
            Self::Opened { size, mode } => {
                sink.put(&size.to_le_bytes());
                sink.put(&mode.to_le_bytes());
            }
            Self::Data { data } => sink.put(data),
            Self::Entries { entries } => sink.put(entries),
            Self::Reseeded { version, execs } => {
                sink.put(&version.to_le_bytes());
                sink.put(execs);
            }
            Self::Query { from, data } => {
                sink.put(from);
                sink.put(data);
            }
            Self::Connected { address, port } | Self::Requested { address, port } => {
                sink.put(&address);
                sink.put(&port.to_le_bytes());
            }
            Self::Marked { wd } => sink.put(&wd.to_le_bytes()),
            Self::Pong | Self::Quiesced | Self::DataEnd => {}
        }
    }
}
