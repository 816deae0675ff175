//! The conformance suite over a pool, and a comparison of claims with creates for random specs.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_conformance::equivalence::{Trial, compare_backends};
use cofferdam_conformance::{Options, Outcome, Target, run};
use cofferdam_contract::{Access, Capability, Protection, ProtectionState, Spec, Workspace};
use cofferdam_engine::{InterpretersConfig, PoolConfig, PooledBackend, PreparedBackend};
use cofferdam_simulated::{FaultPlan, SimulatedBackend, SimulatedConfig, SimulatedPrograms};
use proptest::prelude::*;
use support::{SECOND, of_tenant, settle};

fn pooled(backend: &Arc<SimulatedBackend>, template: Spec) -> PooledBackend {
    PooledBackend::new(Arc::clone(backend) as _, template, PoolConfig::default()).unwrap()
}

/// Promise (Warm sandboxes and pools): The simulated backend passes the conformance suite through a pool, which leaves
/// nothing.
#[tokio::test(start_paused = true)]
async fn conformance_suite_passes_through_a_pool_without_leftovers() {
    let backend = Arc::new(SimulatedBackend::default());
    let pooled = Arc::new(pooled(&backend, of_tenant("template")));
    let target = Target::new(Arc::clone(&pooled) as _, SimulatedPrograms);
    let report = run(&target, &Options::default()).await;
    assert!(report.is_success(), "{report}");
    let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(passed >= 85, "only {passed} cases could be run: {report}");
    let metrics = pooled.pool().metrics();
    assert!(metrics.claims.warm > 50 && metrics.claims.cold_unfit > 0 && metrics.claims.copy > 3, "{metrics:?}");
    pooled.pool().shutdown(SECOND).await.unwrap();
    assert!(backend.living().is_empty(), "{:?}", backend.living());
}

/// Promise (Warm sandboxes and pools): The simulated backend passes the conformance suite through prepared
/// sandboxes as the server has them, which leaves nothing.
#[tokio::test(start_paused = true)]
async fn conformance_suite_passes_prepared_backends_without_leftovers() {
    let backend = Arc::new(SimulatedBackend::default());
    let (inner, none) = (Arc::clone(&backend) as _, InterpretersConfig::new([]));
    let prepared = PreparedBackend::new(inner, of_tenant("template"), PoolConfig::default(), none).unwrap();
    let prepared = Arc::new(prepared);
    let report = run(&Target::new(Arc::clone(&prepared) as _, SimulatedPrograms), &Options::default()).await;
    assert!(report.is_success(), "{report}");
    assert!(prepared.pool().metrics().claims.warm > 50, "{:?}", prepared.pool().metrics());
    prepared.shutdown(SECOND).await.unwrap();
    assert!(backend.living().is_empty(), "{:?}", backend.living());
}

