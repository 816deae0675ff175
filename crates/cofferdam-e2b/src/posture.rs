//! The posture of a sandbox, from measurements inside its VM and from reports of E2B: pure, one row at a time.
//!
//! A limit holds if the VM has no more than the spec allows, measured inside. Rows that only E2B knows are not probed, and
//! limits that nothing enforces are absent.

use cofferdam_contract::{Access, ByteSize, Posture, PostureItem, Protection, ProtectionState, Spec};

use crate::guest::Probed;
use crate::wire::Detail;

/// Returns the rows of limits that no measurement can change.
pub(crate) fn known(spec: &Spec) -> Posture {
    let limits = spec.limits();
    let unsupported = |protection, is_requested, remedy: &str| match is_requested {
        false => not_requested(protection),
        true => {
            let mechanism = "E2B enforces no such limit";
            with_remedy(row(protection, ProtectionState::Absent, mechanism, false), remedy)
        }
    };
    Posture::new([
        unsupported(Protection::CpuTime, limits.cpu_time.is_some(), "ask for no limit on CPU time (--cpu-time none)"),
        unsupported(Protection::Processes, limits.pids.is_some(), "ask for no limit on processes (--pids none)"),
    ])
}

/// Returns the posture of a sandbox.
pub(crate) fn posture(spec: &Spec, probed: &Probed, detail: &Detail) -> Posture {
    let limits = spec.limits();
    let memory = limits.memory.map_or_else(
        || not_requested(Protection::Memory),
        |limit| at_most(Protection::Memory, "memory of the VM", limit, probed.memory_kib, "--memory"),
    );
    let disk = limits.disk.map_or_else(
        || not_requested(Protection::Disk),
        |limit| at_most(Protection::Disk, "file system of the workspace", limit, probed.disk_kib, "--disk"),
    );
    let cpus = limits.cpus.map_or_else(
        || not_requested(Protection::Cpus),
        |limit| {
            let held = probed.processors.is_some_and(|count| u64::from(count) * 1000 <= u64::from(limit.as_millis()));
            let mechanism = format!("processors in the VM: {}", shown(probed.processors));
            let state = if held { ProtectionState::Enforced } else { weaker(probed.processors) };
            with_remedy(row(Protection::Cpus, state, mechanism, true), "use a template with fewer processors")
        },
    );
    let rows = [memory, disk, cpus, wall_time(probed), user(probed), workspace(spec, probed), network(detail)];
    Posture::new(known(spec).items().iter().cloned().chain(rows))
}

fn row(protection: Protection, state: ProtectionState, mechanism: impl Into<String>, probed: bool) -> PostureItem {
    PostureItem { protection, state, mechanism: mechanism.into(), probed, remedy: None }
}

fn not_requested(protection: Protection) -> PostureItem {
    row(protection, ProtectionState::NotAsked, "no limit asked for", false)
}

fn with_remedy(mut item: PostureItem, remedy: &str) -> PostureItem {
    if matches!(item.state, ProtectionState::Absent | ProtectionState::WeakerThanRequired) {
        item.remedy = Some(remedy.to_owned());
    }
    item
}

fn shown<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

/// Returns the state of a limit that does not hold: weaker if there is a bound, absent if none is known.
fn weaker<T>(value: Option<T>) -> ProtectionState {
    if value.is_some() { ProtectionState::WeakerThanRequired } else { ProtectionState::Absent }
}

fn at_most(protection: Protection, what: &str, limit: ByteSize, kib: Option<u64>, option: &str) -> PostureItem {
    let bytes = kib.map(|kib| kib.saturating_mul(1024));
    let state = match bytes {
        Some(bytes) if bytes <= limit.as_bytes() => ProtectionState::Enforced,
        other => weaker(other),
    };
    let mechanism = format!("{what}: {}", shown(bytes.map(ByteSize::from_bytes)));
    let remedy = format!("use a template with less, or ask for a larger limit ({option})");
    with_remedy(row(protection, state, mechanism, true), &remedy)
}

/// Returns the row of the wall time. The client finds the processes of an exec by resource limits that root can change.
fn wall_time(probed: &Probed) -> PostureItem {
    let (state, mechanism) = match probed.root {
        false => (ProtectionState::Enforced, "the client ends the exec's processes in the VM"),
        true => (
            ProtectionState::WeakerThanRequired,
            "the client ends the exec's processes in the VM, but the user can become root and remove their tag",
        ),
    };
    let remedy = "use a template without sudo, or accept it (--allow-weaker wall-time)";
    with_remedy(row(Protection::WallTime, state, mechanism, false), remedy)
}

fn user(probed: &Probed) -> PostureItem {
    let state =
        if probed.uid.is_some_and(|uid| uid != 0) { ProtectionState::Enforced } else { ProtectionState::Absent };
    let root = if probed.root { "can become root there" } else { "cannot become root by sudo" };
    let mechanism = format!("uid {} in the VM, which {root}", shown(probed.uid));
    with_remedy(row(Protection::User, state, mechanism, true), "use a template whose user is not root")
}

