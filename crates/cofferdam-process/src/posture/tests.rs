//! Unit tests.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::protocol::{Create, WorkspacePlan};

const MIB: u64 = 1 << 20;

fn facts() -> HostFacts {
    HostFacts {
        shown: Vec::new(),
        hidden: Vec::new(),
        cgroup_version: 1,
        cgroup_layout: Vec::new(),
        cgroup_reason: String::new(),
        cgroup_counts: (true, true),
        cgroup_cpu: true,
        landlock_abi: 7,
        privileged: true,
        namespaces: [1; 7],
    }
}

fn evidence() -> Evidence {
    let probes = Probes { namespaces: [2; 7], landlock_denies: true, root_read_only: true, ..Probes::default() };
    Evidence {
        pid: 1,
        ids: (1000, 1000),
        outside_uid: 77,
        no_new_privileges: true,
        seccomp: true,
        probes: Some(probes),
        disk_bytes: 64 * MIB,
        disk_files: 1024,
        process_limits: [u64::MAX; 5],
        processors: 2,
        members: 1,
        ..Evidence::default()
    }
}

/// A requested sandbox, its measurements and the facts about the host.
#[derive(Debug, Clone)]
struct Case {
    limits: Limits,
    read_only: bool,
    mounted: bool,
    facts: HostFacts,
    evidence: Evidence,
}

impl Case {
    fn create(&self) -> Create {
        Create {
            serial: 1,
            network: None,
            workspace: match self.mounted {
                true => WorkspacePlan::HostDir {
                    path: "/d".into(),
                    device: 1,
                    inode: 1,
                    uid: 1,
                    gid: 1,
                    copy_on_write: false,
                },
                false => WorkspacePlan::Private,
            },
            inside: crate::protocol::INSIDE,
            mounts: Vec::new(),
            read_only: self.read_only,
            disk: self.limits.disk.map(ByteSize::as_bytes),
            memory: self.limits.memory.map(ByteSize::as_bytes),
            tasks: self.limits.pids.map(u64::from),
            processes: None,
            cpu_millis: self.limits.cpus.map(|cpus| u64::from(cpus.as_millis())),
            cpu_micros: self.limits.cpu_time.map(|time| time.as_micros() as u64),
            probe: true,
            expected: None,
        }
    }

    /// Returns true if the posture is sufficient, provided that the control group has the limits that were set.
    fn is_sufficient(&self) -> bool {
        let access = if self.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let workspace = match self.mounted {
            true => Workspace::HostDir { path: "/d".into(), access },
            false => Workspace::Private { access },
        };
        let spec = Spec::builder().workspace(workspace).limits(self.limits.clone()).build().unwrap();
        let bounds = GroupBounds {
            version: "cgroup v1",
            memory: self.limits.memory.map(ByteSize::as_bytes),
            sockets: self.limits.memory.map(|memory| socket_share(memory.as_bytes())),
            tasks: self.limits.pids.map(|tasks| u64::from(tasks) + 1),
            cpu_millis: self.limits.cpus.map(|cpus| u64::from(cpus.as_millis())),
        };
        let probes = self.evidence.probes.clone().unwrap_or_default();
        let Self { facts, evidence, .. } = self;
        let group = (facts.cgroup_version != 0).then_some(&bounds);
        posture(&Measured { spec: &spec, facts, evidence, probes: &probes, group }).require(&BTreeSet::new()).is_ok()
    }
}

fn limits() -> impl Strategy<Value = Limits> {
    (any::<[bool; 4]>(), 1u64..200).prop_map(|(set, size)| Limits {
        memory: set[0].then_some(ByteSize::from_bytes(size * MIB)),
        pids: set[1].then_some(size as u32),
        cpu_time: set[2].then_some(Duration::from_secs(size)),
        disk: set[3].then_some(ByteSize::from_bytes(size * MIB)),
        ..Limits::default()
    })
}

/// Flaws of a sandbox, one each.
const FLAWS: [fn(&mut Case); 24] = [
    |case| case.evidence.pid = 2,
    |case| case.evidence.ids.0 = 0,
    |case| case.evidence.outside_uid = 0,
    |case| case.evidence.capabilities[1] = 1,
    |case| case.evidence.no_new_privileges = false,
    |case| case.evidence.seccomp = false,
    |case| case.evidence.probes = None,
    |case| case.evidence.workspace_read_only ^= true,
    |case| case.evidence.disk_bytes = 0,
    |case| case.evidence.disk_bytes = 1 << 40,
    |case| case.evidence.disk_files = 0,
    |case| case.evidence.members = 0,
    |case| case.facts.cgroup_version = 0,
    |case| case.facts.cgroup_counts.1 = false,
    |case| case.facts.namespaces[3] = 2,
    |case| case.probes(|probes| probes.namespaces[5] = 0),
    |case| case.probes(|probes| probes.calls_let_through.push("bpf".to_owned())),
    |case| case.probes(|probes| probes.bounding = 1),
    |case| case.probes(|probes| probes.landlock_denies = false),
    |case| case.probes(|probes| probes.root_read_only = false),
    |case| case.probes(|probes| probes.paths_visible.push("/home".to_owned())),
    |case| case.probes(|probes| probes.interfaces = 1),
    |case| case.facts.landlock_abi = 0,
    |case| case.facts.privileged = false,
];

impl Case {
    fn probes(&mut self, change: impl Fn(&mut Probes)) {
        self.evidence.probes.iter_mut().for_each(change);
    }
}

proptest! {
    /// Promise (Process isolation): A command starts before its posture is verified only if the posture satisfies the
    /// spec.
    #[test]
    fn a_command_that_starts_early_has_a_posture_that_satisfies_the_spec(
        limits in limits(),
        read_only: bool,
        mounted: bool,
        flaws in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let evidence = Evidence { workspace_read_only: read_only, ..evidence() };
        let mut case = Case { limits, read_only, mounted, facts: facts(), evidence };
        if let Some(disk) = case.limits.disk {
            case.evidence.disk_bytes = disk.as_bytes();
        }
        let sound = case.clone();
        // A writable directory of the host cannot be sized.
        let unsized_disk = mounted && !read_only && sound.limits.disk.is_some();
        prop_assert_eq!(sound.is_sufficient(), !unsized_disk);
        prop_assert_eq!(sound.evidence.is_complete(&sound.create(), &sound.facts), !unsized_disk);
        for flaw in flaws {
            FLAWS[flaw.index(FLAWS.len())](&mut case);
        }
        let whole = case.evidence.is_complete(&case.create(), &case.facts);
        prop_assert!(!whole || case.is_sufficient(), "{case:?}");
    }
}

/// Promise (Process isolation): A sandbox with a missing protection never counts as complete.
#[test]
fn a_sandbox_with_a_missing_protection_is_never_complete() {
    let limits = Limits::default();
    for (index, flaw) in FLAWS.iter().enumerate().take(22) {
        let mut case =
            Case { limits: limits.clone(), read_only: false, mounted: false, facts: facts(), evidence: evidence() };
        assert!(case.evidence.is_complete(&case.create(), &case.facts));
        flaw(&mut case);
        assert!(!case.evidence.is_complete(&case.create(), &case.facts), "flaw {index}");
    }
}
