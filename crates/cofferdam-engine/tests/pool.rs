//! Tests of the pool over a simulated backend: order of claims, replacement of sandboxes, and complete cleanup.
#![forbid(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Backend, Capabilities, ErrorKind, ExecRequest, Level, PreparedSandbox, Protection, ProtectionState, Result,
    Sandbox, Snapshot, Spec,
};
use cofferdam_engine::{ClaimCounts, ClaimKind, Pool, PoolConfig};
use cofferdam_simulated::{FaultPlan, FaultPoint, SimulatedBackend, SimulatedConfig};
use support::{SECOND, of_tenant, pool, pool_over, print, settle, sleep_forever, small, unfit};
use tokio::time::Instant;

/// Promise (Warm sandboxes and pools): A claim takes an idle sandbox, and the pool replaces it.
#[tokio::test(start_paused = true)]
async fn claim_takes_an_idle_sandbox_that_is_replaced() {
    let (backend, pool) = pool(small(), FaultPlan::none());
    settle().await;
    let waiting = backend.living();
    assert_eq!((waiting.len(), pool.metrics().warm, pool.metrics().refills), (2, 2, 2));
    let lease = pool.claim(of_tenant("acme")).await.unwrap();
    assert_eq!(lease.kind(), ClaimKind::Warm);
    assert!(waiting.contains(lease.id()));
    assert_eq!(lease.spec().tenant().as_str(), "acme");
    settle().await;
    assert_eq!((pool.metrics().warm, pool.metrics().refills), (1, 2), "the claimed sandbox comes first");
    tokio::time::sleep(small().refill_delay).await;
    let metrics = pool.metrics();
    assert_eq!((metrics.warm, metrics.claimed, metrics.refills), (2, 1, 3));
    assert_eq!(metrics.claims, ClaimCounts { warm: 1, ..ClaimCounts::default() });
    assert_eq!((metrics.wait_time.count(), metrics.claim_time.count()), (1, 1));
    lease.close().await.unwrap();
    assert_eq!((pool.metrics().claimed, pool.metrics().closing), (0, 0));
}

/// Promise (Warm sandboxes and pools): A refill starts as soon as the claim is served.
#[tokio::test(start_paused = true)]
async fn a_refill_begins_as_soon_as_the_claim_is_served() {
    let faults = FaultPlan::none().delay(FaultPoint::Claim, 1, Duration::from_millis(10));
    let (_backend, pool) = pool(small(), faults);
    settle().await;
    let _lease = pool.claim(Spec::default()).await.unwrap();
    // The paused clock does not advance while a task is ready to run.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.metrics().warm, 2);
}

/// Promise (Warm sandboxes and pools): A pool leases no sandbox twice.
#[tokio::test(start_paused = true)]
async fn no_sandbox_is_given_out_twice() {
    let (_backend, pool) = pool(small(), FaultPlan::none());
    let mut seen = BTreeSet::new();
    for round in 0..50 {
        let lease = pool.claim(if round % 5 == 0 { unfit() } else { Spec::default() }).await.unwrap();
        assert!(seen.insert(lease.id().clone()), "{} again", lease.id());
        let sandbox = Arc::clone(lease.sandbox());
        lease.close().await.unwrap();
        assert_eq!(sandbox.start(print("x")).await.unwrap_err().kind(), ErrorKind::Closed);
        if round % 2 == 0 {
            settle().await;
        }
    }
    let claims = pool.metrics().claims;
    assert!(claims.warm > 10 && claims.total() == 50, "{claims:?}");
}

/// Promise (Warm sandboxes and pools): A pool creates a sandbox if no warm one is compatible with the spec.
#[tokio::test(start_paused = true)]
async fn incompatible_spec_is_created() {
    let (backend, pool) = pool(small(), FaultPlan::none());
    settle().await;
    let waiting = backend.living();
    let lease = pool.claim(unfit()).await.unwrap();
    assert_eq!(lease.kind(), ClaimKind::ColdUnfit);
    assert_eq!(lease.spec(), &unfit());
    assert!(!waiting.contains(lease.id()));
    assert_eq!(pool.metrics().claims.cold_unfit, 1);
}

