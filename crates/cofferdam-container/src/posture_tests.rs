//! Tests of the conversion of evidence to a posture.

use std::collections::BTreeSet;

use cofferdam_guest::{Bounds, Evidence, ForbiddenCall, Mount, Space, Trial};

use cofferdam_contract::{Access, Limits, Posture, Protection, ProtectionState, Spec, Workspace};

use crate::engine::Facts;
use crate::posture::{EngineLimits, Measured, NAMESPACES, posture};
use crate::sizes::DirectorySizes;

const MIB: u64 = 1 << 20;

fn facts() -> Facts {
    Facts { api: (1, 41), kernel: "6.1".to_owned(), local: true, ..Facts::default() }
}

fn mount(path: &str, kind: &str, read_only: bool, bytes: u64) -> Mount {
    let space = (!read_only).then_some(Space { bytes, files: 100, ..Space::default() });
    Mount {
        path: path.to_owned(),
        kind: kind.to_owned(),
        root: "/".to_owned(),
        source: kind.to_owned(),
        read_only,
        options: Vec::new(),
        space,
    }
}

fn trial(path: &str) -> Trial {
    Trial { path: path.to_owned(), worked: false, errno: 30 }
}

/// Returns the evidence of a good container for this spec, with a CPU limit.
fn evidence(spec: &Spec) -> Evidence {
    let sizes = DirectorySizes::of(spec.limits().disk, spec.workspace());
    let mounts = vec![
        mount("/", "overlay", true, 0),
        mount("/proc", "proc", false, 0),
        mount("/dev", "tmpfs", false, 64 * MIB),
        mount("/dev/pts", "devpts", false, 0),
        mount("/sys", "sysfs", true, 0),
        mount("/.cofferdam", "ext4", true, 0),
        mount("/workspace", "tmpfs", false, sizes.workspace.unwrap()),
        mount("/tmp", "tmpfs", false, sizes.tmp.unwrap()),
        mount("/dev/shm", "tmpfs", false, sizes.shm.unwrap()),
    ];
    Evidence {
        pid: 1,
        kernel: "6.1".to_owned(),
        uids: vec![7; 4],
        gids: vec![7; 4],
        groups: Some(vec![7]),
        capabilities: [Some(0); 5],
        no_new_privileges: true,
        seccomp_filtered: true,
        seccomp_filters: Some(2),
        calls: vec![ForbiddenCall { name: "mount", errno: 1 }],
        namespaces: NAMESPACES.iter().map(|(name, _)| ((*name).to_owned(), 2)).collect(),
        uid_map: vec![[0, 0, 4_294_967_295]],
        mounts: Some(mounts),
        writes: vec![trial("/etc/x"), trial("/sys/fs/cgroup/x")],
        masked: vec![trial("/proc/kcore")],
        interfaces: Some(Vec::new()),
        bounds: Bounds { version: 1, memory: Some(512 * MIB), swap: Some(0), tasks: Some(257), cpu_millis: Some(500) },
        counts_cpu: true,
        counts_memory: true,
        landlock_abi: 5,
        landlock: true,
        ..Evidence::default()
    }
}

fn spec() -> Spec {
    let limits = Limits { cpus: Some("0.5".parse().unwrap()), ..Limits::default() };
    Spec::builder().limits(limits).build().unwrap()
}

/// The limits around a container whose control groups are visible inside.
const BOUNDED: EngineLimits = EngineLimits { memory: None, tasks: None, cpu_quota: None, sockets: Some(1 << 20) };

fn posture_of(spec: &Spec, facts: &Facts, evidence: &Evidence, engine_limits: EngineLimits) -> Posture {
    let own_namespaces: Vec<(&str, u64)> = NAMESPACES.iter().map(|(name, _)| (*name, 1)).collect();
    posture(&Measured {
        spec,
        facts,
        evidence,
        own_namespaces: &own_namespaces,
        user: (7, 7),
        engine_limits,
        quotas: true,
    })
}

fn short(posture: &Posture) -> Vec<Protection> {
    posture.shortfalls(&BTreeSet::new()).map(|item| item.protection).collect()
}

