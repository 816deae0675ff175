//! Pools of sandboxes: their sandboxes equal created ones, and nothing is left behind.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::engine::{PoolConfig, PooledBackend};
use cofferdam::{Access, Backend, Capability, ExecRequest, Protection, Spec, TenantId, Workspace, registry};
use cofferdam_conformance::UnixPrograms;
use cofferdam_conformance::equivalence::{Trial, compare_backends};

use crate::census;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of cases. Each takes two sandboxes, and every other one a template.
const TRIALS: u64 = 12;

/// Runs an async test on one thread, between two censuses of the host.
fn leaving_nothing(test: impl Future<Output = ()>) {
    let before = census::census();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test);
    drop(runtime);
    let left = census::left_behind(&before, TEST_TIMEOUT);
    assert!(left.is_empty(), "{left:?}");
}

fn process() -> Arc<dyn Backend> {
    registry::backend("process").expect("the backend is built in")
}

/// Waits until the configured number of sandboxes is prepared, if the backend prepares any for this template.
async fn refilled(pooled: &PooledBackend, ahead: bool) {
    let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let metrics = pooled.pool().metrics();
        if !ahead || metrics.refill_failures > 0 || metrics.warm >= pooled.pool().config().min_warm {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{metrics:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Promise (Warm sandboxes and pools): A claimed process sandbox equals a created one in posture, environment and
/// access.
#[test]
fn claimed_sandbox_equals_a_created_one() {
    leaving_nothing(async {
        let mounted = tempfile::tempdir().expect("a directory");
        // As an unprivileged user's sandbox sees it: writable for the guest, whatever its user id.
        std::fs::set_permissions(mounted.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        let directory = mounted.path().canonicalize().expect("it exists");
        let backend = process();
        let ahead = backend.capabilities().contains(&Capability::Warm);
        let mut warm = 0;
        for pair in 0..TRIALS / 2 {
            // Without control groups only the template itself is compatible, so one pair uses it.
            let seed = if pair == 0 { 0 } else { pair + 1000 };
            let template = Trial::seeded(seed, &Spec::default(), None).spec;
            let config = PoolConfig { min_warm: 1, ..PoolConfig::default() };
            let pooled = PooledBackend::new(Arc::clone(&backend), template, config).expect("a pool");
            for seed in [pair * 2, pair * 2 + 1] {
                refilled(&pooled, ahead).await;
                let mounted = (pair > 0).then_some(directory.as_path());
                let trial = Trial::seeded(seed, &Spec::default(), mounted);
                let compared = compare_backends(&*backend, &pooled, &UnixPrograms::default(), &trial).await;
                compared.unwrap_or_else(|differs| panic!("{differs}, for {:?}", trial.spec));
            }
            warm += pooled.pool().metrics().claims.warm;
            pooled.pool().shutdown(TEST_TIMEOUT).await.expect("everything ends");
        }
        assert!(warm > 0 || !ahead, "nothing was claimed that was made ahead");
    });
}

#[test]
fn runs_through_a_pool_are_apart_and_leave_nothing() {
    leaving_nothing(async {
        let config = PoolConfig { max: 4, ..PoolConfig::default() };
        let pooled = Arc::new(registry::pooled("process", Spec::default(), config).expect("a pool"));
        let mut running = tokio::task::JoinSet::new();
        for number in 0..24 {
            let pooled = Arc::clone(&pooled);
            running.spawn(async move {
                let tenant = TenantId::new(format!("t{}", number % 3)).expect("valid");
                let spec = Spec::builder().tenant(tenant).build().expect("valid");
                let line =
                    format!("test ! -e mark && echo {number} > mark && cat mark && sleep 1000 &\nsleep 0.05; cat mark");
                let request = ExecRequest::shell(line).build().expect("valid");
                let (done, posture) = pooled.pool().run(spec, request).await.expect("it runs");
                let printed = String::from_utf8_lossy(&done.stdout).into_owned();
                assert_eq!(printed, format!("{number}\n{number}\n"));
                assert!(!posture.items().is_empty());
            });
        }
        while let Some(done) = running.join_next().await {
            done.expect("it does not panic");
        }
        let metrics = pooled.pool().metrics();
        assert_eq!((metrics.claims.total(), metrics.failures), (24, 0), "{metrics:?}");
        pooled.pool().shutdown(TEST_TIMEOUT).await.expect("everything ends");
    });
}

/// Promise (Warm sandboxes and pools): A run with a mounted host directory returns only when no process can write
/// there.
#[test]
fn run_with_a_mount_returns_after_its_last_writer() {
    leaving_nothing(async {
        let mounted = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(mounted.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        let path = mounted.path().canonicalize().expect("it exists");
        let pooled = registry::pooled("process", Spec::default(), PoolConfig::default()).expect("a pool");
        let workspace = Workspace::HostDir { path: path.clone(), access: Access::ReadWrite };
        let spec = Spec::builder().workspace(workspace).allow_weaker(Protection::Disk).build().expect("valid");
        let line = "(while :; do echo x >> beats; done) > /dev/null 2>&1 &\nuntil test -s beats; do :; done";
        let request = ExecRequest::shell(line).build().expect("valid");
        let (done, _posture) = pooled.pool().run(spec, request).await.expect("it runs");
        assert!(done.exit.success(), "{done:?}");
        let size = || std::fs::metadata(path.join("beats")).expect("it was made").len();
        let before = size();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(size(), before);
        pooled.pool().shutdown(TEST_TIMEOUT).await.expect("everything ends");
    });
}

/// A search for traces of earlier tenants: files in writable directories, shared memory, processes, variables. The
/// patterns do not match themselves.
const PROBE: &str = r#"
    ls -A /workspace
    find /tmp /var/tmp /dev/shm /dev/mqueue /run /home -xdev -name 'of-a-tenant*' 2> /dev/null
    env | grep 'OF_A[_]TENANT'
    for entry in /proc/[0-9]*; do tr '\0' ' ' < $entry/cmdline; tr '\0' ' ' < $entry/environ; echo; done 2> /dev/null |
        grep -e 'sleep 777[7]' -e 'OF_A[_]TENANT'
    true"#;
/// A program that leaves all these traces, as far as it can.
const LEAVE: &str = r#"
    for place in /workspace /tmp /var/tmp /dev/shm /dev/mqueue /run /home; do
        echo secret > $place/of-a-tenant
    done 2> /dev/null
    setsid sleep 7777 > /dev/null 2>&1 < /dev/null &
    test -e /workspace/of-a-tenant -a -e /tmp/of-a-tenant -a -e /dev/shm/of-a-tenant"#;

/// Uses leases of a pool, one after the other and two at once, half of them for other tenants.
async fn tenants_share_nothing(backend: Arc<dyn Backend>) {
    let config = PoolConfig { max: 4, min_warm: 2, ..PoolConfig::default() };
    // Limits that a host cannot enforce are not tested here.
    let weaker = [Protection::Memory, Protection::CpuTime, Protection::Processes, Protection::Disk];
    let base = weaker.into_iter().fold(Spec::builder(), |spec, item| spec.allow_weaker(item)).build().expect("valid");
    let pooled = PooledBackend::new(backend, base.clone(), config).expect("a pool");
    let spec = |tenant: u32| {
        let tenant = TenantId::new(format!("tenant-{tenant}")).expect("valid");
        base.to_builder().tenant(tenant).build().expect("valid")
    };
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..4 {
        refilled(&pooled, true).await;
        // Prepared containers are compatible only with their own tenant.
        let leases = [base.clone(), spec(round)].map(|spec| pooled.pool().claim(spec));
        let [one, other] = leases;
        let (one, other) = tokio::join!(one, other);
        for lease in [one.expect("a sandbox"), other.expect("a sandbox")] {
            assert!(seen.insert(lease.id().to_string()), "{} was given twice", lease.id());
            let probe = lease.exec(ExecRequest::shell(PROBE).build().expect("valid")).await.expect("it runs");
            assert_eq!(String::from_utf8_lossy(&probe.stdout), "", "of another tenant");
            let leave = ExecRequest::shell(LEAVE).env("OF_A_TENANT", "secret").build().expect("valid");
            let left = lease.exec(leave).await.expect("it runs");
            assert!(left.exit.success(), "nothing could be left: {left:?}");
            // Checks that the search finds existing traces. The environment of another process cannot be read in
            // containers.
            let probe = lease.exec(ExecRequest::shell(PROBE).build().expect("valid")).await.expect("it runs");
            let found = String::from_utf8_lossy(&probe.stdout);
            for what in ["/tmp/of-a-tenant", "/dev/shm/of-a-tenant", "sleep 7777"] {
                assert!(found.contains(what), "{what} is not found: {found}");
            }
            lease.close().await.expect("it closes");
        }
    }
    let metrics = pooled.pool().metrics();
    assert!(metrics.claims.warm > 0, "nothing was claimed that was made ahead: {metrics:?}");
    pooled.pool().shutdown(TEST_TIMEOUT).await.expect("everything ends");
}

/// Promise (Warm sandboxes and pools): Tenants of a pool of process sandboxes share nothing.
#[test]
fn tenants_of_a_pool_share_nothing() {
    leaving_nothing(async {
        if process().capabilities().contains(&Capability::Warm) {
            tenants_share_nothing(process()).await;
        } else {
            println!("SKIP tenants_of_a_pool_share_nothing: nothing is made ahead on this host");
        }
    });
}

/// Promise (Warm sandboxes and pools): Tenants of a pool of containers share nothing.
#[cfg(feature = "container")]
#[test]
fn tenants_of_a_pool_of_containers_share_nothing() {
    use cofferdam::registry::{ContainerSettings, Setup};
    for variable in ["COFFERDAM_TEST_DOCKER", "COFFERDAM_TEST_PODMAN"] {
        let Ok(socket) = std::env::var(variable) else {
            println!("SKIP tenants_of_a_pool_of_containers_share_nothing: {variable} names no engine");
            continue;
        };
        let containers = ContainerSettings { host: Some(format!("unix://{socket}")), ..ContainerSettings::default() };
        let setup = Setup { containers, ..Setup::default() };
        leaving_nothing(async {
            let backend = registry::backend_with("docker", &setup).expect("a backend");
            tenants_share_nothing(backend).await;
        });
    }
}

/// Promise (Warm sandboxes and pools): A dropped pool and a dropped lease leave no process sandbox.
#[test]
fn a_dropped_pool_and_a_dropped_lease_leave_nothing() {
    leaving_nothing(async {
        let pooled = registry::pooled("process", Spec::default(), PoolConfig::default()).expect("a pool");
        let lease = pooled.pool().claim(Spec::default()).await.expect("a sandbox");
        let request = ExecRequest::argv(["sleep", "1000"]).build().expect("valid");
        let running = lease.sandbox().start(request).await.expect("it starts");
        assert!(running.try_exit().is_none());
        drop(pooled);
        drop(lease);
        assert!(running.exit().await.is_ok_and(|exit| exit.cancelled));
    });
}

/// A program that prints traces of other tenants, and leaves files and a process.
#[cfg(feature = "vm")]
const MARKS: &str = "ls -A /workspace /tmp /dev/shm | grep -v ':$' | grep .; cat /proc/[0-9]*/comm | grep -x sleep
for at in /workspace /tmp /dev/shm; do echo $MINE > $at/$MINE; done; (sleep 1000 > /dev/null 2>&1 &) ; echo marked";

/// Promise (Virtual machines): Each VM of a pool serves one lease, and each snapshot one tenant.
#[cfg(feature = "vm")]
#[test]
fn pooled_vms_serve_one_lease_and_snapshots_one_tenant() {
    use cofferdam::registry::{Setup, VmSettings};
    use std::collections::BTreeSet;

    use crate::cli::vms::{cache, with_vms};

    let test = "pooled_vms_serve_one_lease_and_snapshots_one_tenant";
    if with_vms(std::process::Command::new("true"), test).is_none() {
        return;
    }
    leaving_nothing(async {
        let vms = VmSettings {
            images: Some(cache().join("vm")),
            image: Some("cli-tests".to_owned()),
            ..VmSettings::default()
        };
        let setup = Setup { vms, ..Setup::default() };
        let backend = registry::backend_with("vm", &setup).expect("the backend is built in");
        let config = PoolConfig { min_warm: 2, max: 4, ..PoolConfig::default() };
        let pooled = PooledBackend::new(backend, Spec::default(), config).expect("a pool");
        let spec = |tenant: &str| {
            Spec::builder().tenant(TenantId::new(tenant).expect("a name")).build().expect("a valid spec")
        };
        let (mut ids, mut machine_ids, mut snapshot) = (BTreeSet::new(), BTreeSet::new(), None);
        for turn in 0..6 {
            refilled(&pooled, true).await;
            let tenant = ["acme", "rival"][turn % 2];
            let lease = pooled.pool().claim(spec(tenant)).await.expect("a VM");
            let request = ExecRequest::shell(MARKS).env("MINE", format!("{tenant}-{turn}")).build().expect("valid");
            let done = lease.exec(request).await.expect("it runs");
            assert_eq!(String::from_utf8_lossy(&done.stdout), "marked\n", "{done:?}");
            let request = ExecRequest::shell("cat /etc/machine-id; ls /workspace").build().expect("valid");
            let done = lease.exec(request).await.expect("it runs");
            let printed = String::from_utf8_lossy(&done.stdout).into_owned();
            let (machine, mine) = printed.split_once('\n').expect("two lines");
            assert_eq!(mine, format!("{tenant}-{turn}\n"));
            assert!(ids.insert(lease.id().to_string()) && machine_ids.insert(machine.to_owned()), "{machine}: twice");
            if turn == 0 {
                snapshot = Some(lease.snapshot().await.expect("a snapshot"));
            }
            lease.close().await.expect("it ends");
        }
        let metrics = pooled.pool().metrics();
        assert!(metrics.claims.warm > 0, "none was made ahead: {metrics:?}");
        let snapshot = snapshot.expect("the first was taken");
        let error = pooled.restore(snapshot.clone(), spec("rival")).await.map(drop).expect_err("another tenant's");
        assert_eq!(error.kind(), cofferdam::ErrorKind::Denied, "{error}");
        let own = pooled.restore(snapshot, spec("acme")).await.expect("the tenant's own");
        let done = own.exec(ExecRequest::shell("ls /workspace").build().expect("valid")).await.expect("it runs");
        assert_eq!(String::from_utf8_lossy(&done.stdout), "acme-0\n");
        own.close().await.expect("it ends");
        pooled.pool().shutdown(TEST_TIMEOUT).await.expect("everything ends");
    });
}
