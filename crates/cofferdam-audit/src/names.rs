//! Names of the files in a log's directory. Other files there are ignored.

use rustix::fd::AsFd;

use crate::{Result, files};

/// The head file, which names the last line.
pub(crate) const HEAD: &str = "head";
/// The temporary name of a new head file.
pub(crate) const NEW_HEAD: &str = "head.new";
/// The directory of artifacts, one file per execution.
pub(crate) const ARTIFACTS: &str = "artifacts";
/// The suffix of an unfinished file.
pub(crate) const NEW: &str = ".new";
/// The suffix of a file with set-aside bytes that no line records yet.
pub(crate) const PENDING: &str = ".torn.pending";

/// Returns the name of a segment. The first is 1.
pub(crate) fn segment(number: u32) -> String {
    format!("audit-{number:08}.jsonl")
}

/// Returns the number of a segment from its name.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    let number = digits.parse().ok()?;
    (segment(number) == name && number > 0).then_some(number)
}

/// Returns the numbers of the segments in a directory, sorted.
pub(crate) fn segments(directory: impl AsFd) -> Result<Vec<u32>> {
    let names = files::names(directory)?;
    let mut segments: Vec<u32> = names.iter().filter_map(|name| segment_number(name)).collect();
    segments.sort_unstable();
    Ok(segments)
}

/// Returns the name of the file with the bytes that were set aside from a segment.
pub(crate) fn torn(segment: u32, offset: u64) -> String {
    format!("audit-{segment:08}-{offset}.torn")
}

/// Returns segment and offset of set-aside bytes from their file name.
pub(crate) fn torn_position(name: &str) -> Option<(u32, u64)> {
    let (number, offset) = name.strip_prefix("audit-")?.strip_suffix(".torn")?.split_once('-')?;
    let (number, offset) = (number.parse().ok()?, offset.parse().ok()?);
    (torn(number, offset) == name).then_some((number, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_are_not_ours() {
        assert_eq!(segment_number(&segment(7)), Some(7));
        assert_eq!(segment_number(&segment(123_456_789)), Some(123_456_789));
        assert_eq!(torn_position(&torn(7, 0)), Some((7, 0)));
        for name in
            ["audit-7.jsonl", "audit-00000000.jsonl", "audit-0000000x.jsonl", "audit-00000001.jsonl.new", "head"]
        {
            assert_eq!(segment_number(name), None, "{name}");
            assert_eq!(torn_position(name), None, "{name}");
        }
    }
}
