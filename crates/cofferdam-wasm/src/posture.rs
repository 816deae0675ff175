//! The posture of a sandbox.

use cofferdam_contract::{Cpus, NetworkPolicy, Posture, PostureItem, Protection, ProtectionState, Spec, Workspace};

const INSIDE: &str = "the code runs inside Cofferdam's own process: it can make no system call, and reaches only what \
                      the functions of WASI give it";

/// Returns the posture of a sandbox of this spec. It lists the limits that the engine enforces; `cofferdam doctor`
/// tests them.
pub(crate) fn posture(spec: &Spec) -> Posture {
    Posture::new(Protection::ALL.iter().map(|protection| row(*protection, spec)))
}

fn row(protection: Protection, spec: &Spec) -> PostureItem {
    let limits = spec.limits();
    let bound = match protection {
        Protection::Memory => limits.memory.map(|limit| {
            let files = if limits.disk.is_some() { ", files besides" } else { ", files among them" };
            format!(
                "memories and tables together are refused growth beyond {limit}{files}; compiled code is not counted"
            )
        }),
        Protection::CpuTime => limits
            .cpu_time
            .map(|limit| format!("the guest's thread is interrupted when it has used {} s", limit.as_secs_f64())),
        Protection::Cpus => return limits.cpus.map_or_else(|| not_requested(protection), |share| cpus(share, spec)),
        Protection::Processes => limits
            .single_threaded_processes()
            .map(|limit| format!("a module cannot start processes or threads; at most {limit} execs run at once")),
        Protection::Disk => limits
            .disk
            .map(|limit| format!("files in memory; contents, names and metadata together stay below {limit}")),
        Protection::WallTime => Some(format!(
            "the guest is interrupted after {} s, in its code and in its calls",
            limits.wall_time.as_secs_f64()
        )),
        Protection::Workspace => Some(match spec.workspace() {
            Workspace::HostDir { .. } | Workspace::CopyOnWrite { .. } => {
                "a read-only copy in memory of the host's directory".to_owned()
            }
            Workspace::Private { access } => format!("files in memory, private to this sandbox, {access:?}"),
        }),
        Protection::Network => Some(network(spec)),
        _ => return item(protection, ProtectionState::NotAsked, INSIDE),
    };
    match bound {
        Some(mechanism) => item(protection, ProtectionState::Enforced, &mechanism),
        None => not_requested(protection),
    }
}

fn network(spec: &Spec) -> String {
    match spec.network() {
        policy if *policy != NetworkPolicy::None => format!(
            "components alone reach a network: by TCP, through functions of WASI that check each name, address and port \
             against the policy ({} hosts); modules of preview 1 and interpreters have no function for it",
            policy.hosts().len()
        ),
        _ => "no function of WASI that the guest can call opens a connection".to_owned(),
    }
}

/// Returns the posture of a CPU limit. Each exec is one thread, so a limit on execs can enforce one on processors.
fn cpus(share: Cpus, spec: &Spec) -> PostureItem {
    match spec.limits().single_threaded_processes() {
        Some(execs) if u64::from(execs) * 1000 <= u64::from(share.as_millis()) => {
            let mechanism = format!("each exec is one thread, and at most {execs} run at once");
            item(Protection::Cpus, ProtectionState::Enforced, &mechanism)
        }
        _ => PostureItem {
            remedy: Some("request at most as many --pids as processors, or use level process".to_owned()),
            ..item(Protection::Cpus, ProtectionState::Absent, "guests are not throttled")
        },
    }
}

fn not_requested(protection: Protection) -> PostureItem {
    item(protection, ProtectionState::NotAsked, "no limit was requested")
}

fn item(protection: Protection, state: ProtectionState, mechanism: &str) -> PostureItem {
    PostureItem { protection, state, mechanism: mechanism.to_owned(), probed: false, remedy: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::Limits;

    #[test]
    fn a_share_is_claimed_only_where_it_holds() {
        let state = |pids, millis| {
            let limits = Limits { pids, cpus: Some(Cpus::from_millis(millis)), ..Limits::default() };
            let spec = Spec::builder().limits(limits).build().unwrap();
            posture(&spec).get(Protection::Cpus).unwrap().state
        };
        assert_eq!(state(Some(2), 2000), ProtectionState::Enforced);
        assert_eq!(state(Some(2), 1500), ProtectionState::Absent);
        assert_eq!(state(None, 64_000), ProtectionState::Absent);
    }
}