#[tokio::test(start_paused = true)]
async fn idle_sandbox_is_evicted_for_an_incompatible_claim() {
    let config = PoolConfig { min_warm: 2, max_warm: 2, max: 2, ..PoolConfig::default() };
    let (backend, pool) = pool(config, FaultPlan::none());
    settle().await;
    let lease = pool.claim(unfit()).await.unwrap();
    assert_eq!(lease.kind(), ClaimKind::ColdUnfit);
    assert_eq!((backend.living().len(), pool.metrics().evicted, pool.metrics().warm), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_makes_none_ahead_is_pooled_all_the_same() {
    let capabilities = SimulatedConfig::default().capabilities.into_iter();
    let capabilities = capabilities.filter(|it| *it != cofferdam_contract::Capability::Warm).collect();
    let (backend, pool) = pool_over(SimulatedConfig { capabilities, ..SimulatedConfig::default() }, small());
    settle().await;
    let lease = pool.claim(Spec::default()).await.unwrap();
    assert_eq!((lease.kind(), backend.living().len()), (ClaimKind::ColdEmpty, 1));
    tokio::time::sleep(3600 * SECOND).await;
    assert_eq!((pool.metrics().refill_failures, pool.metrics().target), (0, 0));
}

/// Promise (Warm sandboxes and pools): Never more than `max` sandboxes of a pool are alive, also during creates and
/// closes.
#[tokio::test(start_paused = true)]
async fn never_more_than_max_are_alive_and_tenants_are_served_in_turn() {
    let config = PoolConfig { min_warm: 0, max_warm: 0, max: 1, ..PoolConfig::default() };
    let (backend, pool) = pool(config, FaultPlan::none());
    let pool = Arc::new(pool);
    let first = pool.claim(of_tenant("z")).await.unwrap();
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    for tenant in ["a", "a", "a", "b", "c", "b"] {
        let (pool, sender, backend) = (Arc::clone(&pool), sender.clone(), Arc::clone(&backend));
        tokio::spawn(async move {
            let lease = pool.claim(of_tenant(tenant)).await.unwrap();
            assert_eq!(backend.living().len(), 1);
            sender.send(tenant).unwrap();
            tokio::time::sleep(SECOND).await;
            drop(lease);
        });
        settle().await;
    }
    assert_eq!(pool.metrics().waiting, 6);
    drop((first, sender));
    let mut order = Vec::new();
    while let Some(tenant) = served.recv().await {
        order.push(tenant);
    }
    assert_eq!(order, ["a", "b", "c", "a", "b", "a"]);
}

/// Promise (Warm sandboxes and pools): The queues of a pool are limited, in all and for each tenant, and a refusal has
/// a remedy.
#[tokio::test(start_paused = true)]
async fn queues_are_bounded_and_refusals_have_a_remedy() {
    let config = PoolConfig { min_warm: 0, max_warm: 0, max: 1, max_waiting: 3, max_waiting_per_tenant: 2, ..small() };
    let (_backend, pool) = pool(config, FaultPlan::none());
    let pool = Arc::new(pool);
    let held = pool.claim(Spec::default()).await.unwrap();
    let wait = |tenant| {
        let pool = Arc::clone(&pool);
        tokio::spawn(async move { pool.claim(of_tenant(tenant)).await.map(drop) })
    };
    let waiting = [wait("a"), wait("a")];
    settle().await;
    let of_a = pool.claim(of_tenant("a")).await.unwrap_err();
    assert_eq!(of_a.kind(), ErrorKind::ResourceExhausted);
    assert!(of_a.remedy().is_some_and(|remedy| remedy.contains("max_waiting_per_tenant")), "{of_a:?}");
    assert_eq!(of_a.context().collect::<Vec<_>>(), [("tenant", "a")]);
    let third = wait("b");
    settle().await;
    let of_all = pool.claim(of_tenant("c")).await.unwrap_err();
    assert!(of_all.remedy().is_some_and(|remedy| remedy.contains("max_waiting")), "{of_all:?}");
    assert_eq!(pool.metrics().refused, 2);
    drop(held);
    for task in waiting.into_iter().chain([third]) {
        task.await.unwrap().unwrap();
    }
}

/// Promise (Warm sandboxes and pools): The wait of a claim is limited.
#[tokio::test(start_paused = true)]
async fn a_claim_waits_so_long_and_no_longer() {
    let config = PoolConfig { min_warm: 0, max_warm: 0, max: 1, claim_timeout: 5 * SECOND, ..small() };
    let (backend, pool) = pool(config, FaultPlan::none());
    let held = pool.claim(Spec::default()).await.unwrap();
    let start = Instant::now();
    let error = pool.claim(Spec::default()).await.unwrap_err();
    assert_eq!((error.kind(), start.elapsed().as_secs()), (ErrorKind::ResourceExhausted, 5));
    assert_eq!((pool.metrics().timed_out, pool.metrics().waiting), (1, 0));
    held.close().await.unwrap();
    assert!(backend.living().is_empty());
}

/// Promise (Warm sandboxes and pools): A caller that cancels its claim leaves nothing.
#[tokio::test(start_paused = true)]
async fn cancelled_claim_leaves_nothing() {
    let faults = FaultPlan::none().delay(FaultPoint::Create, 1, 10 * SECOND);
    let config = PoolConfig { min_warm: 0, max_warm: 0, max: 1, ..small() };
    let (backend, pool) = pool(config, faults);
    assert!(tokio::time::timeout(SECOND, pool.claim(Spec::default())).await.is_err());
    assert!(tokio::time::timeout(SECOND, pool.claim(Spec::default())).await.is_err());
    assert_eq!((pool.metrics().waiting, pool.metrics().making), (0, 1));
    tokio::time::sleep(10 * SECOND).await;
    assert!(backend.living().is_empty());
    assert_eq!((pool.metrics().making, pool.metrics().claimed, pool.metrics().closing), (0, 0, 0));
}

/// Promise (Warm sandboxes and pools): A pool stops waiting for a backend that hangs.
#[tokio::test(start_paused = true)]
async fn a_backend_that_hangs_is_given_up() {
    let faults =
        FaultPlan::none().delay(FaultPoint::Warm, 1, 100_000 * SECOND).delay(FaultPoint::Create, 1, 100_000 * SECOND);
    let (_backend, pool) = pool(PoolConfig { claim_timeout: 3600 * SECOND, ..small() }, faults);
    let error = pool.claim(unfit()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    tokio::time::sleep(120 * SECOND).await;
    let metrics = pool.metrics();
    assert_eq!((metrics.failures, metrics.refill_failures, metrics.warm, metrics.making), (1, 1, 2, 0));
}

/// Promise (Warm sandboxes and pools): A pool replaces a dead sandbox at the claim and does not lease it.
#[tokio::test(start_paused = true)]
async fn dead_sandbox_is_replaced_and_not_leased() {
    let faults = FaultPlan::none().die_waiting(1, 3 * SECOND).die_waiting(2, 3 * SECOND);
    let (backend, pool) = pool(PoolConfig { check_every: 3600 * SECOND, ..small() }, faults);
    settle().await;
    tokio::time::advance(4 * SECOND).await;
    let lease = pool.claim(Spec::default()).await.unwrap();
    assert_eq!(lease.kind(), ClaimKind::ColdEmpty);
    settle().await;
    assert_eq!((pool.metrics().died, backend.living().len()), (2, 1 + pool.metrics().warm));
}

/// Promise (Warm sandboxes and pools): A pool finds and replaces dead sandboxes while it is idle.
#[tokio::test(start_paused = true)]
async fn dead_sandboxes_are_replaced_while_the_pool_is_idle() {
    let (_backend, pool) = pool(small(), FaultPlan::none().die_waiting(1, 3 * SECOND));
    tokio::time::sleep(30 * SECOND).await;
    let metrics = pool.metrics();
    assert_eq!((metrics.died, metrics.warm, metrics.refills), (1, 2, 3));
}

/// Promise (Warm sandboxes and pools): A pool retries a failed claim with a create if a retry can help, and reports
/// other errors.
#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_is_replaced_where_that_can_help_and_else_reported() {
    let faults =
        FaultPlan::none().fail(FaultPoint::Claim, 1, ErrorKind::Unavailable).fail(FaultPoint::Claim, 2, ErrorKind::Io);
    let (backend, pool) = pool(small(), faults);
    settle().await;
    let lease = pool.claim(Spec::default()).await.unwrap();
    assert_eq!((lease.kind(), pool.metrics().claims.cold_replaced), (ClaimKind::ColdReplaced, 1));
    settle().await;
    assert_eq!(pool.claim(Spec::default()).await.unwrap_err().kind(), ErrorKind::Io);
    settle().await;
    assert_eq!((pool.metrics().failures, backend.living().len()), (1, 3));
}

/// Promise (Warm sandboxes and pools): A pool refuses what a create refuses as too weak.
#[tokio::test(start_paused = true)]
async fn pool_refuses_weaker_protection_as_a_create_does() {
    let backend = SimulatedConfig {
        shortfalls: [(Protection::Cpus, ProtectionState::Absent)].into(),
        fixed_when_warm: [].into(),
        ..SimulatedConfig::default()
    };
    let (backend, pool) = pool_over(backend, small());
    settle().await;
    assert_eq!(pool.claim(unfit()).await.unwrap_err().kind(), ErrorKind::WeakerThanRequired);
    let allowed = unfit().to_builder().allow_weaker(Protection::Cpus).build().unwrap();
    let lease = pool.claim(allowed).await.unwrap();
    assert_eq!(lease.kind(), ClaimKind::Warm);
    assert_eq!(lease.posture().get(Protection::Cpus).unwrap().state, ProtectionState::Absent);
    settle().await;
    assert_eq!(backend.living().len(), 3);
}

/// Promise (Warm sandboxes and pools): Failed refills back off and recover.
#[tokio::test(start_paused = true)]
async fn failed_refills_back_off_and_recover() {
    let faults = (1..=5).fold(FaultPlan::none(), |plan, nth| plan.fail(FaultPoint::Warm, nth, ErrorKind::Unavailable));
    let (_backend, pool) = pool(small(), faults);
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert_eq!(pool.metrics().refill_failures, 1, "no immediate second attempt");
    assert!(pool.metrics().refill_error.is_some_and(|error| error.contains("injected")));
    // Backoff of 100 + 200 + 400 + 800 + 1600 ms at most, half of it at least.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(pool.metrics().warm == 0 && (2..=5).contains(&pool.metrics().refill_failures));
    tokio::time::sleep(Duration::from_millis(1700)).await;
    assert_eq!((pool.metrics().refill_failures, pool.metrics().warm), (5, 2));
    assert_eq!(pool.metrics().refill_error, None);
}

/// Promise (Warm sandboxes and pools): Demand raises the number of prepared sandboxes, and idle time lowers it to the
/// minimum.
#[tokio::test(start_paused = true)]
async fn a_burst_makes_the_pool_grow_and_idleness_makes_it_shrink() {
    let config = PoolConfig { min_warm: 1, max_warm: 4, max: 16, ..PoolConfig::default() };
    let (backend, pool) = pool(config, FaultPlan::none());
    settle().await;
    let pool = Arc::new(pool);
    let mut claims = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let pool = Arc::clone(&pool);
        claims.spawn(async move { pool.claim(Spec::default()).await.unwrap() });
    }
    drop(claims.join_all().await);
    tokio::time::sleep(SECOND).await;
    assert_eq!((pool.metrics().warm, pool.metrics().target, backend.living().len()), (4, 4, 4));
    tokio::time::sleep(62 * SECOND).await;
    assert_eq!((pool.metrics().warm, pool.metrics().expired), (1, 3));
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!((pool.metrics().warm, pool.metrics().expired), (1, 3));
}

/// Promise (Warm sandboxes and pools): A pool replaces sandboxes that reach their maximum age.
#[tokio::test(start_paused = true)]
async fn the_old_are_replaced() {
    let (backend, pool) = pool(small(), FaultPlan::none());
    settle().await;
    let first = backend.living();
    tokio::time::sleep(PoolConfig::default().max_age + SECOND).await;
    let second = backend.living();
    assert!(second.len() == 2 && first.is_disjoint(&second), "{first:?} {second:?}");
    assert_eq!(pool.metrics().expired, 2);
}

/// Promise (Warm sandboxes and pools): A slot of a pool is free only when its sandbox is destroyed.
#[tokio::test(start_paused = true)]
async fn a_place_is_free_only_when_its_sandbox_is_gone() {
    let config = PoolConfig { min_warm: 0, max_warm: 0, max: 1, ..small() };
    let (_backend, pool) = pool(config, FaultPlan::none().delay(FaultPoint::Close, 1, 7 * SECOND));
    drop(pool.claim(Spec::default()).await.unwrap());
    let start = Instant::now();
    let lease = pool.claim(Spec::default()).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 7);
    let start = Instant::now();
    lease.close().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 0);
}

