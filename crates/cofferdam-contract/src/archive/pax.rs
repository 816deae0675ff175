//! Extended headers (pax): records of a length, a name and a value, for values that do not fit into an entry's header.
//! A value may have any bytes.

/// Values that replace those of the header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records {
    /// The path.
    pub path: Option<Vec<u8>>,
    /// The target of a link.
    pub target: Option<Vec<u8>>,
    /// The length.
    pub size: Option<u64>,
    /// The time of the last change, in seconds.
    pub modified: Option<i64>,
}

/// Encodes one record. Its length includes the digits of the length.
pub fn record(name: &str, value: &[u8]) -> Vec<u8> {
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length += 1;
    }
    let mut bytes = format!("{length} {name}=").into_bytes();
    bytes.extend_from_slice(value);
    bytes.push(b'\n');
    bytes
}

/// Parses records. Returns `None` if they are not well formed. Ignores unknown names, except those that would change
/// the meaning of the contents.
pub fn read(mut bytes: &[u8]) -> Option<Records> {
    let mut found = Records::default();
    while !bytes.is_empty() {
        let blank = bytes.iter().take(20).position(|&byte| byte == b' ')?;
        let length: usize = text(&bytes[..blank])?.parse().ok()?;
        let (record, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        let record = record.get(blank + 1..)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&record[..equals], &record[equals + 1..]);
        match name {
            b"path" => found.path = Some(value.to_vec()),
            b"linkpath" => found.target = Some(value.to_vec()),
            b"size" => found.size = Some(text(value)?.parse().ok()?),
            b"mtime" => found.modified = Some(text(value)?.split('.').next()?.parse().ok()?),
            name if name.starts_with(b"GNU.sparse") => return None,
            _ => {}
        }
    }
    Some(found)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_with_any_contents_are_read_back(path: Vec<u8>, target: Vec<u8>, size: u64) {
            let bytes = [record("path", &path), record("linkpath", &target), record("size", size.to_string().as_bytes())];
            let found = read(&bytes.concat()).unwrap();
            prop_assert_eq!(found, Records { path: Some(path), target: Some(target), size: Some(size), modified: None });
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }
    }

    #[test]
    fn lengths_count_themselves() {
        assert_eq!(record("path", b"a"), b"9 path=a\n");
        for (value, length) in [(90, 99), (91, 101)] {
            let record = record("path", &vec![b'a'; value]);
            assert_eq!(record.len(), length);
            assert!(record.starts_with(format!("{length} ").as_bytes()));
        }
        assert_eq!(read(b"99 path=a\n"), None);
        assert_eq!(read(b"16 GNU.sparse=1\n"), None);
    }
}
