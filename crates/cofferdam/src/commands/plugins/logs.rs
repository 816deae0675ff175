//! `cofferdam plugins logs`: the log of the host of plugins.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cofferdam::{Error, ErrorKind, Result};
use serde_json::Value;

use super::host::{self, LOG};
use crate::args::LogsArgs;
use crate::report::{print, printed};
use crate::terminal::one_line;

/// The interval at which the end of the log is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Prints the last lines, and new ones if asked for.
pub fn logs(args: &LogsArgs) -> Result<u8> {
    let path = host::state(args.state.as_deref())?.join(LOG);
    let mut last = VecDeque::new();
    let mut keep = |line: &Value| {
        if is_of(line, args) {
            last.push_back(shown(line, args));
            if last.len() > args.lines {
                last.pop_front();
            }
        }
    };
    // Opened before the older file is read, so that a rotation in between loses nothing.
    let mut log = Log::open(&path)?;
    if let Some(mut older) = Log::open(&path.with_extension("jsonl.1"))?
        && log.as_ref().is_none_or(|log| log.inode != older.inode)
    {
        older.read(&mut keep)?;
    }
    if let Some(log) = &mut log {
        log.read(&mut keep)?;
    }
    let mut status = printed(print(&last.iter().map(String::as_str).collect::<String>()), 0);
    while args.follow && status == 0 {
        std::thread::sleep(POLL_INTERVAL);
        let mut new = String::new();
        let mut add = |line: &Value| {
            if is_of(line, args) {
                new.push_str(&shown(line, args));
            }
        };
        // A rotated file has its last lines when the next one is there.
        let next = Log::open(&path)?;
        if let Some(log) = &mut log {
            log.read(&mut add)?;
        }
        if let Some(mut next) = next
            && log.as_ref().is_none_or(|log| log.inode != next.inode)
        {
            next.read(&mut add)?;
            log = Some(next);
        }
        status = printed(print(&new), 0);
    }
    Ok(status)
}

/// An open log. It remains readable when it is renamed or removed.
struct Log {
    file: BufReader<File>,
    inode: u64,
    /// The offset after the last whole line that was read.
    offset: u64,
}

impl Log {
    /// Opens a log, if it exists.
    fn open(path: &Path) -> Result<Option<Self>> {
        let opened = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.and_then(|file| Ok((file.metadata()?.ino(), file))),
        };
        let (inode, file) = opened.map_err(failed)?;
        Ok(Some(Self { file: BufReader::new(file), inode, offset: 0 }))
    }

    /// Calls `take` for each whole line that was not read before.
    fn read(&mut self, mut take: impl FnMut(&Value)) -> Result<()> {
        self.file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut line = Vec::new();
        loop {
            line.clear();
            let count = self.file.read_until(b'\n', &mut line).map_err(failed)?;
            if !line.ends_with(b"\n") {
                return Ok(());
            }
            self.offset += count as u64;
            if let Ok(value) = serde_json::from_slice(&line) {
                take(&value);
            }
        }
    }
}

fn failed(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "read the log", "cannot read the log").with_source(error)
}

fn is_of(line: &Value, args: &LogsArgs) -> bool {
    args.plugin.as_deref().is_none_or(|plugin| line["plugin"] == plugin)
}

fn shown(line: &Value, args: &LogsArgs) -> String {
    if args.json {
        return format!("{line}\n");
    }
    let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let mut rest = line.clone();
    if let Some(members) = rest.as_object_mut() {
        ["time", "level", "event", "plugin", "correlationId", "text", "message"].iter().for_each(|name| {
            members.remove(*name);
        });
        members.retain(|_, value| !value.is_null());
    }
    let rest = if rest.as_object().is_some_and(|rest| rest.is_empty()) { String::new() } else { rest.to_string() };
    let words = [
        text("time"),
        text("level"),
        text("plugin"),
        text("event"),
        text("correlationId"),
        text("message"),
        text("text"),
        rest,
    ];
    let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
    format!("{}\n", one_line(&words.join(" ")))
}
