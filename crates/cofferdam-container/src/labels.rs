//! The marks on what an engine keeps for us: whose it is, so that leftovers are found and nobody else's are touched.
//!
//! An image can carry labels, too, and a container takes them over. So a mark counts only on a container whose name says
//! the same: a name is given by who makes it, never by an image.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use cofferdam_contract::{SandboxId, TenantId};
use cofferdam_linux::process::Life;
use rustix::process::{Pid, test_kill_process};

const SANDBOX: &str = "dev.cofferdam.sandbox";
const TENANT: &str = "dev.cofferdam.tenant";
const OWNER_HOST: &str = "dev.cofferdam.owner.host";
const OWNER_PROCESS: &str = "dev.cofferdam.owner.process";
const OWNER_START: &str = "dev.cofferdam.owner.start";
/// Before the caller's own labels, which so can never be one of ours.
const CALLERS: &str = "dev.cofferdam.label.";
/// On the volume with the agent: the hash of what it holds.
pub(crate) const AGENT: &str = "dev.cofferdam.agent";
/// On an image that was made from files.
pub(crate) const IMPORTED: &str = "dev.cofferdam.image.imported";

/// The label that all containers of ours have.
pub(crate) const MARK: &str = SANDBOX;

/// A process, named so that no other is ever taken for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The machine, since it was switched on, and the namespace in which the process is known.
    pub host: String,
    pub process: u32,
    /// In ticks since the machine was switched on.
    pub start: u64,
}

/// What an owner is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Alive,
    Dead,
    /// On another machine, before this one was switched on, or in another namespace: nothing can be known about it.
    Foreign,
}

impl Owner {
    /// This process.
    pub(crate) fn this() -> std::io::Result<Self> {
        let process = std::process::id();
        let start = start_of(process).ok_or_else(|| std::io::Error::other("cannot read /proc/self/stat"))?;
        Ok(Self { host: host()?, process, start })
    }

    /// What it is to a process on `here`.
    pub(crate) fn standing(&self, here: &str) -> Standing {
        if self.host != here {
            return Standing::Foreign;
        }
        let Some(pid) = i32::try_from(self.process).ok().and_then(Pid::from_raw) else { return Standing::Foreign };
        match test_kill_process(pid) {
            Err(rustix::io::Errno::SRCH) => Standing::Dead,
            // There is somebody with this number, or what is left of somebody until its parent asks how it ended. Where its
            // life is hidden, it must be taken for the owner's.
            _ => match Life::of(self.process) {
                Some(life) if life.over || life.start != self.start => Standing::Dead,
                _ => Standing::Alive,
            },
        }
    }
}

/// The machine since it was switched on, and the namespace of process ids that this process is in.
fn host() -> std::io::Result<String> {
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    Ok(format!("{}/{}/{}", machine.trim(), boot.trim(), namespace.display()))
}

fn start_of(process: u32) -> Option<u64> {
    Life::of(process).map(|life| life.start)
}

/// The labels of a sandbox's container.
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

/// The labels of a container that helps to make others.
pub(crate) fn of_helper(name: &str, owner: &Owner) -> HashMap<String, String> {
    HashMap::from([
        (SANDBOX.to_owned(), name.to_owned()),
        (OWNER_HOST.to_owned(), owner.host.clone()),
        (OWNER_PROCESS.to_owned(), owner.process.to_string()),
        (OWNER_START.to_owned(), owner.start.to_string()),
    ])
}

/// Whose a container is, if it is one of ours.
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
        assert_eq!(owner.standing(&host().unwrap()), Standing::Alive);
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
    fn who_is_dead_and_who_may_not_be() {
        let (_, _, owner) = parts();
        let here = host().unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let living = Owner { process: child.id(), start: start_of(child.id()).unwrap(), ..owner.clone() };
        assert_eq!(living.standing(&here), Standing::Alive);
        child.kill().unwrap();
        let begun = std::time::Instant::now();
        while living.standing(&here) == Standing::Alive {
            assert!(begun.elapsed().as_secs() < 60, "it counts as alive until it is asked about");
            std::thread::yield_now();
        }
        assert_eq!(living.standing(&here), Standing::Dead);
        child.wait().unwrap();
        assert_eq!(living.standing(&here), Standing::Dead);
        // Somebody else with the same number, later.
        let reused = Owner { start: owner.start - 1, ..owner.clone() };
        assert_eq!(reused.standing(&here), Standing::Dead);
        // Of another machine, or of another namespace of this one, even where the number is free here.
        let parts: Vec<&str> = here.split('/').collect();
        let others = [
            format!("{}/{}/{}", "0".repeat(32), parts[1], parts[2]),
            format!("{}/{}/{}", parts[0], "another-boot", parts[2]),
            format!("{}/{}/{}", parts[0], parts[1], "pid:[1]"),
        ];
        for host in others {
            assert_eq!(Owner { host, ..living.clone() }.standing(&here), Standing::Foreign);
        }
        assert_eq!(Owner { process: 0, ..owner.clone() }.standing(&here), Standing::Foreign);
        assert_eq!(Owner { process: u32::MAX, ..owner }.standing(&here), Standing::Foreign);
    }
}
