//! `cofferdam plugins logs`: the log of the host of plugins.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cofferdam::{Error, ErrorKind, Result};
use serde_json::Value;

use super::host::{self, LOG};
use crate::args::LogsArgs;
use crate::report::{print, printed};
use crate::terminal::one_line;

/// The time between two looks at the end of the log.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Prints the last lines, and new ones if asked for.
pub fn logs(args: &LogsArgs) -> Result<u8> {
    let path = host::state(args.state.as_deref())?.join(LOG);
    let mut last = VecDeque::new();
    let mut end = 0;
    for path in [path.with_extension("jsonl.1"), path.clone()] {
        if !path.exists() {
            continue;
        }
        end = read(&path, 0, |line| {
            if is_of(line, args) {
                last.push_back(shown(line, args));
                if last.len() > args.lines {
                    last.pop_front();
                }
            }
        })?;
    }
    let mut status = printed(print(&last.iter().map(String::as_str).collect::<String>()), 0);
    let mut inode = inode(&path);
    while args.follow && status == 0 {
        std::thread::sleep(POLL_INTERVAL);
        let now = self::inode(&path);
        if now != inode {
            (inode, end) = (now, 0);
        }
        if now.is_some() {
            let mut new = String::new();
            end = read(&path, end, |line| {
                if is_of(line, args) {
                    new.push_str(&shown(line, args));
                }
            })?;
            status = printed(print(&new), 0);
        }
    }
    Ok(status)
}

fn inode(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|found| found.ino())
}

/// Calls `take` for each whole line from an offset on. Returns the offset after the last one.
fn read(path: &Path, from: u64, mut take: impl FnMut(&Value)) -> Result<u64> {
    let failed = |error| Error::new(ErrorKind::Io, "read the log", "cannot read the log").with_source(error);
    let mut file = File::open(path).map_err(failed)?;
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    let (mut reader, mut offset, mut line) = (BufReader::new(file), from, Vec::new());
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line).map_err(failed)?;
        if !line.ends_with(b"\n") {
            return Ok(offset);
        }
        offset += count as u64;
        if let Ok(value) = serde_json::from_slice(&line) {
            take(&value);
        }
    }
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
