//! Measures the cost of a first build: wall and CPU seconds, the size of the program, the slowest crates.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::repository::Repository;
use crate::test::build::build_binary;

/// The name of the program's package.
const PROGRAM: &str = "cofferdam";
/// Number of rows in the table of crates.
const MAX_CRATES: usize = 10;
/// Clock ticks of `/proc/self/stat` in a second, on every Linux.
const TICKS: u64 = 100;

/// Builds the program from scratch, with the default features and with all, and prints the cost of each build.
pub fn run(repository: &Repository, options: &[&str]) -> Result<()> {
    let builds: &[(&str, &[&str])] = match options {
        [] => &[("default", &[]), ("full", &["--features", "full"])],
        ["--default"] => &[("default", &[])],
        _ => bail!("unknown option '{}': cargo xtask build-time [--default]", options.join(" ")),
    };
    // Downloads are not measured.
    let fetched = repository.cargo().args(["fetch", "--locked", "--quiet"]).status().context("cannot start cargo")?;
    ensure!(fetched.success(), "cargo cannot fetch the dependencies");
    for (name, features) in builds {
        let target = repository.root().join("target/build-time");
        if target.exists() {
            std::fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))?;
        }
        let mut cargo = repository.cargo();
        cargo.env("CARGO_TARGET_DIR", &target).env("CARGO_INCREMENTAL", "0");
        cargo.args(["build", "--quiet", "--locked", "--release", "--timings", "--package", PROGRAM]).args(*features);
        let (start, cpu) = (Instant::now(), children_cpu()?);
        let program = build_binary(cargo, PROGRAM)?;
        let (wall_time, cpu) = (start.elapsed().as_secs_f64(), children_cpu()? - cpu);
        let bytes = program.metadata().context("the program is gone")?.len();
        println!("{name}: {wall_time:.0} s, {cpu:.0} CPU s, {:.1} MB", bytes as f64 / 1e6);
        for (crate_name, seconds) in costliest(&target)? {
            println!("   {seconds:6.1} s  {crate_name}");
        }
        std::fs::remove_dir_all(&target).with_context(|| format!("cannot remove {}", target.display()))?;
    }
    Ok(())
}

/// Returns the CPU seconds of the children that have ended.
fn children_cpu() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    let fields =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).context("an unknown /proc/self/stat")?;
    // cutime and cstime, fields 16 and 17 of proc(5).
    let ticks: u64 = fields.skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / TICKS as f64)
}

/// Returns the slowest crates, from the report of `cargo build --timings`.
fn costliest(target: &Path) -> Result<Vec<(String, f64)>> {
    let report = target.join("cargo-timings/cargo-timing.html");
    let html = std::fs::read_to_string(&report).with_context(|| format!("cannot read {}", report.display()))?;
    let mut crates = units(&html).context("cargo's timing report has an unknown format")?;
    crates.sort_by(|a, b| b.1.total_cmp(&a.1));
    crates.truncate(MAX_CRATES);
    Ok(crates)
}

/// Returns the name and duration in seconds of each unit in the report.
fn units(html: &str) -> Option<Vec<(String, f64)>> {
    let (_, data) = html.split_once("const UNIT_DATA = ")?;
    let (data, _) = data.split_once(";\n")?;
    let data: Value = serde_json::from_str(data).ok()?;
    let unit = |unit: &Value| {
        let target = unit["target"].as_str().unwrap_or_default();
        Some((format!("{} {}{target}", unit["name"].as_str()?, unit["version"].as_str()?), unit["duration"].as_f64()?))
    };
    data.as_array()?.iter().map(unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_timings_is_read() {
        let html = "x\nconst UNIT_DATA = [\n{\"name\": \"a\", \"version\": \"1.0.0\", \"target\": \" build script\", \
                    \"duration\": 1.5}];\nconst CONCURRENCY_DATA = [];\n";
        assert_eq!(units(html), Some(vec![("a 1.0.0 build script".to_owned(), 1.5)]));
        assert_eq!(units("nothing"), None);
    }

    #[test]
    fn cpu_of_children_is_counted() {
        let before = children_cpu().unwrap();
        let line = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", line]).status().unwrap().success());
        assert!(children_cpu().unwrap() > before);
    }
}