#[tokio::test(start_paused = true)]
async fn conformance_suite_passes_through_a_pool_without_warm_sandboxes() {
    let capabilities =
        SimulatedConfig::default().capabilities.into_iter().filter(|it| *it != Capability::Warm).collect();
    let backend = Arc::new(SimulatedBackend::new(SimulatedConfig { capabilities, ..SimulatedConfig::default() }));
    let pooled = Arc::new(pooled(&backend, Spec::default()));
    let report = run(&Target::new(pooled as _, SimulatedPrograms), &Options::default()).await;
    assert!(report.is_success(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn it_is_the_backend_inside_but_makes_none_ahead_for_others() {
    use cofferdam_contract::Backend as _;
    let backend = Arc::new(SimulatedBackend::default());
    let pooled = pooled(&backend, Spec::default());
    assert_eq!((pooled.name(), pooled.level()), (backend.name(), backend.level()));
    let mut capabilities = backend.capabilities();
    assert!(capabilities.remove(&Capability::Warm));
    assert_eq!(pooled.capabilities(), capabilities);
    let sandbox = pooled.create(Spec::default()).await.unwrap();
    let fork = sandbox.fork().await.unwrap();
    assert_eq!(pooled.pool().metrics().claimed, 2);
    drop(sandbox);
    fork.close().await.unwrap();
    settle().await;
    assert_eq!(pooled.pool().metrics().claimed, 0);
}

/// Variants of a simulated host: everything enforced, a limit that falls short, or limits fixed in advance.
fn host(which: u8) -> SimulatedConfig {
    match which {
        0 => SimulatedConfig::default(),
        1 => SimulatedConfig {
            shortfalls: [(Protection::Cpus, ProtectionState::Absent)].into(),
            ..SimulatedConfig::default()
        },
        2 => SimulatedConfig {
            shortfalls: [(Protection::Disk, ProtectionState::WeakerThanRequired)].into(),
            fixed_when_warm: [].into(),
            ..SimulatedConfig::default()
        },
        _ => SimulatedConfig {
            fixed_when_warm: [Protection::Memory, Protection::Workspace].into(),
            ..SimulatedConfig::default()
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A claim gives the same result as a create for any spec, including errors.
    ///
    /// Promise (Warm sandboxes and pools): A claim from a pool gives the same as a create.
    #[test]
    fn claims_are_as_creates(seeds in prop::collection::vec(any::<u64>(), 1..8), template: u64, which in 0u8..4) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let differs: Vec<String> = runtime.block_on(async {
            let backend = Arc::new(SimulatedBackend::new(host(which)));
            let template = Trial::seeded(template, &Spec::default(), None).spec;
            let pooled = pooled(&backend, template);
            let mut differs = Vec::new();
            for seed in seeds {
                settle().await;
                // A mounted host directory is a setting that the simulation rejects in both cases.
                let trial = Trial::seeded(seed, &Spec::default(), Some(std::path::Path::new("/mounted")));
                let compared = compare_backends(&*backend, &pooled, &SimulatedPrograms, &trial).await;
                differs.extend(compared.err().map(|differs| format!("{differs}, for {:?}", trial.spec)));
            }
            pooled.pool().shutdown(SECOND).await.unwrap();
            assert!(backend.living().is_empty());
            differs
        });
        prop_assert!(differs.is_empty(), "{}", differs.join("\n"));
    }
}

/// The property above can fail: sandboxes of different specs compare as different.
#[tokio::test(start_paused = true)]
async fn comparison_detects_different_sandboxes() {
    let backend = Arc::new(SimulatedBackend::default());
    let weak = SimulatedConfig {
        shortfalls: [(Protection::Memory, ProtectionState::Absent)].into(),
        ..SimulatedConfig::default()
    };
    let other = SimulatedBackend::new(weak);
    let trial = Trial { spec: Spec::builder().allow_weaker(Protection::Memory).build().unwrap(), env: Vec::new() };
    let compared = compare_backends(&*backend, &other, &SimulatedPrograms, &trial).await;
    assert!(compared.unwrap_err().contains("posture differs"));
    let trial = Trial { spec: Spec::default(), env: Vec::new() };
    let compared = compare_backends(&*backend, &other, &SimulatedPrograms, &trial).await;
    assert!(compared.unwrap_err().contains("refused"));
    assert!(backend.living().is_empty() && other.living().is_empty());
}

/// The simulation supports no host directory. Its error passes through a pool unchanged.
#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_backend_passes_through() {
    use cofferdam_contract::Backend as _;
    let backend = Arc::new(SimulatedBackend::with_faults(FaultPlan::none()));
    let pooled = pooled(&backend, Spec::default());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mounted = Workspace::HostDir { path: "/mounted".into(), access: Access::ReadWrite };
    let spec = Spec::builder().workspace(mounted).build().unwrap();
    let (one, other) = (backend.create(spec.clone()).await.unwrap_err(), pooled.create(spec).await.unwrap_err());
    assert_eq!(one.to_json(), other.to_json());
}
