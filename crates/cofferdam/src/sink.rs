//! Destinations of output: the streams of this process, one JSON document, or JSON lines.

use std::io;

use cofferdam::{Chunk, OutputEvent, OutputStream};
use serde_json::{Value, json};

use crate::encode::{Lines, into_text_or_base64};
use crate::host_stream::HostStream;
use crate::terminal::{TerminalFilter, safe_json};

/// A destination of output.
#[derive(Debug)]
pub enum Sink {
    /// Standard output and standard error of this process.
    Live(Live),
    /// A buffer that is printed at the end.
    Collect(Collected),
    /// JSON lines on standard output.
    Events(Events),
}

impl Sink {
    /// Forwards one event.
    pub async fn put(&mut self, event: OutputEvent) -> io::Result<()> {
        match self {
            Self::Live(live) => live.put(event).await,
            Self::Collect(collected) => {
                collected.put(event);
                Ok(())
            }
            Self::Events(events) => events.put(event).await,
        }
    }

    /// Forwards buffered output.
    pub async fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Live(live) => live.finish().await,
            Self::Collect(_) => Ok(()),
            Self::Events(events) => events.finish().await,
        }
    }
}

/// A stream of this process, with a filter if it is a terminal.
#[derive(Debug)]
struct Shown {
    stream: HostStream,
    filter: Option<TerminalFilter>,
}

impl Shown {
    fn new(stream: HostStream, raw: RawOutput) -> Self {
        let filter = (raw == RawOutput::No && stream.is_terminal()).then(TerminalFilter::default);
        Self { stream, filter }
    }

    async fn write(&mut self, data: &[u8]) -> io::Result<()> {
        match &mut self.filter {
            Some(filter) => self.stream.write_all(filter.feed(data).as_bytes()).await,
            None => self.stream.write_all(data).await,
        }
    }

    async fn finish(&mut self) -> io::Result<()> {
        match &mut self.filter {
            Some(filter) => self.stream.write_all(filter.finish().as_bytes()).await,
            None => Ok(()),
        }
    }
}

/// Treatment of control sequences on terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawOutput {
    /// Passed unchanged.
    Yes,
    /// Escaped.
    No,
}

/// Live output.
#[derive(Debug)]
pub struct Live {
    stdout: Shown,
    stderr: Shown,
    /// Bytes that were lost because this process wrote too slowly.
    pub lost: u64,
}

impl Live {
    /// Creates live output to the streams of this process.
    pub fn new(raw: RawOutput) -> Self {
        Self { stdout: Shown::new(HostStream::stdout(), raw), stderr: Shown::new(HostStream::stderr(), raw), lost: 0 }
    }

    async fn put(&mut self, event: OutputEvent) -> io::Result<()> {
        match event {
            OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data }) => self.stdout.write(&data).await,
            OutputEvent::Chunk(Chunk { stream: OutputStream::Stderr, data }) => self.stderr.write(&data).await,
            OutputEvent::Lost { bytes, .. } => {
                self.lost += bytes;
                Ok(())
            }
        }
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.stdout.finish().await?;
        self.stderr.finish().await
    }
}

/// Collected output.
#[derive(Debug, Default)]
pub struct Collected {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    lost: u64,
}

impl Collected {
    fn put(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data }) => self.stdout.extend_from_slice(&data),
            OutputEvent::Chunk(Chunk { stream: OutputStream::Stderr, data }) => self.stderr.extend_from_slice(&data),
            OutputEvent::Lost { bytes, .. } => self.lost += bytes,
        }
    }

    /// Converts to members of the JSON document.
    pub fn into_json(self) -> [(&'static str, Value); 3] {
        [
            ("stdout", into_text_or_base64(self.stdout)),
            ("stderr", into_text_or_base64(self.stderr)),
            ("lost_bytes", self.lost.into()),
        ]
    }
}

/// An encoder of output as JSON lines.
#[derive(Debug)]
pub struct Events {
    stream: HostStream,
    lines: Lines,
}

impl Events {
    /// Creates an encoder that writes to standard output.
    pub fn new() -> Self {
        Self { stream: HostStream::stdout(), lines: Lines::default() }
    }

    /// Writes one line.
    pub async fn line(&mut self, value: &Value) -> io::Result<()> {
        self.stream.write_all(format!("{}\n", safe_json(value.to_string())).as_bytes()).await
    }

    async fn put(&mut self, event: OutputEvent) -> io::Result<()> {
        match event {
            OutputEvent::Chunk(Chunk { stream, data }) => self.lines_of(stream, Some(&data)).await,
            OutputEvent::Lost { chunks, bytes } => {
                // A partial character before the gap does not continue after it.
                self.finish().await?;
                self.line(&json!({"type": "lost", "chunks": chunks, "bytes": bytes})).await
            }
        }
    }

    async fn finish(&mut self) -> io::Result<()> {
        self.lines_of(OutputStream::Stdout, None).await?;
        self.lines_of(OutputStream::Stderr, None).await
    }

    async fn lines_of(&mut self, stream: OutputStream, data: Option<&[u8]>) -> io::Result<()> {
        let body = match data {
            Some(data) => self.lines.feed(stream, data),
            None => self.lines.finish(stream),
        };
        let Some(body) = body else { return Ok(()) };
        let mut line = json!({"type": "output", "stream": stream});
        merge(&mut line, body);
        self.line(&line).await
    }
}

/// Adds the members of one JSON object to another.
pub fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
