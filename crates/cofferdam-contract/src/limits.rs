//! What a sandbox may use.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{serde_duration, serde_optional_duration};
use crate::{ByteSize, Cpus, Error, Result};

/// The most processes and threads a spec may ask for.
pub const MAX_PROCESSES: u32 = 1 << 20;

/// Upper bounds for one sandbox. `None` means the caller asks for no bound; a number is enforced or refused.
///
/// `cpu_time` and `wall_time` hold for each exec, the others for the sandbox as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// CPU seconds of one exec, all that it starts included. Default 30 s.
    ///
    /// Where several execs run in a sandbox at the same time, one is not charged with what is known to be another's; what
    /// nobody can tell apart is charged to each of them, and so is what earlier execs left running. A backend whose
    /// counter knows no execs charges each with all that the sandbox uses while it runs. An exec whose CPU time cannot be
    /// read any more is killed, and its exit is an error that says so.
    #[serde(with = "serde_optional_duration")]
    #[schemars(with = "Option<f64>")]
    pub cpu_time: Option<Duration>,
    /// Memory of all processes together, in bytes. Stored files come besides where `disk` bounds them. Default 512 MiB.
    pub memory: Option<ByteSize>,
    /// Bytes that may be stored in the sandbox's writable directories. Default 1 GiB. Containers give `/tmp` and `/dev/shm` a
    /// quarter and a sixteenth of it besides, which count as memory.
    pub disk: Option<ByteSize>,
    /// Real time one exec may take, unless the request sets its own timeout. Default 60 s.
    #[serde(with = "serde_duration")]
    #[schemars(with = "f64")]
    pub wall_time: Duration,
    /// Tasks alive at once: each process and each thread counts as one, as the kernel counts them. Default 256.
    pub pids: Option<u32>,
    /// Processes alive at once, each with as many threads as `pids` leaves it. Default: no bound of their own.
    ///
    /// A backend that cannot refuse a process while it allows a thread refuses a spec with this limit.
    pub processes: Option<u32>,
    /// Processor time per real time, in processors. Default: no bound.
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
    /// Refuses limits under which nothing could run.
    pub fn validate(&self) -> Result<()> {
        let bad = |message: &str| Err(Error::invalid("create", message));
        if self.cpu_time.is_some_and(|limit| limit.is_zero()) {
            return bad("a CPU time limit of 0 lets nothing run");
        }
        if self.wall_time.is_zero() {
            return bad("a wall time limit of 0 lets nothing run");
        }
        if self.memory.is_some_and(|limit| limit < ByteSize::from_mebibytes(1)) {
            return bad("a memory limit under 1 MiB lets nothing run");
        }
        if self.disk.is_some_and(|limit| limit.as_bytes() < 4096) {
            return bad("a disk limit under 4096 bytes holds no file");
        }
        if self.pids.is_some_and(|limit| limit == 0 || limit > MAX_PROCESSES) {
            return bad("the limit on processes and threads must be 1 to 1048576");
        }
        if self.processes.is_some_and(|limit| limit == 0 || limit > MAX_PROCESSES) {
            return bad("the limit on processes must be 1 to 1048576");
        }
        Ok(())
    }

    /// Returns the smaller of the limits on tasks and on processes, for backends whose processes have one thread.
    pub fn single_threaded_processes(&self) -> Option<u32> {
        self.pids.into_iter().chain(self.processes).min()
    }

    /// Refuses a limit on processes for a backend that counts tasks only.
    pub fn refuse_processes(&self, backend: &str) -> Result<()> {
        if self.processes.is_none() {
            return Ok(());
        }
        let what = format!("the {backend} backend cannot limit processes apart from threads");
        Err(Error::unsupported("create", what)
            .with_remedy("limit both together with --pids, which counts each thread as well"))
    }
}

/// Which limit ended or hindered a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// The memory limit.
    Memory,
    /// The CPU time limit.
    Cpu,
    /// The limit on processes.
    Pids,
    /// The limit on stored bytes.
    Disk,
}

impl LimitKind {
    /// The word used in options and messages.
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