/// Promise (Warm sandboxes and pools): A run in a pool returns when its command ends.
#[tokio::test(start_paused = true)]
async fn a_run_answers_when_its_command_has_ended() {
    let (backend, pool) = pool(small(), FaultPlan::none().delay(FaultPoint::Close, 1, 7 * SECOND));
    settle().await;
    let start = Instant::now();
    let (done, posture) = pool.run(of_tenant("acme"), print("once")).await.unwrap();
    assert_eq!((&done.stdout[..], done.exit.code, start.elapsed().as_secs()), (&b"once"[..], 0, 0));
    assert!(posture.get(Protection::Memory).is_some());
    let missing = ExecRequest::argv(["/nowhere/no-such-program"]).build().unwrap();
    assert_eq!(pool.run(Spec::default(), missing).await.unwrap_err().kind(), ErrorKind::NotFound);
    tokio::time::sleep(8 * SECOND).await;
    assert_eq!((pool.metrics().claimed, pool.metrics().closing, backend.living().len()), (0, 0, 2));
}

/// Promise (Warm sandboxes and pools): The shutdown of a pool waits for its leases and leaves nothing.
#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_leases_and_leaves_nothing() {
    let (backend, pool) = pool(small(), FaultPlan::none());
    settle().await;
    let lease = pool.claim(Spec::default()).await.unwrap();
    let done = tokio::spawn(async move {
        tokio::time::sleep(3 * SECOND).await;
        assert!(lease.exec(print("x")).await.unwrap().exit.success());
        lease.close().await
    });
    let start = Instant::now();
    pool.shutdown(10 * SECOND).await.unwrap();
    assert_eq!((start.elapsed().as_secs(), backend.living().len()), (3, 0));
    done.await.unwrap().unwrap();
    assert_eq!(pool.claim(Spec::default()).await.unwrap_err().kind(), ErrorKind::Closed);
    pool.shutdown(SECOND).await.unwrap();
}

