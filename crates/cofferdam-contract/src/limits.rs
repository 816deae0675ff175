//! Resource limits of a sandbox.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{serde_duration, serde_optional_duration};
use crate::{ByteSize, Cpus, Error, Result};

/// The greatest value of [`Limits::pids`] and [`Limits::processes`].
pub const MAX_PROCESSES: u32 = 1 << 20;

/// Upper bounds for one sandbox. `None` means no bound is requested. A backend enforces a value or rejects it.
///
/// `cpu_time` and `wall_time` count from the start of each exec. All others apply to the sandbox as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// CPU time that the sandbox may use from the start of an exec to its end, in seconds. Default: 30 s.
    ///
    /// All processes of the sandbox count, also those of other execs and those that earlier execs left running. Once
    /// they have used this much together since an exec started, that exec is killed, and its exit reports the limit.
    /// CPU time before the start of an exec does not count for it, but a backend may count the first exec from the
    /// creation of the sandbox. A backend that runs each exec on a thread of its own (wasm) counts the exec alone.
    ///
    /// An exec whose CPU time can no longer be read is killed, and its exit is an error that states this.
    #[serde(with = "serde_optional_duration")]
    #[schemars(with = "Option<f64>")]
    pub cpu_time: Option<Duration>,
    /// Memory of all processes together, in bytes. Stored files count separately if `disk` bounds them. Default: 512
    /// MiB.
    pub memory: Option<ByteSize>,
    /// Bytes stored in the sandbox's writable directories. Default: 1 GiB. Containers additionally give `/tmp` a
    /// quarter and `/dev/shm` a sixteenth of it; both count as memory.
    pub disk: Option<ByteSize>,
    /// Wall-clock time of one exec in seconds, unless the request sets its own timeout. Default: 60 s.
    #[serde(with = "serde_duration")]
    #[schemars(with = "f64")]
    pub wall_time: Duration,
    /// Number of live tasks. Each process and each thread counts as one, as in the kernel. Default: 256.
    pub pids: Option<u32>,
    /// Number of live processes. Their threads are bounded by `pids` only. Default: no separate bound.
    ///
    /// A backend that cannot refuse a process while it allows a thread rejects a spec with this limit.
    pub processes: Option<u32>,
    /// CPU share, in processors. Default: no bound.
    pub cpus: Option<Cpus>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu_time: Some(Duration::from_secs(30)),
            memory: Some(ByteSize::from_mebibytes(512)),
            disk: Some(ByteSize::from_mebibytes(1024)),
            wall_time: Duration::from_secs(60),
            pids: Some(256),
            processes: None,
            cpus: None,
        }
    }
}

impl Limits {
    /// Checks that every limit lets at least one program run. Fails with `InvalidInput` otherwise.
    pub fn validate(&self) -> Result<()> {
        let Self { cpu_time, wall_time, memory, disk, pids, processes, cpus: _ } = self;
        let refuse = |message: &str, remedy: &str| Err(Error::invalid("create", message).with_remedy(remedy));
        if cpu_time.is_some_and(|limit| limit.is_zero()) {
            return refuse("the CPU time limit must be greater than 0", "raise the limit on CPU time, or set none");
        }
        if wall_time.is_zero() {
            return refuse("the wall time limit must be greater than 0", "raise the limit on wall time");
        }
        if memory.is_some_and(|limit| limit < ByteSize::from_mebibytes(1)) {
            return refuse("the memory limit must be at least 1 MiB", "raise the memory limit, or set none");
        }
        if disk.is_some_and(|limit| limit.as_bytes() < 4096) {
            return refuse("the disk limit must be at least 4096 bytes", "raise the disk limit, or set none");
        }
        let is_outside = |limit: u32| limit == 0 || limit > MAX_PROCESSES;
        if pids.is_some_and(is_outside) {
            let message = "the limit on processes and threads must be between 1 and 1048576";
            return refuse(message, "set a limit in this range, or none");
        }
        if processes.is_some_and(is_outside) {
            let message = "the limit on processes must be between 1 and 1048576";
            return refuse(message, "set a limit in this range, or none");
        }
        Ok(())
    }

    /// Returns the smaller of the limits on tasks and on processes, for backends whose processes have a single thread.
    pub fn single_threaded_processes(&self) -> Option<u32> {
        self.pids.into_iter().chain(self.processes).min()
    }

    /// Rejects a limit on processes for a backend that can count only tasks. Fails with `Unsupported`.
    pub fn refuse_processes(&self, backend: &str) -> Result<()> {
        if self.processes.is_none() {
            return Ok(());
        }
        let what = format!("the {backend} backend cannot limit processes separately from threads");
        Err(Error::unsupported("create", what).with_remedy("use --pids to limit processes and threads together"))
    }
}

/// The kind of a limit that killed a process or refused an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// The memory limit.
    Memory,
    /// The CPU time limit.
    Cpu,
    /// The limit on processes and threads.
    Pids,
    /// The limit on stored bytes.
    Disk,
}

impl LimitKind {
    /// Returns the name used in options and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Disk => "disk",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Contract): The default limits are 30 s of CPU time, 512 MiB of memory, 1 GiB of disk, 60 s of wall
    /// time, and 256 processes and threads.
    #[test]
    fn defaults_are_those_of_the_requirements() {
        let text = serde_json::to_string(&Limits::default()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"cpu_time":30.0,"memory":536870912,"disk":1073741824,"wall_time":60.0,"#,
                r#""pids":256,"processes":null,"cpus":null}"#
            )
        );
    }

    /// Promise (Contract): A document with an unknown field is refused.
    #[test]
    fn unknown_fields_are_refused_and_text_units_read() {
        assert!(serde_json::from_str::<Limits>(r#"{"memroy":1}"#).is_err());
        let limits: Limits = serde_json::from_str(r#"{"memory":"64M","wall_time":"5s","cpu_time":null}"#).unwrap();
        assert_eq!(limits.memory, Some(ByteSize::from_mebibytes(64)));
        assert_eq!(limits.wall_time, Duration::from_secs(5));
        assert_eq!(limits.cpu_time, None);
        assert_eq!((limits.pids, limits.processes), (Some(256), None));
    }
}
