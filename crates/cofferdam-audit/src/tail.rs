//! The end of a segment: the last whole line, and what a crash left behind it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::failed;
use crate::line::{self, Checked, MAX_LINE};
use crate::{Error, Key, Result};

/// The most bytes without a line break that are taken for what a crash left.
const MOST_TORN: u64 = 1 << 20;

/// What a segment ends with.
#[derive(Debug)]
pub(crate) struct Ending {
    /// The last whole line.
    pub last: Checked,
    /// Where it ends, line break included.
    pub end: u64,
    /// What stands behind it.
    pub torn: Vec<u8>,
}

/// Reads the end of a segment. What no crash of a writer leaves is an error: nobody may append to that.
pub(crate) fn read(file: &File, size: u64, name: &str, key: Option<&Key>) -> Result<Ending> {
    let most = size.min(MOST_TORN + 2 * MAX_LINE as u64);
    let mut window = most.min(2 * MAX_LINE as u64);
    loop {
        let start = size - window;
        let mut bytes = vec![0; window as usize];
        file.read_exact_at(&mut bytes, start).map_err(failed("read", name))?;
        match split(&bytes, start == 0) {
            Some((line, end)) => {
                let damaged = |reason: line::Flaw| Error::Damaged {
                    file: name.to_owned(),
                    offset: start + line as u64,
                    reason: reason.to_string(),
                };
                let last = line::check(&bytes[line..end - 1], key).map_err(damaged)?;
                return Ok(Ending { last, end: start + end as u64, torn: bytes.split_off(end) });
            }
            None if window < most => window = most,
            None => {
                let reason = "no whole line stands near its end".to_owned();
                return Err(Error::Damaged { file: name.to_owned(), offset: start, reason });
            }
        }
    }
}

/// Where the last line that has a line break begins and ends, if that can be seen in these bytes.
fn split(bytes: &[u8], from_the_start: bool) -> Option<(usize, usize)> {
    let last_break = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let line = match bytes[..last_break].iter().rposition(|byte| *byte == b'\n') {
        Some(before) => before + 1,
        None if from_the_start => 0,
        None => return None,
    };
    Some((line, last_break + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_where_its_break_is() {
        for (bytes, start, expected) in [
            (&b"a\nbc\nd"[..], false, Some((2, 5))),
            (b"bc\nd", true, Some((0, 3))),
            (b"bc\nd", false, None),
            (b"bc", true, None),
            (b"", true, None),
            (b"\n", true, Some((0, 1))),
        ] {
            assert_eq!(split(bytes, start), expected, "{bytes:?}");
        }
    }
}
