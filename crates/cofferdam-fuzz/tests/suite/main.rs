//! Short runs of each target. `cargo xtask fuzz` runs them for longer.
#![forbid(unsafe_code)]

use std::time::Duration;

use cofferdam_fuzz::archive::Archives;
use cofferdam_fuzz::changes::Changes;
use cofferdam_fuzz::drive::{Bound, drive};
use cofferdam_fuzz::layer::Layers;
use cofferdam_fuzz::module::Modules;
use cofferdam_fuzz::network::Networks;
use cofferdam_fuzz::package::Packages;
use cofferdam_fuzz::plugin::Plugins;
use cofferdam_fuzz::screen::Screens;
use cofferdam_fuzz::snapshot::Snapshots;

#[test]
fn fuzzed_modules_do_no_harm() {
    let bound = Bound { time: Duration::from_secs(10), cases: u64::MAX };
    let mut modules = Modules::new().unwrap();
    let report = drive(1, bound, |seed| modules.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    // A generator whose cases are all refused would test nothing.
    assert!(report.ended + report.trapped + report.limited > 0, "{report}");
}

#[test]
fn fuzzed_snapshots_do_no_harm() {
    let bound = Bound { time: Duration::from_secs(10), cases: u64::MAX };
    let mut snapshots = Snapshots::new().unwrap();
    let report = drive(1, bound, |seed| snapshots.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.refused > 0 && report.ended + report.trapped + report.limited > 0, "{report}");
}

#[test]
fn fuzzed_archives_do_no_harm() {
    let bound = Bound { time: Duration::from_secs(60), cases: 2000 };
    let mut archives = Archives::new().unwrap();
    let report = drive(1, bound, |seed| archives.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.refused > 0 && report.ended > 0, "{report}");
    // Arbitrary bytes, as libFuzzer provides them.
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..300 {
        let mut bytes = vec![0; rng.usize(..200)];
        rng.fill(&mut bytes);
        archives.check(&bytes).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Promise (Static analysis and audit log): Arbitrary code does not harm the static analysis.
#[test]
fn fuzzed_code_is_analyzed_without_harm() {
    let bound = Bound { time: Duration::from_secs(10), cases: u64::MAX };
    let mut screens = Screens::new();
    let report = drive(1, bound, |seed| screens.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.refused > 0 && report.ended > 0, "{report}");
}

/// Promise (Network): Arbitrary bytes of a guest do not harm the resolver and the gateway, and reach no host or path that
/// the policy does not allow.
#[test]
fn bytes_of_a_guest_do_not_harm_the_gateway() {
    let bound = Bound { time: Duration::from_secs(10), cases: u64::MAX };
    let mut networks = Networks::new().unwrap();
    let report = drive(1, bound, |seed| networks.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.refused > 0 && report.ended > 0, "{report}");
    // Arbitrary bytes, as libFuzzer provides them.
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..1000 {
        let mut bytes = vec![0; rng.usize(..200)];
        rng.fill(&mut bytes);
        networks.check(&bytes).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Promise (Plugins): Arbitrary bytes of a plugin do not harm its host.
#[test]
fn bytes_of_a_plugin_do_not_harm_its_host() {
    let bound = Bound { time: Duration::from_secs(10), cases: 100_000 };
    let mut plugins = Plugins::new();
    let report = drive(1, bound, |seed| plugins.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.refused > 0 && report.ended > 0, "{report}");
    // Arbitrary bytes, as libFuzzer provides them.
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..1000 {
        let mut bytes = vec![0; rng.usize(..200)];
        rng.fill(&mut bytes);
        plugins.check(&bytes).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Promise (Plugins): Packages with arbitrary indexes and members are refused, or stay in their directory.
#[test]
fn fuzzed_packages_do_no_harm() {
    let bound = Bound { time: Duration::from_secs(10), cases: 20_000 };
    let mut packages = Packages::new();
    let report = drive(1, bound, |seed| packages.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(report.refused > 0 && report.ended > 0, "{report}");
    // Arbitrary bytes, as libFuzzer provides them.
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..1000 {
        let mut bytes = vec![0; rng.usize(..200)];
        rng.fill(&mut bytes);
        packages.check(&bytes).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Promise (Files): Change sets with arbitrary members are refused, or stay in their directory when they are applied, and
/// are shown without control characters (K4).
#[test]
fn fuzzed_change_sets_do_no_harm() {
    let bound = Bound { time: Duration::from_secs(10), cases: 20_000 };
    let mut changes = Changes::new();
    let report = drive(1, bound, |seed| changes.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report}");
    assert!(report.ended > 100 && report.refused > 100, "{report}");
}

/// Promise (Images): Layers with arbitrary members are refused, or unpacked to nothing but files, directories, links and
/// marks of overlayfs, and leave nothing behind.
#[test]
fn fuzzed_layers_do_no_harm() {
    let bound = Bound { time: Duration::from_secs(10), cases: 20_000 };
    let mut layers = Layers::new().expect("a store");
    let report = drive(1, bound, |seed| layers.case(seed)).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report}");
    assert!(report.ended > 50 && report.refused > 50, "{report}");
}