#[test]
fn a_good_container_falls_short_in_nothing_and_every_row_is_there() {
    let spec = spec();
    let posture = posture_of(&spec, &facts(), &evidence(&spec), BOUNDED);
    assert_eq!(short(&posture), []);
    assert_eq!(posture.items().len(), Protection::ALL.len());
    let user = posture.get(Protection::UserNamespace).unwrap();
    assert_eq!(user.state, ProtectionState::NotAsked);
    assert!(user.mechanism.contains("does not remap users"), "{user:?}");
}

#[test]
fn each_missing_protection_is_reported() {
    use Protection as P;
    type Change = fn(&mut Evidence);
    let changes: &[(Protection, Change)] = &[
        (P::Capabilities, |it| it.capabilities[3] = Some(1)),
        (P::Capabilities, |it| it.capabilities[0] = None),
        (P::NoNewPrivileges, |it| it.no_new_privileges = false),
        (P::Seccomp, |it| it.calls[0].errno = 0),
        (P::Seccomp, |it| it.calls.clear()),
        (P::Seccomp, |it| it.seccomp_filtered = false),
        (P::Landlock, |it| it.landlock = false),
        (P::User, |it| it.uids[2] = 0),
        (P::User, |it| it.gids[0] = 8),
        (P::User, |it| it.groups = Some(vec![7, 0])),
        (P::User, |it| it.groups = None),
        (P::Network, |it| it.interfaces = Some(vec!["eth0".to_owned()])),
        (P::Network, |it| it.interfaces = None),
        (P::PidNamespace, |it| it.pid = 2),
        (P::NetNamespace, |it| *it.namespaces.get_mut("net").unwrap() = 1),
        (P::IpcNamespace, |it| it.namespaces.retain(|name, _| name != "ipc")),
        (P::UserNamespace, |it| it.uid_map.clear()),
        (P::RootFilesystem, |it| it.writes[0].worked = true),
        (P::RootFilesystem, |it| it.writes.clear()),
        (P::RootFilesystem, |it| it.masked[0].worked = true),
        (P::RootFilesystem, |it| it.sockets.push("/run/docker.sock".to_owned())),
        (P::RootFilesystem, |it| it.mounts.as_mut().unwrap()[0].read_only = false),
        (P::Workspace, |it| it.mounts.as_mut().unwrap()[6].read_only = true),
        (P::Disk, |it| it.mounts.as_mut().unwrap()[6].space.as_mut().unwrap().bytes *= 2),
        (P::Disk, |it| it.mounts.as_mut().unwrap()[7].space = None),
        (P::Disk, |it| it.mounts.as_mut().unwrap().push(mount("/data", "ext4", false, 5))),
        (P::Disk, |it| it.mounts.as_mut().unwrap().push(mount("/run", "tmpfs", false, 0))),
        (P::Memory, |it| it.bounds.memory = None),
        (P::Memory, |it| it.bounds.memory = Some(513 * MIB)),
        (P::Memory, |it| it.bounds.swap = Some(1)),
        (P::Processes, |it| it.bounds.tasks = Some(258)),
        (P::Processes, |it| it.bounds.tasks = None),
        (P::Cpus, |it| it.bounds.cpu_millis = Some(501)),
        (P::Cpus, |it| it.bounds.cpu_millis = None),
    ];
    let spec = spec();
    for (number, (protection, change)) in changes.iter().enumerate() {
        let mut evidence = evidence(&spec);
        change(&mut evidence);
        let found = short(&posture_of(&spec, &facts(), &evidence, BOUNDED));
        assert!(found.contains(protection), "{number}: {protection} in {found:?}");
    }
}

