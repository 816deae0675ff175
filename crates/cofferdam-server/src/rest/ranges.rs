//! The header `Range` with one range of bytes (RFC 9110). Pure.

/// A range as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestedRange {
    /// From a byte to another, or to the end.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

/// Parses a header. Returns `None` for one that a server ignores: another unit, several ranges, or a malformed one.
pub fn parse(header: &str) -> Option<RequestedRange> {
    let (first, last) = header.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (first.trim(), last.trim()) {
        ("", last) => Some(RequestedRange::Last(number(last)?)),
        (first, "") => Some(RequestedRange::From(number(first)?, None)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(RequestedRange::From(first, Some(last)))
        }
    }
}

impl RequestedRange {
    /// Returns the first and the last byte of a file of this size. Returns `None` if it has none of them.
    pub fn within(self, size: u64) -> Option<(u64, u64)> {
        let end = size.checked_sub(1)?;
        match self {
            Self::From(first, last) => (first <= end).then(|| (first, last.map_or(end, |last| last.min(end)))),
            Self::Last(0) => None,
            Self::Last(count) => Some((size - count.min(size), end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_standard() {
        for (header, size, expected) in [
            ("bytes=0-", 10, Some((0, 9))),
            ("bytes=2-4", 10, Some((2, 4))),
            ("bytes=2-400", 10, Some((2, 9))),
            ("bytes=-3", 10, Some((7, 9))),
            ("bytes=-30", 10, Some((0, 9))),
            ("bytes=-0", 10, None),
            ("bytes=10-", 10, None),
            ("bytes=0-0", 0, None),
            ("bytes=99999999999999999999999-", 10, None),
        ] {
            assert_eq!(parse(header).unwrap().within(size), expected, "{header}");
        }
        for ignored in ["", "lines=1-2", "bytes=", "bytes=-", "bytes=4-2", "bytes=0-1,3-4", "bytes=a-b", "bytes=+1-2"] {
            assert_eq!(parse(ignored), None, "{ignored}");
        }
    }
}
