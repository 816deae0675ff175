//! Labels of our objects in an engine. They identify the owner, so that a sweep finds leftovers and touches no
//! container of another program.
//!
//! An image can have labels, too, and a container inherits them. So a label counts only if it matches the container's
//! name, which the creator sets and an image cannot.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use cofferdam_contract::{SandboxId, TenantId};
use cofferdam_linux::process::Life;

const SANDBOX: &str = "dev.cofferdam.sandbox";
const TENANT: &str = "dev.cofferdam.tenant";
const OWNER_HOST: &str = "dev.cofferdam.owner.host";
const OWNER_PROCESS: &str = "dev.cofferdam.owner.process";
const OWNER_START: &str = "dev.cofferdam.owner.start";
/// The prefix of the caller's labels, so that they cannot replace ours.
const CALLERS: &str = "dev.cofferdam.label.";
/// The label of the agent's volume: the hash of its contents.
pub(crate) const AGENT: &str = "dev.cofferdam.agent";
/// The label of an image that was imported from files.
pub(crate) const IMPORTED: &str = "dev.cofferdam.image.imported";

/// The label of all our containers.
pub(crate) const OWN_LABEL: &str = SANDBOX;

/// A unique identity of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The host, its boot, and the pid namespace.
    pub host: String,
    pub process: u32,
    /// The start time in ticks since boot.
    pub start: u64,
}

/// The state of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerState {
    Alive,
    Dead,
    /// The owner ran on another host, in another boot or in another namespace, so that its state is unknown.
    Foreign,
}

impl Owner {
    /// Returns the identity of this process.
    pub(crate) fn this() -> std::io::Result<Self> {
        let process = std::process::id();
        let start = start_of(process).ok_or_else(|| std::io::Error::other("cannot read /proc/self/stat"))?;
        Ok(Self { host: host()?, process, start })
    }

    /// Returns the state of the owner for a process on `here`.
    pub(crate) fn state(&self, here: &str) -> OwnerState {
        if self.host != here {
            return OwnerState::Foreign;
        }
        if i32::try_from(self.process).is_ok_and(|process| process > 0) {
            return if Life::is_over(self.process, self.start) { OwnerState::Dead } else { OwnerState::Alive };
        }
        OwnerState::Foreign
    }
}

/// Returns the host, its boot, and the pid namespace of this process.
fn host() -> std::io::Result<String> {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    Ok(format!("{}/{}/{}", machine.trim(), boot.trim(), namespace.display()))
}

fn start_of(process: u32) -> Option<u64> {
    Life::of(process).map(|life| life.start)
}

/// Returns the labels of a sandbox's container.
pub(crate) fn of(
    id: &SandboxId,
    tenant: &TenantId,
    owner: &Owner,
    callers: &BTreeMap<String, String>,
) -> HashMap<String, String> {
    let mut labels = of_helper(id.as_str(), owner);
    labels.insert(TENANT.to_owned(), tenant.as_str().to_owned());
    labels.extend(callers.iter().map(|(key, value)| (format!("{CALLERS}{key}"), value.clone())));
    labels
}

/// Returns the labels of a helper container.
pub(crate) fn of_helper(name: &str, owner: &Owner) -> HashMap<String, String> {
    HashMap::from([
        (SANDBOX.to_owned(), name.to_owned()),
        (OWNER_HOST.to_owned(), owner.host.clone()),
        (OWNER_PROCESS.to_owned(), owner.process.to_string()),
        (OWNER_START.to_owned(), owner.start.to_string()),
    ])
}

/// Returns the owner of a container, if it is one of ours.
pub(crate) fn owner_of(names: &[String], labels: &HashMap<String, String>) -> Option<Owner> {
    let sandbox = labels.get(SANDBOX)?;
    names.iter().any(|name| name.trim_start_matches('/') == sandbox).then_some(())?;
    Some(Owner {
        host: labels.get(OWNER_HOST)?.clone(),
        process: labels.get(OWNER_PROCESS)?.parse().ok()?,
        start: labels.get(OWNER_START)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> (SandboxId, TenantId, Owner) {
        (SandboxId::new("cofferdam-x"), TenantId::new("acme").unwrap(), Owner::this().unwrap())
    }

    #[test]
    fn an_owner_is_found_again() {
        let (id, tenant, owner) = parts();
        let labels = of(&id, &tenant, &owner, &BTreeMap::new());
        assert_eq!(labels[TENANT], "acme");
        assert_eq!(owner_of(&["/cofferdam-x".to_owned()], &labels), Some(owner.clone()));
        assert_eq!(owner.state(&host().unwrap()), OwnerState::Alive);
    }

    #[test]
    fn an_images_labels_make_no_container_ours() {
        let (id, tenant, owner) = parts();
        let labels = of(&id, &tenant, &owner, &BTreeMap::new());
        assert_eq!(owner_of(&["/database".to_owned()], &labels), None);
        assert_eq!(owner_of(&[], &labels), None);
    }

    #[test]
    fn a_callers_label_is_never_one_of_ours() {
        let (id, tenant, owner) = parts();
        let hostile = [
            ("dev.cofferdam.owner.process", "1"),
            ("owner.process", "1"),
            ("", "x"),
            ("a=b", "c\n\"d\0"),
            ("../../etc", "\u{202e}"),
        ];
        let callers: BTreeMap<String, String> =
            hostile.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let labels = of(&id, &tenant, &owner, &callers);
        assert_eq!(owner_of(&["cofferdam-x".to_owned()], &labels), Some(owner));
        assert_eq!(labels.len(), 5 + hostile.len());
        assert_eq!(labels["dev.cofferdam.label.a=b"], "c\n\"d\0");
    }

    #[test]
    fn dead_owners_differ_from_live_and_foreign_ones() {
        let (_, _, owner) = parts();
        let here = host().unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let living = Owner { process: child.id(), start: start_of(child.id()).unwrap(), ..owner.clone() };
        assert_eq!(living.state(&here), OwnerState::Alive);
        child.kill().unwrap();
        let begun = std::time::Instant::now();
        while living.state(&here) == OwnerState::Alive {
            assert!(begun.elapsed().as_secs() < 60, "a killed process counts as alive");
            std::thread::yield_now();
        }
        assert_eq!(living.state(&here), OwnerState::Dead);
        child.wait().unwrap();
        assert_eq!(living.state(&here), OwnerState::Dead);
        // A later process with the same pid.
        let reused = Owner { start: owner.start - 1, ..owner.clone() };
        assert_eq!(reused.state(&here), OwnerState::Dead);
        // An owner of another host, boot or namespace, even if its pid is free here.
        let parts: Vec<&str> = here.split('/').collect();
        let others = [
            format!("{}/{}/{}", "0".repeat(32), parts[1], parts[2]),
            format!("{}/{}/{}", parts[0], "another-boot", parts[2]),
            format!("{}/{}/{}", parts[0], parts[1], "pid:[1]"),
        ];
        for host in others {
            assert_eq!(Owner { host, ..living.clone() }.state(&here), OwnerState::Foreign);
        }
        assert_eq!(Owner { process: 0, ..owner.clone() }.state(&here), OwnerState::Foreign);
        assert_eq!(Owner { process: u32::MAX, ..owner }.state(&here), OwnerState::Foreign);
    }
}