#[test]
fn nothing_measured_is_nothing_enforced() {
    let spec = spec();
    let found = short(&posture_of(&spec, &facts(), &Evidence::default(), EngineLimits::default()));
    let unmeasured = [Protection::CpuTime, Protection::WallTime];
    let expected: Vec<_> = Protection::ALL.iter().copied().filter(|item| !unmeasured.contains(item)).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_kernel_of_its_own_stands_for_namespaces_and_its_limits_are_around_it() {
    let spec = spec();
    let evidence = Evidence {
        kernel: "4.4.0".to_owned(),
        namespaces: Default::default(),
        bounds: Bounds::default(),
        landlock_abi: 0,
        landlock: false,
        ..evidence(&spec)
    };
    let engine_limits =
        EngineLimits { memory: Some(512 * MIB), tasks: Some(266), cpu_quota: Some(50_000), sockets: None };
    let posture = posture_of(&spec, &facts(), &evidence, engine_limits);
    assert_eq!(short(&posture), [Protection::Processes]);
    assert!(posture.get(Protection::NetNamespace).unwrap().mechanism.contains("Linux 4.4.0"));
    assert_eq!(posture.get(Protection::Landlock).unwrap().state, ProtectionState::NotAsked);
    let nothing = short(&posture_of(&spec, &facts(), &evidence, BOUNDED));
    assert!(nothing.contains(&Protection::Memory) && nothing.contains(&Protection::Cpus), "{nothing:?}");
}

#[test]
fn socket_buffers_that_version_1_does_not_bound_make_memory_weaker() {
    let spec = spec();
    let mut evidence = evidence(&spec);
    for (version, sockets, expected) in [
        (1, None, vec![Protection::Memory]),
        (1, Some(1 << 40), vec![Protection::Memory]),
        (1, Some(16 * MIB), vec![]),
        (2, None, vec![]),
    ] {
        evidence.bounds.version = version;
        let engine_limits = EngineLimits { sockets, ..EngineLimits::default() };
        assert_eq!(
            short(&posture_of(&spec, &facts(), &evidence, engine_limits)),
            expected,
            "version {version}, {sockets:?}"
        );
    }
}

#[test]
fn a_private_workspace_is_read_only_only_where_that_was_tried() {
    let spec = Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap();
    for (tried, holds) in [(Some(false), true), (Some(true), false), (None, false)] {
        let evidence = Evidence { workspace_writable: tried, ..evidence(&spec) };
        let posture = posture_of(&spec, &facts(), &evidence, BOUNDED);
        assert_eq!(!short(&posture).contains(&Protection::Workspace), holds, "{tried:?}");
    }
}

#[test]
fn a_writable_workspace_that_guests_cannot_write_to_is_reported() {
    let spec = spec();
    for (tried, holds) in [(Some(false), false), (Some(true), true), (None, true)] {
        let evidence = Evidence { workspace_writable: tried, ..evidence(&spec) };
        let posture = posture_of(&spec, &facts(), &evidence, EngineLimits::default());
        assert_eq!(!short(&posture).contains(&Protection::Workspace), holds, "{tried:?}");
    }
}

#[test]
fn mounted_directory_has_no_size_limit() {
    for (access, weaker) in [(Access::ReadWrite, true), (Access::ReadOnly, false)] {
        let mounted = Workspace::HostDir { path: "/x".into(), access };
        let spec = Spec::builder().workspace(mounted).build().unwrap();
        let mut evidence = evidence(&spec);
        evidence.mounts.as_mut().unwrap()[6] = mount("/workspace", "ext4", access == Access::ReadOnly, 0);
        let posture = posture_of(&spec, &facts(), &evidence, BOUNDED);
        assert_eq!(short(&posture).contains(&Protection::Disk), weaker);
    }
}

#[test]
fn a_layer_over_a_directory_is_measured() {
    let spec = Spec::builder().workspace(Workspace::CopyOnWrite { path: "/x".into() }).build().unwrap();
    let size = DirectorySizes::of(spec.limits().disk, spec.workspace()).workspace.unwrap();
    for (kind, read_only, bytes, expected) in [
        ("overlay", false, size, &[][..]),
        ("overlay", false, size + MIB, &[Protection::Disk]),
        ("overlay", true, size, &[Protection::Workspace]),
        ("ext4", false, size, &[Protection::Workspace, Protection::Disk]),
    ] {
        let mut evidence = evidence(&spec);
        evidence.mounts.as_mut().unwrap()[6] = mount("/workspace", kind, read_only, bytes);
        let short = short(&posture_of(&spec, &facts(), &evidence, BOUNDED));
        assert!(expected.iter().all(|protection| short.contains(protection)), "{kind}: {short:?}");
        assert_eq!(short.len(), expected.len(), "{kind}: {short:?}");
    }
}
