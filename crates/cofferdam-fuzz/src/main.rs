//! Runs a fuzz target for a time: `cofferdam-fuzz TARGET [--seconds N] [--seed S] [--cases N]`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cofferdam_fuzz::archive::Archives;
use cofferdam_fuzz::changes::Changes;
use cofferdam_fuzz::drive::{Bound, Outcome, drive};
use cofferdam_fuzz::layer::Layers;
use cofferdam_fuzz::module::Modules;
use cofferdam_fuzz::network::Networks;
use cofferdam_fuzz::package::Packages;
use cofferdam_fuzz::plugin::Plugins;
use cofferdam_fuzz::screen::Screens;
use cofferdam_fuzz::snapshot::Snapshots;

const USAGE: &str = "usage: cofferdam-fuzz module|screen|snapshot|archive|network|plugin|package|changes|layer [--seconds N] [--seed S] [--cases N]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<()> {
    let Some((target, options)) = words.split_first() else { bail!(USAGE) };
    let mut check = checker(target)?;
    let (mut seconds, mut cases, mut seed) = (60, u64::MAX, fastrand::u64(..));
    for pair in options.chunks(2) {
        let [name, value] = pair else { bail!(USAGE) };
        let value: u64 = value.parse().with_context(|| format!("{name} takes a number"))?;
        match name.as_str() {
            "--seconds" => seconds = value,
            "--cases" => cases = value,
            "--seed" => seed = value,
            _ => bail!(USAGE),
        }
    }
    println!("running seeds from {seed} on, for {seconds} s");
    let bound = Bound { time: Duration::from_secs(seconds), cases };
    let report = drive(seed, bound, &mut *check).with_context(|| {
        format!(
            "found a failure; reproduce it with `cargo xtask fuzz {target} --cases 1 --seed` and the seed of the case"
        )
    })?;
    println!("{report}");
    Ok(())
}

/// A function that checks the case of a seed.
type Check = Box<dyn FnMut(u64) -> Result<Outcome>>;

fn checker(target: &str) -> Result<Check> {
    match target {
        "module" => {
            let mut modules = Modules::new()?;
            Ok(Box::new(move |seed| modules.case(seed)))
        }
        "screen" => {
            let mut screens = Screens::new();
            Ok(Box::new(move |seed| screens.case(seed)))
        }
        "snapshot" => {
            let mut snapshots = Snapshots::new()?;
            Ok(Box::new(move |seed| snapshots.case(seed)))
        }
        "archive" => {
            let mut archives = Archives::new()?;
            Ok(Box::new(move |seed| archives.case(seed)))
        }
        "network" => {
            let mut networks = Networks::new()?;
            Ok(Box::new(move |seed| networks.case(seed)))
        }
        "plugin" => {
            let mut plugins = Plugins::new();
            Ok(Box::new(move |seed| plugins.case(seed)))
        }
        "package" => {
            let mut packages = Packages::new();
            Ok(Box::new(move |seed| packages.case(seed)))
        }
        "changes" => {
            let mut changes = Changes::new();
            Ok(Box::new(move |seed| changes.case(seed)))
        }
        "layer" => {
            let mut layers = Layers::new()?;
            Ok(Box::new(move |seed| layers.case(seed)))
        }
        _ => bail!(USAGE),
    }
}
