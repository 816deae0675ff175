//! Compatibility of a request with an interpreter in a sandbox that was created for another spec. Pure.
//!
//! The sandbox of an idle interpreter is already running, so its boundary cannot change. The spec must therefore equal
//! the template, except for names (tenant, labels), permissions (`allow_weaker`) and the wall time. The wall time is
//! enforced by a timer of the supervisor and is passed with the request.

use cofferdam_contract::{ExecRequest, Limits, Result, Spec, SpecParts};
use cofferdam_interpreter::EXTRA_PROCESSES;

/// Returns the spec of a sandbox for an interpreter that serves requests with `spec`.
pub(super) fn sandbox_spec(spec: &Spec) -> Result<Spec> {
    let mut limits = spec.limits().clone();
    limits.pids = limits.pids.map(|count| count.saturating_add(EXTRA_PROCESSES));
    limits.processes = limits.processes.map(|count| count.saturating_add(EXTRA_PROCESSES));
    spec.to_builder().limits(limits).build()
}

/// Returns true if an interpreter created for `template` can serve a request with `requested`. Returns false when in doubt.
pub(super) fn is_compatible(template: &Spec, requested: &Spec) -> bool {
    let SpecParts { workspace, root, mounts, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        requested.parts();
    // Names: the caller that takes the interpreter reports them with its result.
    let (_, _) = (tenant, labels);
    workspace == template.workspace()
        && root == template.root()
        && mounts == template.mounts()
        && directories == template.directories()
        && network == template.network()
        && attributes == template.attributes()
        // The request must accept every shortfall that the template accepted.
        && template.allow_weaker().is_subset(allow_weaker)
        && limits_are_compatible(template.limits(), limits)
}

fn limits_are_compatible(template: &Limits, requested: &Limits) -> bool {
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = requested;
    // Passed with the request.
    let _ = wall_time;
    *cpu_time == template.cpu_time
        && *memory == template.memory
        && *disk == template.disk
        && *pids == template.pids
        && *processes == template.processes
        && *cpus == template.cpus
}

/// Returns the request with an explicit timeout: its own, or the wall time of the spec.
pub(crate) fn with_time(spec: &Spec, request: &ExecRequest) -> Result<ExecRequest> {
    let time = request.timeout().unwrap_or(spec.limits().wall_time);
    request.to_builder().timeout(time).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Access, ByteSize, Cpus, Protection, RootFs, TenantId, Workspace};
    use std::time::Duration;

    fn with(change: impl FnOnce(&mut Limits)) -> Spec {
        let mut limits = Limits::default();
        change(&mut limits);
        Spec::builder().limits(limits).build().unwrap()
    }

    /// Promise (Server): A warm interpreter serves an identical spec only, except for names, permissions and the clock.
    #[test]
    fn names_permissions_and_the_clock_come_late_and_nothing_else() {
        let template = Spec::default();
        let builder = Spec::builder;
        for spec in [
            Spec::default(),
            builder().tenant(TenantId::new("other").unwrap()).label("a", "b").build().unwrap(),
            builder().allow_weaker(Protection::Memory).build().unwrap(),
            with(|limits| limits.wall_time = Duration::from_secs(1)),
        ] {
            assert!(is_compatible(&template, &spec), "{spec:?}");
        }
        let mounted = Workspace::HostDir { path: "/tmp".into(), access: Access::ReadWrite };
        for spec in [
            builder().workspace(mounted).build().unwrap(),
            builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap(),
            builder().root(RootFs::Directory { path: "/".into() }).build().unwrap(),
            builder().attribute("process.x", 1).build().unwrap(),
            with(|limits| limits.cpu_time = Some(Duration::from_secs(1))),
            with(|limits| limits.memory = Some(ByteSize::from_mebibytes(1))),
            with(|limits| limits.memory = None),
            with(|limits| limits.disk = None),
            with(|limits| limits.pids = Some(9)),
            with(|limits| limits.cpus = Some(Cpus::from_millis(500))),
        ] {
            assert!(!is_compatible(&template, &spec), "{spec:?}");
        }
        let weaker = builder().allow_weaker(Protection::Disk).build().unwrap();
        assert!(!is_compatible(&weaker, &template));
    }

    /// Promise (Server): Code in a warm interpreter has the process limit and the time of its own spec.
    #[test]
    fn the_code_has_the_processes_and_the_time_that_were_asked_for() {
        let spec = with(|limits| limits.wall_time = Duration::from_secs(7));
        assert_eq!(sandbox_spec(&spec).unwrap().limits().pids, Some(256 + EXTRA_PROCESSES));
        let request = ExecRequest::argv(["a"]).build().unwrap();
        assert_eq!(with_time(&spec, &request).unwrap().timeout(), Some(Duration::from_secs(7)));
        let own = request.to_builder().timeout(Duration::from_secs(2)).build().unwrap();
        assert_eq!(with_time(&spec, &own).unwrap().timeout(), Some(Duration::from_secs(2)));
    }
}
