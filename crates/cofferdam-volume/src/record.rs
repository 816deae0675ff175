//! The properties of a volume that its store records.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::bounds::{MAX_SIZE, MIN_SIZE};
use crate::error::{Result, VolumeError};

/// Version of the layout of a volume's directory.
const VERSION: u32 = 1;

/// The file with the properties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    /// Size in bytes. `None` for a directory, which has no limit.
    pub size: Option<u64>,
    /// Creation time in seconds since 1970.
    created: u64,
    /// True if a guest may have written the file system directly since it was created.
    pub was_disk: bool,
}

impl Record {
    pub fn new(size: Option<u64>) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { version: VERSION, size, created, was_disk: false }
    }

    /// Returns the record of a volume whose file system a guest may have written directly, or no longer.
    pub fn with_disk(&self, was_disk: bool) -> Self {
        Self { was_disk, ..self.clone() }
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses a record. Returns the problem if it is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let record: Self = serde_json::from_slice(bytes).map_err(|_| "its record is invalid")?;
        match record.size.map_or(Ok(()), check_size) {
            Ok(()) if record.version == VERSION => Ok(record),
            Ok(()) => Err("another version of this program created it"),
            Err(_) => Err("the size in its record is invalid"),
        }
    }

    pub fn created(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.created)).unwrap_or(UNIX_EPOCH)
    }
}

/// Refuses an invalid size.
pub(crate) fn check_size(bytes: u64) -> Result<()> {
    let is_valid = (MIN_SIZE..=MAX_SIZE).contains(&bytes) && bytes.is_multiple_of(4096);
    if is_valid { Ok(()) } else { Err(VolumeError::InvalidSize { bytes, min: MIN_SIZE, max: MAX_SIZE }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for size in [None, Some(64 << 20)] {
            let record = Record { was_disk: true, ..Record::new(size) };
            assert_eq!(Record::parse(&record.encode()).unwrap(), record);
        }
        let of = |size: &str, version: u32| {
            format!("{{\"version\":{version},\"size\":{size},\"created\":1,\"was_disk\":false}}")
        };
        assert!(Record::parse(of("16777216", 1).as_bytes()).is_ok());
        for bad in ["", "{}", &of("1", 1), &of("16777217", 1), &of("null", 2), &of("null", 1)[1..]] {
            assert!(Record::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
