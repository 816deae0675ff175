//! The use and the limits of a group, read back from the kernel.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use parking_lot::Mutex;

use super::{Version, open, read_again};

/// The maximum size of a line with a process id.
const MAX_NUMBER: usize = 11;

/// The use of a group, read through its directories.
#[derive(Debug)]
pub struct Stats {
    version: Version,
    /// The directory in each hierarchy, and the controllers there.
    dirs: Vec<(OwnedFd, Vec<String>)>,
    /// Files that were read before, by name: reading a file again costs a fraction of opening it. There are as many as
    /// this type has methods.
    files: Mutex<Vec<(&'static str, OwnedFd)>>,
}

impl Stats {
    /// Creates the reader of these directories, as [`Group::dirs`](super::Group::dirs) returned them, in hierarchies as
    /// [`Owner::layout`](super::Owner::layout) returned them.
    pub fn new(version: Version, dirs: Vec<OwnedFd>, layout: &[Vec<String>]) -> Self {
        Self { version, dirs: dirs.into_iter().zip(layout.iter().cloned()).collect(), files: Mutex::default() }
    }

    fn read(&self, v1: &'static str, v2: &'static str) -> Option<String> {
        let name = match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        };
        let mut files = self.files.lock();
        if let Some((_, file)) = files.iter().find(|(known, _)| *known == name) {
            return read_again(file.as_fd()).ok();
        }
        let file = self.open(name).ok()?;
        let text = read_again(file.as_fd()).ok();
        files.push((name, file));
        text
    }

    fn open(&self, name: &str) -> io::Result<OwnedFd> {
        let (dir, _) = match self.version {
            Version::V1 => self.dirs.iter().find(|(_, controllers)| has_file(controllers, name)),
            Version::V2 => self.dirs.first(),
        }
        .ok_or(io::ErrorKind::NotFound)?;
        open(dir.as_fd(), name)
    }

    fn number(&self, v1: &'static str, v2: &'static str) -> Option<u64> {
        self.read(v1, v2)?.trim().parse().ok()
    }

    /// Returns the used CPU time in microseconds.
    pub fn cpu_micros(&self) -> Option<u64> {
        match self.version {
            Version::V1 => Some(self.number("cpuacct.usage", "")? / 1000),
            Version::V2 => field(&self.read("", "cpu.stat")?, "usage_usec"),
        }
    }

    /// Returns some of the processes whose CPU time is counted, by their ids in the caller's namespace, at most `max`.
    pub fn processes(&self, max: usize) -> Vec<i32> {
        // A process that the caller cannot see is listed as 0.
        self.listed(max).unwrap_or_default().into_iter().filter(|pid| *pid > 0).collect()
    }

    fn listed(&self, max: usize) -> Option<Vec<i32>> {
        let counting = match self.version {
            Version::V1 => self.dirs.iter().find(|(_, controllers)| has_file(controllers, "cpuacct.usage")),
            Version::V2 => self.dirs.first(),
        };
        let file = counting.and_then(|(dir, _)| open(dir.as_fd(), "cgroup.procs").ok())?;
        let mut text = vec![0; max.saturating_mul(MAX_NUMBER)];
        let length = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut text[..], 0)).ok()?;
        // The last line may be cut.
        let lines = text[..length].split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        let numbers = lines.filter_map(|line| std::str::from_utf8(line).ok()?.trim().parse().ok());
        Some(numbers.take(max).collect())
    }

    /// Returns the used memory in bytes.
    pub fn memory(&self) -> Option<u64> {
        self.number("memory.usage_in_bytes", "memory.current")
    }

    /// Returns the peak of used memory in bytes.
    pub fn peak_memory(&self) -> Option<u64> {
        self.number("memory.max_usage_in_bytes", "memory.peak")
    }

    /// Returns the bytes of tmpfs files and other shared memory that are charged to the group.
    pub fn shared_memory(&self) -> Option<u64> {
        field(&self.read("memory.stat", "memory.stat")?, "shmem")
    }

    /// Sets the limit on memory. Fails if the group uses more and cannot free it.
    pub fn bound_memory(&self, bytes: u64) -> io::Result<()> {
        let (dir, _) = match self.version {
            Version::V1 => self.dirs.iter().find(|(_, controllers)| has_file(controllers, "memory.stat")),
            Version::V2 => self.dirs.first(),
        }
        .ok_or(io::ErrorKind::NotFound)?;
        match self.version {
            Version::V1 => super::bound_memory_v1(dir.as_fd(), Some(bytes)),
            Version::V2 => super::write(dir.as_fd(), "memory.max", bytes),
        }
    }

    /// Returns the limit on memory in bytes.
    pub fn memory_bound(&self) -> Option<u64> {
        self.number("memory.limit_in_bytes", "memory.max")
    }

    /// Returns the limit on TCP and UDP buffers in bytes, if they are counted separately.
    pub fn sockets_bound(&self) -> Option<u64> {
        match self.version {
            Version::V1 => self.number(super::SOCKETS_V1, ""),
            Version::V2 => None,
        }
    }

    /// Returns the number of processes that the kernel killed for memory.
    pub fn memory_kills(&self) -> u64 {
        let text = self.read("memory.oom_control", "memory.events");
        text.and_then(|text| field(&text, "oom_kill")).unwrap_or(0)
    }

    /// Returns the number of living tasks.
    pub fn tasks(&self) -> Option<u64> {
        self.number("pids.current", "pids.current")
    }

    /// Returns the limit on tasks.
    pub fn tasks_bound(&self) -> Option<u64> {
        self.number("pids.max", "pids.max")
    }

    /// Returns the number of refused forks.
    pub fn forks_refused(&self) -> u64 {
        let text = self.read("pids.events", "pids.events");
        text.and_then(|text| field(&text, "max")).unwrap_or(0)
    }

    /// Returns the limit on the processor share in thousandths.
    pub fn cpu_millis(&self) -> Option<u64> {
        match self.version {
            Version::V1 => {
                let quota = self.number("cpu.cfs_quota_us", "")?;
                Some(quota * 1000 / self.number("cpu.cfs_period_us", "")?.max(1))
            }
            Version::V2 => share_of_cpu_max(&self.read("", "cpu.max")?),
        }
    }
}

/// Reads the share of processors in thousandths from a file `cpu.max`.
pub(super) fn share_of_cpu_max(text: &str) -> Option<u64> {
    let mut parts = text.split_whitespace().map(str::parse::<u64>);
    let quota = parts.next()?.ok()?;
    Some(quota * 1000 / parts.next()?.ok()?.max(1))
}

/// Returns true if a file of version 1, named after its controller, belongs to a hierarchy with these controllers.
pub(super) fn has_file(controllers: &[String], name: &str) -> bool {
    name.split('.').next().is_some_and(|prefix| controllers.iter().any(|controller| controller == prefix))
}

pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}
