//! The posture of a simulated sandbox, which provides no isolation.

use cofferdam_contract::{Posture, PostureItem, Protection, ProtectionState, Spec};

use crate::SimulatedConfig;

/// Returns the posture of a sandbox of this spec on the simulated host.
pub(crate) fn posture(spec: &Spec, config: &SimulatedConfig) -> Posture {
    Posture::new(Protection::ALL.iter().map(|protection| row(*protection, spec, config)))
}

fn row(protection: Protection, spec: &Spec, config: &SimulatedConfig) -> PostureItem {
    let limits = spec.limits();
    let limit = match protection {
        Protection::Memory => limits.memory.map(|limit| limit.to_string()),
        Protection::CpuTime => limits.cpu_time.map(|limit| format!("{} s", limit.as_secs_f64())),
        Protection::Cpus => limits.cpus.map(|limit| limit.to_string()),
        Protection::Processes => limits.single_threaded_processes().map(|limit| limit.to_string()),
        Protection::Disk => limits.disk.map(|limit| limit.to_string()),
        Protection::WallTime => Some(format!("{} s", limits.wall_time.as_secs_f64())),
        Protection::Workspace => Some(format!("{:?}", spec.workspace().access())),
        Protection::Network => Some("no guest step reaches a network".to_owned()),
        _ => {
            // No host code runs, so a namespace or a filter has nothing to restrict.
            return item(protection, ProtectionState::NotAsked, "simulated: no host code runs");
        }
    };
    match (limit, config.shortfalls.get(&protection)) {
        (None, _) => item(protection, ProtectionState::NotAsked, "no limit was requested"),
        (Some(limit), None) => item(protection, ProtectionState::Enforced, &format!("simulated: {limit}")),
        (Some(_), Some(state)) => PostureItem {
            remedy: Some("configure the simulated host without this shortfall".to_owned()),
            ..item(protection, *state, "simulated: a host that cannot enforce it")
        },
    }
}

fn item(protection: Protection, state: ProtectionState, mechanism: &str) -> PostureItem {
    PostureItem { protection, state, mechanism: mechanism.to_owned(), probed: false, remedy: None }
}
