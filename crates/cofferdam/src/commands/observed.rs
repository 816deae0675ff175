//! Observation of a run's network: the log of its connections, and the policy that it would need.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use cofferdam::{
    Error, ErrorKind, NetworkEvent, NetworkFeed, NetworkNews, NetworkPolicy, Result, Sandbox, SandboxId, TenantId,
};
use cofferdam_egress::{Plan, Reach};
use cofferdam_linux::named::Directory;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The maximum number of hosts of a learned policy.
const MAX_LEARNED: usize = 1024;
/// The file systems whose files change settings of the kernel when they are written: proc, sysfs, cgroup, cgroup2,
/// debugfs, tracefs, securityfs, configfs, binfmt_misc, bpf, selinuxfs, efivarfs and fusectl.
const CONTROL_FILES: [rustix::fs::FsWord; 13] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0x4249_4e4d,
    0xcafe_4a11,
    0xf97c_ff8c,
    0xde5e_81e4,
    0x6573_5543,
];

/// Opens the log, before anything is created.
pub fn open(path: Option<&Path>) -> Result<Option<File>> {
    let Some(path) = path else { return Ok(None) };
    append_to(path).map(Some).map_err(|error| {
        let error = Error::new(ErrorKind::Io, "run", format!("cannot open the log of the network: {error}"));
        error.with_context("path", path.display().to_string())
    })
}

/// Opens a regular file for appending, and creates it if it is missing. No link is followed.
fn append_to(path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = OwnedFd::from(Directory::open(parent)?);
    let flags =
        OFlags::APPEND | OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o600))?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let kind = rustix::fs::fstatfs(&file)?.f_type;
    if CONTROL_FILES.contains(&kind) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a control file of the kernel, not on a disk"));
    }
    Ok(file)
}

/// The observations until the end of a run.
#[derive(Debug, Default)]
pub struct Observed {
    /// The hosts and ports that programs connected to, or tried to.
    pub hosts: BTreeSet<String>,
    /// The error of writing the log.
    pub error: Option<String>,
}

/// An observation that is under way.
pub struct Observation {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Observed>,
}

/// A line of the log.
#[derive(Serialize)]
struct Line<'a> {
    sandbox: &'a SandboxId,
    tenant: &'a TenantId,
    #[serde(flatten)]
    event: &'a NetworkEvent,
}

impl Observation {
    /// Begins to observe a sandbox of the backend with this name. Returns `None` if it has no events.
    pub fn start(sandbox: &Arc<dyn Sandbox>, backend: &str, log: Option<File>) -> Option<Self> {
        let events = sandbox.network_events()?;
        let (feed, stop) = NetworkFeed::new(events);
        let writer = Writer {
            sandbox: sandbox.id().clone(),
            tenant: sandbox.spec().tenant().clone(),
            // The policies of other backends have names only.
            reach: if backend == "process" { Reach::Addresses } else { Reach::Names },
            log,
            observed: Observed::default(),
        };
        Some(Self { stop, task: tokio::spawn(writer.follow(feed)) })
    }

    /// Ends the observation once the sandbox is closed.
    pub async fn finish(self) -> Observed {
        let _ = self.stop.send(());
        self.task.await.unwrap_or_default()
    }
}

struct Writer {
    sandbox: SandboxId,
    tenant: TenantId,
    reach: Reach,
    log: Option<File>,
    observed: Observed,
}

impl Writer {
    async fn follow(mut self, mut feed: NetworkFeed) -> Observed {
        while let Some(news) = feed.next().await {
            match news {
                NetworkNews::Event(event) => self.note(&event),
                NetworkNews::Lost(lost) => self.lost(lost),
            }
        }
        self.observed
    }

    fn note(&mut self, event: &NetworkEvent) {
        // The text of a guest must not become an option, or more of a command line.
        let plain = event.host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
        let host = format!("{}:{}", event.host, event.port);
        if plain && self.observed.hosts.len() < MAX_LEARNED && is_host_of_policy(&host, self.reach) {
            self.observed.hosts.insert(host);
        }
        let line = Line { sandbox: &self.sandbox, tenant: &self.tenant, event };
        self.write(serde_json::to_vec(&line).unwrap_or_default());
    }

    fn lost(&mut self, lost: u64) {
        self.write(
            serde_json::json!({"sandbox": self.sandbox, "tenant": self.tenant, "lost": lost}).to_string().into(),
        );
    }

    /// Writes a line in one call, so that lines of several runs do not mix.
    fn write(&mut self, mut line: Vec<u8>) {
        line.push(b'\n');
        if let Some(Err(error)) = self.log.as_mut().map(|log| log.write_all(&line)) {
            self.observed.error.get_or_insert(error.to_string());
        }
    }
}

/// Returns true for a single name or address that a policy can have. Other texts come from a guest too: one with a
/// comma or a `*` would add hosts to the learned policy, and one with a blank would add words to a command.
fn is_host_of_policy(host: &str, reach: Reach) -> bool {
    let policy = NetworkPolicy::Allow { hosts: vec![host.to_owned()] };
    !host.contains(['*', '/', '@']) && matches!(Plan::of(&policy, "", reach), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_a_regular_file_on_a_disk() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(append_to(&directory.path().join("log")).is_ok());
        for (path, why) in [("/proc/self/oom_score_adj", "control file"), ("/dev/null", "regular file")] {
            let error = open(Some(Path::new(path))).expect_err(path).to_string();
            assert!(error.contains(why), "{error}");
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/proc/self/oom_score_adj", &link).expect("a link");
        assert!(append_to(&link).is_err(), "no link is followed");
    }

    #[test]
    fn a_guest_cannot_add_hosts_to_a_learned_policy() {
        for host in ["a.example:80", "a_b.example:443", "10.0.0.7:5432"] {
            assert!(is_host_of_policy(host, Reach::Addresses), "{host}");
        }
        for host in [
            "a.example,*.example:443",
            "*.example:443",
            "@git-hosts:80",
            "10.0.0.0/8:80",
            "a.example; reboot:80",
            "\u{1b}[31ma:80",
            "198.18.0.1:80",
            "127.0.0.1:80",
            "localhost:80",
            "::1:80",
        ] {
            assert!(!is_host_of_policy(host, Reach::Addresses), "{host}");
        }
    }
}