/// Promise (Warm sandboxes and pools): The shutdown of a pool ends leases after its timeout and refuses waiting claims.
#[tokio::test(start_paused = true)]
async fn shutdown_ends_leases_after_its_timeout_and_refuses_waiting_claims() {
    let config = PoolConfig { min_warm: 0, max_warm: 0, max: 2, ..small() };
    let faults = FaultPlan::none().delay(FaultPoint::Create, 2, 15 * SECOND);
    let (backend, pool) = pool(config, faults);
    let pool = Arc::new(pool);
    let held = pool.claim(Spec::default()).await.unwrap();
    let running = held.start(sleep_forever()).await.unwrap();
    let claim = |pool: &Arc<Pool>| {
        let pool = Arc::clone(pool);
        tokio::spawn(async move { pool.claim(Spec::default()).await })
    };
    let (slow, waiting) = (claim(&pool), claim(&pool));
    settle().await;
    let start = Instant::now();
    pool.shutdown(10 * SECOND).await.unwrap();
    assert_eq!((start.elapsed().as_secs(), backend.living().len()), (14, 0), "the slow create's sandbox included");
    assert!(running.exit().await.unwrap().cancelled);
    assert_eq!(held.start(print("x")).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    // A lease granted earlier is still delivered, with its sandbox already closed.
    assert_eq!(slow.await.unwrap().unwrap().start(print("x")).await.unwrap_err().kind(), ErrorKind::Closed);
    held.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_reports_closes_that_hang_or_fail() {
    let (_backend, pool_1) = pool(small(), FaultPlan::none().delay(FaultPoint::Close, 1, 3600 * SECOND));
    drop(pool_1.claim(Spec::default()).await.unwrap());
    let error = pool_1.shutdown(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let (backend, pool_2) = pool(small(), FaultPlan::none().fail(FaultPoint::Close, 1, ErrorKind::Io));
    settle().await;
    assert_eq!(pool_2.shutdown(SECOND).await.unwrap_err().kind(), ErrorKind::Io);
    assert!(backend.living().is_empty());
}

/// Promise (Warm sandboxes and pools): A dropped pool leaves nothing but its leases.
#[tokio::test(start_paused = true)]
async fn dropping_the_pool_leaves_nothing_but_leases() {
    let (backend, pool) = pool(small(), FaultPlan::none());
    settle().await;
    let lease = pool.claim(Spec::default()).await.unwrap();
    settle().await;
    drop(pool);
    settle().await;
    assert_eq!(backend.living(), BTreeSet::from([lease.id().clone()]));
    assert!(lease.exec(print("x")).await.unwrap().exit.success());
    drop(lease);
    settle().await;
    assert!(backend.living().is_empty());
    assert_eq!(Arc::strong_count(&backend), 1, "no task holds on to the backend");
}

#[test]
fn a_runtime_that_ends_takes_everything_with_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (backend, pool, lease) = runtime.block_on(async {
        let (backend, pool) = pool(small(), FaultPlan::none());
        settle().await;
        let lease = pool.claim(Spec::default()).await.unwrap();
        (backend, pool, lease)
    });
    drop(runtime);
    drop(lease);
    drop(pool);
    assert!(backend.living().is_empty(), "{:?}", backend.living());
}

#[test]
fn a_pool_needs_a_runtime_and_a_sound_configuration() {
    let backend = Arc::new(SimulatedBackend::default());
    let created = Pool::new(Arc::clone(&backend) as _, Spec::default(), PoolConfig::default());
    assert_eq!(created.unwrap_err().kind(), ErrorKind::InvalidInput);
    let created = Pool::new(backend, Spec::default(), PoolConfig { max: 0, ..PoolConfig::default() });
    assert_eq!(created.unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// A backend that panics in every create.
#[derive(Debug)]
struct Panicking;

#[async_trait::async_trait]
impl Backend for Panicking {
    fn name(&self) -> &str {
        "panicking"
    }

    fn level(&self) -> Level {
        Level::Simulated
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    async fn create(&self, _spec: Spec) -> Result<Arc<dyn Sandbox>> {
        panic!("a deliberate panic")
    }

    async fn restore(&self, _snapshot: Snapshot, _spec: Spec) -> Result<Arc<dyn Sandbox>> {
        panic!("a deliberate panic")
    }

    async fn prepare(&self, _spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        panic!("a deliberate panic")
    }
}

/// Promise (Warm sandboxes and pools): A panic of the backend fails one claim and frees its slot.
#[tokio::test(start_paused = true)]
async fn backend_panic_fails_one_claim_and_frees_its_slot() {
    let pool = Pool::new(Arc::new(Panicking), Spec::default(), PoolConfig { max: 2, ..small() }).unwrap();
    for _ in 0..5 {
        assert_eq!(pool.claim(Spec::default()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    tokio::time::sleep(SECOND).await;
    assert!((3..10).contains(&pool.metrics().refill_failures), "it backs off: {:?}", pool.metrics());
    pool.shutdown(SECOND).await.unwrap();
}

/// Many tasks on several threads, with random faults. The bounds hold all the time, and nothing is left at the end.
///
/// Promise (Warm sandboxes and pools): A pool never has more than `max` sandboxes under random faults, and leaves
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_leaves_nothing() {
    let faults = (1..200).fold(FaultPlan::seeded(7, 100, ErrorKind::Unavailable), |plan, nth| {
        plan.die_waiting(nth * 3, Duration::from_millis(nth % 7))
    });
    let config = PoolConfig {
        min_warm: 3,
        max_warm: 5,
        max: 6,
        refill_at_once: 2,
        max_age: Duration::from_millis(20),
        idle_time: Duration::from_millis(10),
        first_backoff: Duration::from_micros(100),
        max_backoff: Duration::from_millis(1),
        check_every: Duration::from_millis(1),
        ..PoolConfig::default()
    };
    let (backend, pool) = pool(config, faults);
    let pool = Arc::new(pool);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16u64 {
        let (pool, backend) = (Arc::clone(&pool), Arc::clone(&backend));
        tasks.spawn(async move {
            for round in 0..40u64 {
                let spec = if (task + round) % 5 == 0 { unfit() } else { of_tenant(&format!("t{}", task % 3)) };
                // Half of the tasks start in bursts, so that sometimes all slots are used and sometimes they are idle.
                let pause = if task < 8 { round % 8 / 7 * 20 } else { task + round % 5 };
                tokio::time::sleep(Duration::from_millis(pause)).await;
                let delay = Duration::from_micros((task * 37 + round * 91) % 3000);
                match round % 4 {
                    0 => drop(tokio::time::timeout(delay, pool.claim(spec)).await),
                    1 => drop(pool.run(spec, print("x")).await),
                    _ => {
                        if let Ok(lease) = pool.claim(spec.clone()).await {
                            assert_eq!(lease.spec(), &spec);
                            drop(lease.exec(print("y")).await);
                        }
                    }
                }
                assert!(backend.living().len() <= 6, "{:?}", pool.metrics());
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    pool.shutdown(10 * SECOND).await.unwrap();
    let metrics = pool.metrics();
    assert!(backend.living().is_empty(), "{metrics:?}");
    assert!(metrics.claims.warm > 0 && metrics.claims.cold_unfit > 0, "{metrics:?}");
}