fn workspace(spec: &Spec, probed: &Probed) -> PostureItem {
    let (held, mechanism, remedy) = match spec.workspace().access() {
        Access::ReadWrite => {
            (probed.writable, "the user can write to the workspace", "use a template with a user 'user'")
        }
        Access::ReadOnly if probed.root => {
            (false, "the workspace belongs to root, and the user can become root", "use a template without sudo")
        }
        Access::ReadOnly => {
            (!probed.writable, "the workspace belongs to root", "use a template whose user is not root")
        }
    };
    let state = match (held && probed.workspace, spec.workspace().access()) {
        (true, _) => ProtectionState::Enforced,
        (false, Access::ReadOnly) if probed.workspace && !probed.writable => ProtectionState::WeakerThanRequired,
        (false, _) => ProtectionState::Absent,
    };
    let mechanism = if state == ProtectionState::Absent { "the workspace is not as asked for" } else { mechanism };
    with_remedy(row(Protection::Workspace, state, mechanism, true), remedy)
}

fn network(detail: &Detail) -> PostureItem {
    let state = match detail.allow_internet_access {
        Some(false) => ProtectionState::Enforced,
        _ => ProtectionState::Absent,
    };
    let said = detail.allow_internet_access.map_or("nothing", |allowed| if allowed { "true" } else { "false" });
    let mechanism = format!("E2B's firewall, by allowInternetAccess, which E2B reports as: {said}");
    with_remedy(row(Protection::Network, state, mechanism, false), "check what the E2B account allows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Cpus, Limits, Workspace};

    fn state(spec: &Spec, probed: &Probed, detail: &Detail, protection: Protection) -> ProtectionState {
        posture(spec, probed, detail).get(protection).expect("a row").state
    }

    fn spec(limits: Limits, access: Access) -> Spec {
        Spec::builder().limits(limits).workspace(Workspace::Private { access }).build().unwrap()
    }

    /// Promise (E2B): A limit counts as enforced only if the VM, measured inside, has no more than it allows.
    #[test]
    fn limits_are_enforced_if_the_vm_measures_no_more() {
        use ProtectionState::{Absent, Enforced, NotAsked, WeakerThanRequired};
        let limits = Limits { cpus: Some(Cpus::from_millis(2000)), ..Limits::default() };
        let spec = spec(limits, Access::ReadWrite);
        let probed =
            Probed { memory_kib: Some(500 << 10), disk_kib: Some(20 << 20), processors: Some(2), ..Probed::default() };
        let of = |probed: &Probed, protection| state(&spec, probed, &Detail::default(), protection);
        assert_eq!(of(&probed, Protection::Memory), Enforced);
        assert_eq!(of(&probed, Protection::Disk), WeakerThanRequired);
        assert_eq!(of(&probed, Protection::Cpus), Enforced);
        for protection in [Protection::Memory, Protection::Disk, Protection::Cpus] {
            assert_eq!(of(&Probed::default(), protection), Absent, "{protection}");
        }
        assert_eq!(of(&probed, Protection::CpuTime), Absent);
        assert_eq!(of(&probed, Protection::Processes), Absent);
        let free = Limits { cpu_time: None, memory: None, disk: None, pids: None, ..Limits::default() };
        let free = super::tests::spec(free, Access::ReadWrite);
        for protection in [Protection::Memory, Protection::Disk, Protection::Cpus, Protection::CpuTime] {
            assert_eq!(state(&free, &probed, &Detail::default(), protection), NotAsked);
        }
    }

    /// Promise (E2B): The wall time counts as enforced only if programs cannot become root and drop their tag.
    #[test]
    fn wall_time_is_weaker_if_the_user_can_become_root() {
        use ProtectionState::{Enforced, WeakerThanRequired};
        let spec = spec(Limits::default(), Access::ReadWrite);
        for (root, expected) in [(false, Enforced), (true, WeakerThanRequired)] {
            let probed = Probed { root, ..Probed::default() };
            assert_eq!(state(&spec, &probed, &Detail::default(), Protection::WallTime), expected, "{root}");
        }
    }

    #[test]
    fn workspace_and_network_rows_follow_the_measurement() {
        use ProtectionState::{Absent, Enforced, WeakerThanRequired};
        let probed = |writable, root| Probed { workspace: true, writable, root, ..Probed::default() };
        for (access, writable, root, expected) in [
            (Access::ReadWrite, true, true, Enforced),
            (Access::ReadWrite, false, false, Absent),
            (Access::ReadOnly, false, false, Enforced),
            (Access::ReadOnly, false, true, WeakerThanRequired),
            (Access::ReadOnly, true, false, Absent),
        ] {
            let spec = spec(Limits::default(), access);
            let seen = state(&spec, &probed(writable, root), &Detail::default(), Protection::Workspace);
            assert_eq!(seen, expected, "{access:?} {writable} {root}");
        }
        let spec = spec(Limits::default(), Access::ReadWrite);
        for (said, expected) in [(Some(false), Enforced), (Some(true), Absent), (None, Absent)] {
            let detail = Detail { allow_internet_access: said, ..Detail::default() };
            assert_eq!(state(&spec, &Probed::default(), &detail, Protection::Network), expected);
        }
    }
}
