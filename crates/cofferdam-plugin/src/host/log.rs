//! The log of the host: one JSON object in each line.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use cofferdam_audit::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// The maximum length of a text of a plugin in one line.
const MAX_TEXT: usize = 8192;
/// The maximum size of the fields of a plugin's own line as JSON.
const MAX_FIELDS: usize = 32 << 10;
/// The bytes of a line besides its fields.
const LINE: usize = 200;

/// The level of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// For the search of errors.
    Debug,
    /// Normal events.
    Info,
    /// Denials, restarts, refused input.
    Warn,
    /// Crashes and failures.
    Error,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }

    /// Returns the level that a plugin names. Anything else is `info`.
    pub fn of(name: &str) -> Self {
        match name {
            "debug" => Self::Debug,
            "warn" => Self::Warn,
            "error" => Self::Error,
            _ => Self::Info,
        }
    }
}

/// A receiver of lines. It must not block.
pub type Sink = Arc<dyn Fn(&Value) + Send + Sync>;

/// The bytes of a plugin's own lines that may come at once, and in each second. A plugin cannot push the lines of other
/// events out of the log quickly.
const BURST: f64 = (1 << 20) as f64;
const RATE: f64 = (64 << 10) as f64;

/// The room for a plugin's own lines.
struct Budget {
    bytes: f64,
    at: Instant,
    dropped: u64,
}

/// The log of one plugin.
#[derive(Clone)]
pub struct Log {
    sink: Sink,
    plugin: Arc<str>,
    budget: Arc<Mutex<Budget>>,
}

impl Log {
    /// Creates the log of a plugin.
    pub fn new(sink: Sink, plugin: &str) -> Self {
        let budget = Budget { bytes: BURST, at: Instant::now(), dropped: 0 };
        Self { sink, plugin: plugin.into(), budget: Arc::new(Mutex::new(budget)) }
    }

    /// Writes a line that the plugin causes as often as it wants. Lines beyond its rate are dropped and counted.
    pub fn write_own(&self, severity: Severity, event: &str, correlation: Option<&str>, mut fields: Value) {
        let mut size = fields.to_string().len();
        if size > MAX_FIELDS {
            fields = json!({"truncated": true});
            size = 0;
        }
        let dropped = {
            let mut budget = self.budget.lock();
            let now = Instant::now();
            budget.bytes = (budget.bytes + RATE * (now - budget.at).as_secs_f64()).min(BURST);
            budget.at = now;
            let cost = (size + LINE) as f64;
            if budget.bytes < cost {
                budget.dropped += 1;
                return;
            }
            budget.bytes -= cost;
            std::mem::take(&mut budget.dropped)
        };
        if dropped > 0 {
            self.write(Severity::Warn, "plugin.lines-dropped", None, json!({"count": dropped}));
        }
        self.write(severity, event, correlation, fields);
    }

    /// Writes a line. `fields` is an object; its members never replace those of the line.
    pub fn write(&self, severity: Severity, event: &str, correlation: Option<&str>, fields: Value) {
        let mut line = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        line.insert("time".to_owned(), json!(Timestamp::now()));
        line.insert("level".to_owned(), json!(severity.as_str()));
        line.insert("event".to_owned(), json!(event));
        line.insert("plugin".to_owned(), json!(&*self.plugin));
        if let Some(correlation) = correlation {
            line.insert("correlationId".to_owned(), json!(correlation));
        }
        (self.sink)(&Value::Object(line));
    }

    /// Writes lines that the plugin printed.
    pub fn printed(&self, text: &str) {
        for line in text.lines() {
            let line = line.get(..line.floor_char_boundary(MAX_TEXT)).unwrap_or_default();
            self.write_own(Severity::Info, "plugin.output", None, json!({"text": line}));
        }
    }
}

/// The last output of a plugin, bounded, for reports of crashes.
#[derive(Debug)]
pub struct Tail {
    bytes: VecDeque<u8>,
    capacity: usize,
    /// The beginning of a line whose end has not come yet.
    open: Vec<u8>,
}

impl Tail {
    /// Creates a tail of `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: VecDeque::new(), capacity, open: Vec::new() }
    }

    /// Adds output. Returns the lines that are complete now.
    pub fn add(&mut self, bytes: &[u8]) -> String {
        let recent = &bytes[bytes.len().saturating_sub(self.capacity)..];
        let excess = (self.bytes.len() + recent.len()).saturating_sub(self.capacity);
        self.bytes.drain(..excess);
        self.bytes.extend(recent);
        self.open.extend_from_slice(bytes);
        let whole = match self.open.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.open.len() > MAX_TEXT => self.open.len(),
            None => 0,
        };
        let lines: Vec<u8> = self.open.drain(..whole).collect();
        String::from_utf8_lossy(&lines).into_owned()
    }

    /// Returns what was added last.
    pub fn text(&self) -> String {
        let (front, back) = self.bytes.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_keeps_the_last_bytes_and_returns_whole_lines() {
        let mut tail = Tail::new(8);
        assert_eq!(tail.add(b"one\ntw"), "one\n");
        assert_eq!(tail.add(b"o\nthree"), "two\n");
        assert_eq!(tail.text(), "wo\nthree"[..].to_owned());
        assert_eq!(tail.add(&[b'x'; 20]), "");
        assert_eq!(tail.text(), "xxxxxxxx");
    }
}
