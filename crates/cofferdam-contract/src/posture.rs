//! What is really enforced for one sandbox, measured where it can be measured.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! protections {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// One thing a wall can protect. The text form is what `--allow-weaker` takes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[non_exhaustive]
        pub enum Protection {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl Protection {
            /// Every protection the contract knows.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word used in options, messages and JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

protections! {
    /// Own user namespace: no uid of the host inside, no privilege over the sandbox's own walls.
    UserNamespace = "user-namespace",
    /// Own mount namespace.
    MountNamespace = "mount-namespace",
    /// Own process ids: no process of the host can be named.
    PidNamespace = "pid-namespace",
    /// Own network stack.
    NetNamespace = "net-namespace",
    /// Own System V and POSIX message objects.
    IpcNamespace = "ipc-namespace",
    /// Own host name.
    UtsNamespace = "uts-namespace",
    /// Own view of control groups.
    CgroupNamespace = "cgroup-namespace",
    /// A root file system that shows only what programs need, read-only.
    RootFilesystem = "root-filesystem",
    /// The workspace is writable or read-only as asked.
    Workspace = "workspace",
    /// The system-call filter.
    Seccomp = "seccomp",
    /// Landlock rules on top of the mounts.
    Landlock = "landlock",
    /// No capability, and none to be had.
    Capabilities = "capabilities",
    /// Programs cannot gain privileges by executing.
    NoNewPrivileges = "no-new-privileges",
    /// The code runs as an ordinary user that is not the host's root.
    User = "user",
    /// The limit on memory.
    Memory = "memory",
    /// The limit on CPU seconds.
    CpuTime = "cpu",
    /// The limit on processor share.
    Cpus = "cpus",
    /// The limit on processes.
    Processes = "pids",
    /// The limit on stored bytes.
    Disk = "disk",
    /// The limit on real time.
    WallTime = "wall-time",
    /// What the network policy allows, and nothing else.
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
            format!("'{text}' is not a protection; known are {}", names.join(", "))
        })
    }
}

/// How a protection stands against what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProtectionState {
    /// Holds as asked.
    Enforced,
    /// Something holds, but less than was asked.
    WeakerThanAsked,
    /// Nothing holds.
    Absent,
    /// The caller asked for no such bound.
    NotAsked,
}

/// One row of a posture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PostureItem {
    /// Which protection.
    pub protection: Protection,
    /// How it stands.
    pub state: ProtectionState,
    /// What enforces it, with the value that was read back, such as `cgroup v1 memory.limit_in_bytes = 536870912`.
    pub mechanism: String,
    /// Whether the row was measured (from inside the sandbox, or read back from the kernel) rather than configured.
    pub probed: bool,
    /// How to get it enforced, where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// What is enforced for one sandbox, row by row, sorted by protection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Posture {
    items: Vec<PostureItem>,
}

impl Posture {
    /// A posture of these rows; a protection named twice keeps its weakest row.
    pub fn new(items: impl IntoIterator<Item = PostureItem>) -> Self {
        let mut posture = Self::default();
        for item in items {
            posture.add(item);
        }
        posture
    }

    fn add(&mut self, item: PostureItem) {
        match self.items.binary_search_by_key(&item.protection, |known| known.protection) {
            Err(place) => self.items.insert(place, item),
            Ok(place) if rank(item.state) > rank(self.items[place].state) => self.items[place] = item,
            Ok(_) => {}
        }
    }

    /// All rows.
    pub fn items(&self) -> &[PostureItem] {
        &self.items
    }

    /// The row of one protection.
    pub fn get(&self, protection: Protection) -> Option<&PostureItem> {
        self.items.iter().find(|item| item.protection == protection)
    }

    /// The rows that are weaker than asked or absent, and not named in `allowed`.
    pub fn shortfalls<'a>(
        &'a self,
        allowed: &'a std::collections::BTreeSet<Protection>,
    ) -> impl Iterator<Item = &'a PostureItem> {
        self.items.iter().filter(move |item| {
            matches!(item.state, ProtectionState::WeakerThanAsked | ProtectionState::Absent)
                && !allowed.contains(&item.protection)
        })
    }

    /// Fails with what is missing and how to get it, unless every shortfall is named in `allowed`.
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
            crate::ErrorKind::WeakerThanAsked,
            "create",
            format!("this host cannot enforce what was asked ({})", what.join("; ")),
        )
        .with_remedy(remedies.join("; ")))
    }
}

fn rank(state: ProtectionState) -> u8 {
    match state {
        ProtectionState::NotAsked => 0,
        ProtectionState::Enforced => 1,
        ProtectionState::WeakerThanAsked => 2,
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

    #[test]
    fn a_shortfall_is_refused_unless_named() {
        let posture = Posture::new([
            item(Protection::Memory, ProtectionState::WeakerThanAsked),
            item(Protection::Seccomp, ProtectionState::Enforced),
        ]);
        let error = posture.require(&BTreeSet::new()).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::WeakerThanAsked);
        assert_eq!(error.remedy(), Some("do r; or accept it with --allow-weaker memory"));
        assert!(posture.require(&BTreeSet::from([Protection::Memory])).is_ok());
        assert!(posture.require(&BTreeSet::from([Protection::Disk])).is_err());
    }

    #[test]
    fn the_weakest_row_wins() {
        let posture = Posture::new([
            item(Protection::Disk, ProtectionState::Enforced),
            item(Protection::Disk, ProtectionState::Absent),
            item(Protection::Disk, ProtectionState::WeakerThanAsked),
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
