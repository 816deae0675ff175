//! Extended records of tar, which hold what a layer has no field for.
//!
//! The `tar` library splits records at line feeds, which names may contain. So they are parsed here, by their lengths.

/// Maximum size of one extended header.
pub(crate) const MAX_HEADER: u64 = 64 << 10;
/// Maximum number of records in one extended header.
const MAX_RECORDS: usize = 64;

/// Appends a record.
pub(crate) fn push(into: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    into.extend(format!("{length} {key}=").bytes());
    into.extend(value);
    into.push(b'\n');
}

/// Returns keys and values, or the reason why the records are invalid.
pub(crate) fn parse(mut bytes: &[u8]) -> Result<Vec<(&str, &[u8])>, &'static str> {
    const MALFORMED: &str = "an extended header is malformed";
    let mut records: Vec<(&str, &[u8])> = Vec::new();
    while !bytes.is_empty() {
        if records.len() == MAX_RECORDS {
            return Err("an extended header has too many records");
        }
        let blank = bytes.iter().take(8).position(|byte| *byte == b' ').ok_or(MALFORMED)?;
        let digits = &bytes[..blank];
        if !digits.iter().all(u8::is_ascii_digit) {
            return Err(MALFORMED);
        }
        let length: usize = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or(MALFORMED)?;
        if length <= blank + 1 || length > bytes.len() || bytes[length - 1] != b'\n' {
            return Err(MALFORMED);
        }
        let record = &bytes[blank + 1..length - 1];
        let equals = record.iter().position(|byte| *byte == b'=').ok_or(MALFORMED)?;
        let key = std::str::from_utf8(&record[..equals]).map_err(|_| MALFORMED)?;
        if records.iter().any(|(other, _)| *other == key) {
            return Err("an extended header has a record twice");
        }
        records.push((key, &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_any_bytes() {
        let mut bytes = Vec::new();
        let long = vec![b'x'; 995];
        let records: [(&str, &[u8]); 4] = [("a", b"1"), ("b", b"line\nfeed=\xff"), ("c", b""), ("d", &long)];
        for (key, value) in records {
            push(&mut bytes, key, value);
        }
        assert_eq!(parse(&bytes).unwrap(), records);
        assert!(bytes.starts_with(b"6 a=1\n"));
    }

    #[test]
    fn malformed_records_are_refused() {
        for bytes in [
            "x",
            "5 a=1\n",
            "7 a=1\n",
            "6 a=12",
            "6 ab1\n",
            "0 a=1\n",
            "99999999999999999999 a=1\n",
            " a=1\n",
            "+6 a=\n",
        ] {
            assert!(parse(bytes.as_bytes()).is_err(), "{bytes}");
        }
        assert!(parse(b"6 a=1\n6 a=2\n").unwrap_err().contains("twice"));
        let mut flood = Vec::new();
        (0..100).for_each(|index| push(&mut flood, &format!("k{index}"), b""));
        assert!(parse(&flood).unwrap_err().contains("too many"));
    }
}
