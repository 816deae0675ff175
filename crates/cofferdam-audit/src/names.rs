//! Names of the files in a log's directory. Everything else there is none of ours.

/// The last line that was appended, as far as the writer came.
pub(crate) const HEAD: &str = "head";
/// A head file that has not been given its name yet.
pub(crate) const NEW_HEAD: &str = "head.new";
/// Code and results, one file an execution.
pub(crate) const ARTIFACTS: &str = "artifacts";
/// Ends the name of a file that is not finished.
pub(crate) const NEW: &str = ".new";
/// Ends the name of set-aside bytes of which no line tells yet.
pub(crate) const PENDING: &str = ".torn.pending";

/// The name of a segment. The first is 1.
pub(crate) fn segment(number: u32) -> String {
    format!("audit-{number:08}.jsonl")
}

/// The number of a segment.
pub(crate) fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    let number = digits.parse().ok()?;
    (segment(number) == name && number > 0).then_some(number)
}

/// The name of what was set aside from a segment.
pub(crate) fn torn(segment: u32, offset: u64) -> String {
    format!("audit-{segment:08}-{offset}.torn")
}

/// Segment and offset of bytes that were set aside.
pub(crate) fn torn_place(name: &str) -> Option<(u32, u64)> {
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
        assert_eq!(torn_place(&torn(7, 0)), Some((7, 0)));
        for name in
            ["audit-7.jsonl", "audit-00000000.jsonl", "audit-0000000x.jsonl", "audit-00000001.jsonl.new", "head"]
        {
            assert_eq!(segment_number(name), None, "{name}");
            assert_eq!(torn_place(name), None, "{name}");
        }
    }
}
