//! The conformance suite on VMs.
//!
//! An emulated VM boots for a second or two, which is most of the suite's time. So most cases run on VMs that were
//! restored from a snapshot and claimed, as from a pool. Cases about the start of a sandbox, and those whose spec is
//! incompatible with a prepared VM, use booted VMs; on demand all cases do.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_changes::sandbox::CopyOnWriteByCopy;
use cofferdam_conformance::{Options, Outcome, Progress, Report, Target, TestImage, UnixPrograms, cases, run};
use cofferdam_contract::{Backend, BackendLayer, ByteSize, Result, Sandbox, Snapshot, Spec};
use cofferdam_image::store::{ImageConfig, ImageStore, Options as StoreOptions};
use cofferdam_linux::named::Directory;
use cofferdam_vm::{VmBackend, VmConfig};

use crate::support;

/// VMs are emulated: an operation of a second elsewhere takes many here.
const DEADLINE: Duration = Duration::from_secs(600);
/// Groups of cases that compare a claim with a create, or measure the result of a boot.
const BOOTED: [&str; 2] = ["posture/", "warm/"];

/// The backend as used by a pool: compatible specs are claimed, all others are created.
#[derive(Debug)]
struct Claiming(Arc<VmBackend>);

#[async_trait]
impl BackendLayer for Claiming {
    fn inner(&self) -> &dyn Backend {
        &*self.0
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        if spec.limits() != Spec::default().limits() || spec.root() != Spec::default().root() {
            return self.0.create(spec).await;
        }
        let warm = self.0.prepare(Spec::default()).await?;
        if warm.is_compatible(&spec) {
            return warm.claim(spec).await;
        }
        warm.close().await?;
        self.0.create(spec).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.0.restore(snapshot, spec).await
    }
}

/// Returns groups of cases by the prefix of their names, or the requested ones.
fn groups() -> BTreeSet<String> {
    match std::env::var("COFFERDAM_TEST_CASE") {
        Ok(requested) => BTreeSet::from([requested]),
        Err(_) => cases().filter_map(|case| Some(format!("{}/", case.name.split_once('/')?.0))).collect(),
    }
}

/// Runs groups of cases one after the other, two cases at a time.
async fn run_groups(backend: Arc<dyn Backend>, groups: &BTreeSet<String>, root: &Path) -> Vec<Report> {
    let image = TestImage::new("conformance:1", "/of-the-image", "by the test");
    let target = Target::new(backend, UnixPrograms::default()).with_root(root).with_image(image);
    let mut reports = Vec::new();
    for group in groups {
        let progress: Progress = Arc::new(|case| println!("{case}"));
        let (filter, large_file) = (Some(group.clone()), ByteSize::from_mebibytes(64));
        let options = Options { parallelism: 2, filter, deadline: DEADLINE, large_file, progress: Some(progress) };
        reports.push(run(&target, &options).await);
    }
    reports
}

/// Runs all groups, those with booted VMs concurrently with the others: few of them take long.
async fn run_all(backend: VmBackend, root: &Path, all_booted: bool) -> Vec<Report> {
    let backend = Arc::new(backend);
    let is_booted = |group: &String| all_booted || BOOTED.iter().any(|name| group.starts_with(name));
    let (booted, claimed) = groups().into_iter().partition(is_booted);
    let claiming = CopyOnWriteByCopy::wrap(Arc::new(Claiming(Arc::clone(&backend))));
    let backend = CopyOnWriteByCopy::wrap(backend);
    let (mut first, second) = tokio::join!(run_groups(backend, &booted, root), run_groups(claiming, &claimed, root));
    first.extend(second);
    first
}

/// Promise (Virtual machines): The conformance suite passes on VMs with emulation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_suite_passes_on_emulated_vms() {
    let test = "conformance_suite_passes_on_emulated_vms";
    if support::image(test).is_none() {
        return;
    }
    let before = support::census();
    let (root, other, store) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    support::root(root.path()).expect("packages are cached");
    support::root(other.path()).expect("packages are cached");
    std::fs::write(other.path().join("of-the-image"), "by the test").unwrap();
    let images = ImageStore::open(store.path(), StoreOptions::default()).expect("a store");
    let directory = Directory::open(other.path()).unwrap();
    let name = "conformance:1".parse().unwrap();
    images.import_directory(&directory, &ImageConfig::default(), &name, &mut |_| {}).expect("imported");
    let config = VmConfig { container_images: Some(store.path().to_owned()), ..support::config() };
    let backend = VmBackend::new(config).expect("the configuration is valid");
    let all_booted = std::env::var_os("COFFERDAM_TEST_MACHINES").is_some_and(|value| value == "all");
    // Template snapshots are dropped with the backend.
    let reports = run_all(backend, root.path(), all_booted).await;
    let cases = || reports.iter().flat_map(|report| &report.cases);
    for case in cases().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
        println!("SKIP {case}");
    }
    let failures: Vec<String> = reports.iter().flat_map(Report::failures).map(ToString::to_string).collect();
    let passed = cases().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(failures.is_empty(), "{}\n{passed} passed, {} failed", failures.join("\n"), failures.len());
    assert!(passed >= 90 || std::env::var_os("COFFERDAM_TEST_CASE").is_some(), "only {passed} cases could be run");
    println!("{passed} cases passed");
    assert_eq!(support::left(&before).await, BTreeSet::new());
}
