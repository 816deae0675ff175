//! The protections that are enforced for a sandbox, measured where possible.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! protections {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A protection that an isolation boundary can provide. `--allow-weaker` takes its text form.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum Protection {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl Protection {
            /// All protections of the contract.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name used in options, messages and JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

protections! {
    /// A separate user namespace: no uid of the host inside, and no privilege over the sandbox's own boundary.
    UserNamespace = "user-namespace",
    /// A separate mount namespace.
    MountNamespace = "mount-namespace",
    /// A separate PID namespace: processes of the host cannot be addressed.
    PidNamespace = "pid-namespace",
    /// A separate network stack.
    NetNamespace = "net-namespace",
    /// Separate System V IPC objects and POSIX message queues.
    IpcNamespace = "ipc-namespace",
    /// A separate host name.
    UtsNamespace = "uts-namespace",
    /// A separate view of cgroups.
    CgroupNamespace = "cgroup-namespace",
    /// A read-only root file system that contains only what programs need.
    RootFilesystem = "root-filesystem",
    /// The requested access to the workspace: writable or read-only.
    Workspace = "workspace",
    /// The system-call filter.
    Seccomp = "seccomp",
    /// Landlock rules in addition to the mounts.
    Landlock = "landlock",
    /// No Linux capabilities, and no way to gain any.
    Capabilities = "capabilities",
    /// The `no_new_privs` flag: programs cannot gain privileges through `execve`.
    NoNewPrivileges = "no-new-privileges",
    /// An unprivileged user that is not root on the host.
    User = "user",
    /// The memory limit.
    Memory = "memory",
    /// The CPU time limit.
    CpuTime = "cpu",
    /// The CPU share limit.
    Cpus = "cpus",
    /// The limit on processes and threads.
    Processes = "pids",
    /// The limit on stored bytes.
    Disk = "disk",
    /// The limit on wall-clock time.
    WallTime = "wall-time",
    /// The network policy: only what it allows is reachable.
    Network = "network",
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Protection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|protection| protection.as_str() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|protection| protection.as_str()).collect();
            format!("'{text}' is not a protection; use one of {}", names.join(", "))
        })
    }
}

/// The state of a protection compared to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProtectionState {
    /// Enforced as requested.
    Enforced,
    /// Enforced in part: less than requested.
    #[serde(rename = "weaker-than-asked")]
    WeakerThanRequired,
    /// Not enforced.
    Absent,
    /// Not requested.
    NotAsked,
}

/// A row of a posture: the state of one protection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PostureItem {
    /// The protection.
    pub protection: Protection,
    /// Its state.
    pub state: ProtectionState,
    /// The mechanism that enforces it, with the value that was read back, such as `cgroup v1 memory.limit_in_bytes =
    /// 536870912`.
    pub mechanism: String,
    /// True if the state was measured (inside the sandbox, or read back from the kernel). False if it is only
    /// configured.
    pub probed: bool,
    /// A way to get it enforced, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The protections of one sandbox, one row each, sorted by protection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Posture {
    items: Vec<PostureItem>,
}

impl Posture {
    /// Creates a posture from rows. For a protection with several rows, the weakest is kept.
    pub fn new(items: impl IntoIterator<Item = PostureItem>) -> Self {
        let mut posture = Self::default();
        for item in items {
            posture.add(item);
        }
        posture
    }

    fn add(&mut self, item: PostureItem) {
        match self.items.binary_search_by_key(&item.protection, |known| known.protection) {
            Err(index) => self.items.insert(index, item),
            Ok(index) if rank(item.state) > rank(self.items[index].state) => self.items[index] = item,
            Ok(_) => {}
        }
    }

    /// Returns all rows.
    pub fn items(&self) -> &[PostureItem] {
        &self.items
    }

    /// Returns the row of a protection, if there is one.
    pub fn get(&self, protection: Protection) -> Option<&PostureItem> {
        self.items.iter().find(|item| item.protection == protection)
    }

    /// Returns the rows that are weaker than requested or absent and not listed in `allowed`.
    pub fn shortfalls<'a>(
        &'a self,
        allowed: &'a std::collections::BTreeSet<Protection>,
    ) -> impl Iterator<Item = &'a PostureItem> {
        self.items.iter().filter(move |item| {
            matches!(item.state, ProtectionState::WeakerThanRequired | ProtectionState::Absent)
                && !allowed.contains(&item.protection)
        })
    }

    /// Checks that every shortfall is listed in `allowed`.
    ///
    /// # Errors
    /// - `WeakerThanRequired` otherwise. The message lists the missing protections, and the remedy how to get them.
    pub fn require(&self, allowed: &std::collections::BTreeSet<Protection>) -> crate::Result<()> {
        let missing: Vec<&PostureItem> = self.shortfalls(allowed).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let what: Vec<String> = missing.iter().map(|item| format!("{}: {}", item.protection, item.mechanism)).collect();
        let mut remedies: Vec<String> = missing.iter().filter_map(|item| item.remedy.clone()).collect();
        remedies.dedup();
        let names: Vec<&str> = missing.iter().map(|item| item.protection.as_str()).collect();
        remedies.push(format!("or accept it with --allow-weaker {}", names.join(",")));
        Err(crate::Error::new(
            crate::ErrorKind::WeakerThanRequired,
            "create",
            format!("this host cannot enforce the requested protections ({})", what.join("; ")),
        )
        .with_remedy(remedies.join("; ")))
    }
}

fn rank(state: ProtectionState) -> u8 {
    match state {
        ProtectionState::NotAsked => 0,
        ProtectionState::Enforced => 1,
        ProtectionState::WeakerThanRequired => 2,
        ProtectionState::Absent => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn item(protection: Protection, state: ProtectionState) -> PostureItem {
        PostureItem { protection, state, mechanism: "m".into(), probed: true, remedy: Some("do r".into()) }
    }

    /// Promise (Posture): A shortfall that the spec does not name is an error.
    #[test]
    fn a_shortfall_is_refused_unless_named() {
        let posture = Posture::new([
            item(Protection::Memory, ProtectionState::WeakerThanRequired),
            item(Protection::Seccomp, ProtectionState::Enforced),
        ]);
        let error = posture.require(&BTreeSet::new()).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::WeakerThanRequired);
        assert_eq!(error.remedy(), Some("do r; or accept it with --allow-weaker memory"));
        assert!(posture.require(&BTreeSet::from([Protection::Memory])).is_ok());
        assert!(posture.require(&BTreeSet::from([Protection::Disk])).is_err());
    }

    #[test]
    fn the_weakest_row_wins() {
        let posture = Posture::new([
            item(Protection::Disk, ProtectionState::Enforced),
            item(Protection::Disk, ProtectionState::Absent),
            item(Protection::Disk, ProtectionState::WeakerThanRequired),
        ]);
        assert_eq!(posture.get(Protection::Disk).unwrap().state, ProtectionState::Absent);
    }

    #[test]
    fn names_round_trip() {
        for protection in Protection::ALL {
            assert_eq!(protection.as_str().parse::<Protection>(), Ok(*protection));
            assert_eq!(serde_json::to_value(protection).unwrap(), protection.as_str());
        }
        assert!("all".parse::<Protection>().is_err());
    }
}
