//! The record of a quiesced guest. A host needs it for a guest that a former host started.
//!
//! A record travels with the guest, in files that another program may have changed. So it is small, its numbers have
//! bounds, and reading it returns a consistent record or an error.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use cofferdam_contract::ExecId;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::wire::{MAX_EXECS, VERSION};

/// The maximum time in a record.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// The maximum id in a record. No connection uses as many.
const MAX_IDS: u64 = 1 << 56;

/// An exec whose program ran when its guest was quiesced. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunningExec {
    pub id: u64,
    /// Real time that counts against its limit so far.
    pub elapsed: u64,
    /// The limit of wall time.
    #[serde(rename = "wall")]
    pub wall_time: u64,
    /// The limit of CPU time.
    pub cpu: Option<u64>,
    /// The count of the control group at its start.
    pub cpu_base: Option<u64>,
    /// True if it has a directory for its script.
    pub script: bool,
    /// Time until it is killed with everything that it started, if it was asked to stop.
    pub kill_in: Option<u64>,
}

/// The state that another host needs to reattach to a quiesced guest. Deserializing checks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    version: u32,
    last: u64,
    execs: Vec<RunningExec>,
}

impl Record {
    pub(crate) fn new(last: u64, execs: Vec<RunningExec>) -> Self {
        Self { version: VERSION, last, execs }
    }

    /// Returns the version of the protocol that the agent speaks.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the ids of the running execs.
    #[must_use]
    pub fn running(&self) -> Vec<ExecId> {
        self.execs.iter().map(|exec| ExecId(exec.id)).collect()
    }

    /// Returns the highest id in use so far.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn execs(&self) -> &[RunningExec] {
        &self.execs
    }

    fn check(self) -> Result<Self, &'static str> {
        let ids: BTreeSet<u64> = self.execs.iter().map(|exec| exec.id).collect();
        if self.last > MAX_IDS {
            return Err("the last id exceeds the limit");
        }
        if ids.len() != self.execs.len() || ids.contains(&0) || ids.last().is_some_and(|id| *id > self.last) {
            return Err("execs have invalid or duplicate ids");
        }
        let max = MAX_TIME.as_micros() as u64;
        let times = self
            .execs
            .iter()
            .flat_map(|exec| [Some(exec.elapsed), Some(exec.wall_time), exec.cpu, exec.kill_in].into_iter().flatten());
        if times.into_iter().any(|micros| micros > max) {
            return Err("times exceed the limit");
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for Record {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Unchecked {
            version: u32,
            last: u64,
            #[serde(deserialize_with = "bounded")]
            execs: Vec<RunningExec>,
        }
        let Unchecked { version, last, execs } = Unchecked::deserialize(deserializer)?;
        Self { version, last, execs }.check().map_err(D::Error::custom)
    }
}

/// Deserializes at most as many execs as an agent can have, whatever length the input claims.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RunningExec>, D::Error> {
    struct Bounded;

    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<RunningExec>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_EXECS} execs")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut execs = Vec::new();
            while let Some(exec) = from.next_element()? {
                if execs.len() == MAX_EXECS {
                    return Err(A::Error::invalid_length(MAX_EXECS + 1, &self));
                }
                execs.push(exec);
            }
            Ok(execs)
        }
    }

    deserializer.deserialize_seq(Bounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(id: u64) -> RunningExec {
        RunningExec {
            id,
            elapsed: 1,
            wall_time: 2,
            cpu: Some(3),
            cpu_base: Some(u64::MAX),
            script: true,
            kill_in: Some(4),
        }
    }

    fn read(record: &Record) -> Result<Record, String> {
        let text = serde_json::to_string(record).unwrap();
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_record_is_read_back() {
        let record = Record::new(9, vec![exec(9), exec(1)]);
        assert_eq!(read(&record).unwrap(), record);
        assert_eq!(read(&Record::new(0, Vec::new())).unwrap().version(), VERSION);
    }

    /// Promise (Containers): Impossible records of a quiesced guest are refused.
    #[test]
    fn records_that_cannot_be_are_refused() {
        let year = Duration::from_secs(366 * 24 * 3600).as_micros() as u64;
        for (what, record) in [
            ("last id", Record::new(u64::MAX, Vec::new())),
            ("duplicate ids", Record::new(5, vec![exec(6)])),
            ("duplicate ids", Record::new(5, vec![exec(0)])),
            ("duplicate ids", Record::new(5, vec![exec(2), exec(2)])),
            ("times", Record::new(5, vec![RunningExec { wall_time: 11 * year, ..exec(2) }])),
            ("times", Record::new(5, vec![RunningExec { kill_in: Some(u64::MAX), ..exec(2) }])),
            ("at most 512", Record::new(1000, (1..=513).map(exec).collect())),
        ] {
            let error = read(&record).unwrap_err();
            assert!(error.contains(what), "{what}: {error}");
        }
        let odd = r#"{"version":1,"last":1,"execs":[],"more":1}"#;
        assert!(serde_json::from_str::<Record>(odd).is_err());
    }
}
