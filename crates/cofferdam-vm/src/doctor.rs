//! What this host has of what machines need, found out within about a second: no machine is started for it.

use std::path::Path;
use std::process::Stdio;

use cofferdam_contract::Error;
use cofferdam_linux::child::{self, Seclusion, Start};
use cofferdam_linux::{landlock, programs};

use crate::bounds;
use crate::choice::{self, Known};
use crate::config::{MakePolicy, RootChoice, VmConfig};
use crate::error::VmError;
use crate::firecracker::{self, FirecrackerVmm, Jailer};
use crate::image::{Images, ext4};
use crate::kvm::record::KernelTrial;
use crate::qemu::Qemu;
use crate::vmm::{Acceleration, Driver, Vmm};

/// How a finding stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingState {
    /// As it should be.
    Ok,
    /// It works, with less than the best.
    Weaker,
    /// It is missing.
    Missing,
}

/// One thing found out about this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub name: String,
    /// How it stands.
    pub state: FindingState,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

use FindingState::{Missing, Ok as Good, Weaker};

fn finding(name: &str, state: FindingState, detail: impl Into<String>, remedy: Option<&str>) -> Finding {
    Finding { name: name.to_owned(), state, detail: detail.into(), remedy: remedy.map(str::to_owned) }
}

fn failure(name: &str, error: &Error) -> Finding {
    finding(name, Missing, error.to_string(), error.remedy())
}

fn missing(name: &str, error: VmError) -> Finding {
    failure(name, &error.into_error("probe"))
}

/// Looks. Needs a tokio runtime with time and IO.
pub async fn doctor(config: &VmConfig) -> Vec<Finding> {
    if let Err(error) = config.check() {
        return vec![failure("configuration", &error)];
    }
    let mut findings = vec![monitor(config).await];
    let asked = config.clone();
    let known = tokio::task::spawn_blocking(move || choice::known(asked.probes.clone())).await;
    let Ok(known) = known else {
        findings.push(finding("accelerator", Missing, "the look at it was interrupted", None));
        return findings;
    };
    findings.push(firecracker_driver(config, &known).await);
    let asked = config.clone();
    let others = tokio::task::spawn_blocking(move || {
        vec![
            accelerator((asked.driver, asked.acceleration), &known),
            image(&asked),
            disks(),
            confinement(),
            seclusion(),
            bounded(),
        ]
    });
    match others.await {
        Ok(others) => findings.extend(others),
        Err(_) => findings.push(finding("host", Missing, "the look at it was interrupted", None)),
    }
    findings
}

async fn monitor(config: &VmConfig) -> Finding {
    let qemu = match Qemu::new(config.qemu.clone()) {
        Ok(qemu) => qemu,
        Err(error) => return missing("qemu", error),
    };
    match qemu.version().await {
        Ok(version) => {
            let program =
                config.qemu.program.as_deref().unwrap_or(Path::new(crate::qemu::PROGRAM)).display().to_string();
            finding(
                "qemu",
                Good,
                format!("{version} ({program}), machines with a processor {}", config.qemu.processor),
                None,
            )
        }
        Err(error) if config.driver == Driver::Firecracker => {
            finding("qemu", Good, format!("{error}, and not used: the driver is firecracker"), None)
        }
        Err(error) => missing("qemu", error),
    }
}

/// The accelerator of the driver that is asked for; where none is, QEMU's. Pure.
fn accelerator((driver, wish): (Driver, Acceleration), known: &Known) -> Finding {
    let Known { verdict, trial, firecracker } = known;
    let (wish, trial) = match (driver, wish) {
        (Driver::Firecracker, Acceleration::Tcg) => {
            let what = "tcg is asked for, and Firecracker translates nothing";
            return finding("accelerator", Missing, what, Some("use the driver qemu, or the accelerator auto or kvm"));
        }
        (Driver::Firecracker, _) => (Acceleration::Kvm, firecracker),
        (Driver::Auto | Driver::Qemu, wish) => (wish, trial),
    };
    let slow = "machines are translated (tcg): as isolated, many times slower";
    let found = match trial {
        Some(KernelTrial { outcome: Ok(milliseconds), .. }) => {
            format!("{verdict}; a kernel was up in {milliseconds} ms on this boot of the host")
        }
        Some(KernelTrial { outcome: Err(why), .. }) => format!("{verdict}; but a kernel did not start: {why}"),
        None if verdict.is_usable() => format!("{verdict}; a kernel is tried with the first machine"),
        None => verdict.to_string(),
    };
    let usable = verdict.is_usable() && trial.as_ref().is_none_or(|trial| trial.outcome.is_ok());
    let remedy = Some(verdict.remedy()).filter(|_| !verdict.is_usable());
    match (wish, usable) {
        (Acceleration::Tcg, _) => finding("accelerator", Good, format!("tcg, as asked for; {found}"), None),
        (_, true) => finding("accelerator", Good, format!("kvm: {found}"), None),
        (Acceleration::Auto, false) => finding("accelerator", Weaker, format!("{slow}; {found}"), remedy),
        (Acceleration::Kvm, false) => finding(
            "accelerator",
            Missing,
            format!("kvm was asked for; {found}"),
            remedy.or(Some("ask for auto or tcg")),
        ),
    }
}

fn image(config: &VmConfig) -> Finding {
    let images = Images::new(&config.images, cofferdam_debian::Cache::new(&config.packages));
    let inventory = images.inventory();
    let named = |name: &str| inventory.named.iter().find(|listed| listed.name == name && listed.bytes.is_some());
    let shown = |listed: &crate::image::Listed| {
        let release = if listed.release.is_empty() { String::new() } else { format!(", Linux {}", listed.release) };
        finding("image", Good, format!("'{}'{release}: {}", listed.name, listed.about), None)
    };
    let by_source = || images.seems_made(&config.source);
    let name = match &config.root {
        RootChoice::Source => None,
        RootChoice::Made(name) | RootChoice::MadeOrSource(name) => Some(name),
    };
    if let Some(listed) = name.and_then(|name| named(name)) {
        return shown(listed);
    }
    let must = matches!(config.root, RootChoice::Made(_));
    if !must && by_source() {
        return finding("image", Good, "made from the configured packages", None);
    }
    let remedy = Some("cofferdam vm build-image");
    match (must, config.make, name) {
        (true, _, name) => {
            let name = name.map_or("", String::as_str);
            finding("image", Missing, format!("there is no image '{}'", name.escape_debug()), remedy)
        }
        (false, MakePolicy::Missing, _) => {
            finding("image", Weaker, "there is none yet: the first machine makes it", remedy)
        }
        (false, MakePolicy::Never, _) => finding("image", Missing, "there is none yet", remedy),
    }
}

fn disks() -> Finding {
    match ext4::version() {
        Ok(version) => finding("disks", Good, version, None),
        Err(error) => missing("disks", error),
    }
}

/// What keeps the monitor from files.
fn confinement() -> Finding {
    match landlock::abi() {
        0 => missing("monitor's files", VmError::NoWall { wall: "Landlock, which keeps it from files" }),
        abi => finding("monitor's files", Good, format!("Landlock ABI {abi} keeps it from all but its program"), None),
    }
}

/// What keeps it from the network, tried.
fn seclusion() -> Finding {
    let name = "monitor's network";
    let mut command = match programs::command("true") {
        Ok(command) => command,
        Err(distrust) if distrust.is_missing() => {
            return finding(name, Weaker, "could not be tried: there is no program `true`", Some("install coreutils"));
        }
        Err(distrust) => return missing(name, distrust.into()),
    };
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let tried = child::start(command, Start { seclusion: Seclusion::Apart, ..Start::default() });
    match tried.and_then(|mut child| child.wait()) {
        Ok(_) => finding(name, Good, "none: it has namespaces of its own", None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            finding(name, Weaker, "could not be tried: there is no program `true`", Some("install coreutils"))
        }
        Err(_) => missing(name, VmError::NoWall { wall: "namespaces of its own, which keep it from the network" }),
    }
}

fn bounded() -> Finding {
    match bounds::tried() {
        Ok(version) => {
            let detail =
                format!("{}: its memory, without swap, its processors and threads are bounded", version.as_str());
            finding("monitor's bounds", Good, detail, None)
        }
        Err(why) => finding(
            "monitor's bounds",
            Weaker,
            format!("its memory and processor time are not bounded from outside, but for resource limits ({why})"),
            Some(
                "run as root, or in a systemd scope with delegated control groups: `systemd-run --user --scope -p Delegate=yes`",
            ),
        ),
    }
}

/// What becomes of Firecracker, which no machine needs unless it is asked for.
async fn firecracker_driver(config: &VmConfig, known: &Known) -> Finding {
    const NAME: &str = firecracker::PROGRAM;
    let vmm = FirecrackerVmm::new(config.firecracker.clone());
    let at = |program: &Path| program.display().to_string();
    let place = config.firecracker.program.as_deref().map_or_else(String::new, at);
    let jailed = if config.firecracker.jailer == Jailer::Off { "" } else { ", started by its own jailer" };
    let place = format!("{place}{jailed}");
    match (config.driver, vmm.version().await) {
        (Driver::Auto, Ok(version)) if config.acceleration == Acceleration::Tcg => {
            finding(NAME, Good, format!("{version} ({place}), not used: the accelerator is tcg"), None)
        }
        (Driver::Qemu, Ok(version)) => {
            finding(NAME, Good, format!("{version} ({place}), not used: the driver is qemu"), None)
        }
        (Driver::Qemu, Err(error)) => finding(NAME, Good, format!("{error}; not used: the driver is qemu"), None),
        (Driver::Firecracker, Ok(version)) => finding(NAME, Good, format!("{version} ({place}), as asked for"), None),
        (Driver::Firecracker, Err(error)) => missing(NAME, error),
        (Driver::Auto, Ok(version)) => {
            let (state, then) = match (&known.firecracker, known.verdict.is_usable()) {
                (_, false) => (Good, "not used: it needs hardware virtualisation".to_owned()),
                (None, true) => (Good, "tried with the first machine".to_owned()),
                (Some(KernelTrial { outcome: Ok(took), .. }), true) => (Good, format!("a kernel was up in {took} ms")),
                (Some(KernelTrial { outcome: Err(why), .. }), true) => {
                    (Weaker, format!("not used: a kernel did not start: {why}"))
                }
            };
            finding(NAME, state, format!("{version} ({place}), {then}"), None)
        }
        (Driver::Auto, Err(VmError::MissingTool { .. })) => {
            finding(NAME, Good, "not found, and not needed: machines are QEMU's", None)
        }
        (Driver::Auto, Err(error)) => {
            let error = error.into_error("probe");
            finding(NAME, Weaker, format!("{place}: {}; machines are QEMU's", error.message()), error.remedy())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kvm::Verdict;

    fn trial(outcome: Result<u64, String>) -> Option<KernelTrial> {
        Some(KernelTrial { monitor: "qemu 7.2".to_owned(), image: "x".to_owned(), outcome })
    }

    #[test]
    fn the_accelerator_is_told_with_its_evidence() {
        let took = Duration::from_millis(1);
        for (wish, verdict, trial, state, says) in [
            (Acceleration::Auto, Verdict::Usable { took }, None, Good, "first machine"),
            (Acceleration::Auto, Verdict::Usable { took }, trial(Ok(700)), Good, "700 ms"),
            (Acceleration::Auto, Verdict::Usable { took }, trial(Err("silence".to_owned())), Weaker, "silence"),
            (Acceleration::Auto, Verdict::Emulated { took: took * 110 }, None, Weaker, "110.0ms"),
            (Acceleration::Kvm, Verdict::Emulated { took: took * 110 }, None, Missing, "asked for"),
            (Acceleration::Kvm, Verdict::Usable { took }, trial(Err("silence".to_owned())), Missing, "silence"),
            (Acceleration::Tcg, Verdict::Missing, None, Good, "as asked for"),
        ] {
            let found = accelerator((Driver::Auto, wish), &Known { verdict, trial, firecracker: None });
            assert!(found.state == state && found.detail.contains(says), "{found:?}");
            assert!(found.state != Missing || found.remedy.is_some(), "{found:?}");
        }
    }

    #[tokio::test]
    async fn firecracker_is_missed_where_it_is_asked_for() {
        let took = Duration::from_millis(1);
        let known = |verdict| Known { verdict, trial: None, firecracker: trial(Err("silence".to_owned())) };
        let (usable, none) = (known(Verdict::Usable { took }), known(Verdict::Missing));
        for (driver, program, known, state, says) in [
            (Driver::Auto, None, &usable, Good, "not needed"),
            (Driver::Qemu, None, &usable, Good, "not used"),
            (Driver::Firecracker, None, &usable, Missing, "not installed"),
            (Driver::Firecracker, Some("/nowhere/firecracker"), &none, Missing, "not installed"),
            (Driver::Auto, Some("/bin/true"), &usable, Weaker, "no version"),
        ] {
            let mut config = VmConfig { driver, ..VmConfig::new("/x") };
            config.firecracker.program = program.map(Into::into);
            let found = firecracker_driver(&config, known).await;
            assert!(found.state == state && found.detail.contains(says), "{found:?}");
            assert!(found.state != Missing || found.remedy.is_some(), "{found:?}");
        }
        // The jailer is looked for, and misses what it needs, before any machine is made.
        let mut config = VmConfig { driver: Driver::Firecracker, ..VmConfig::new("/x") };
        config.firecracker.program = Some("/bin/true".into());
        config.firecracker.jailer = Jailer::At("/nowhere/jailer".into());
        let found = firecracker_driver(&config, &usable).await;
        assert!(found.state == Missing && found.detail.contains("jailer is not installed"), "{found:?}");
        for (driver, wish, known, says) in [
            (Driver::Firecracker, Acceleration::Tcg, &usable, "translates nothing"),
            (Driver::Firecracker, Acceleration::Auto, &none, "asked for"),
            (Driver::Firecracker, Acceleration::Auto, &usable, "silence"),
        ] {
            let found = accelerator((driver, wish), known);
            assert!(found.state == Missing && found.detail.contains(says) && found.remedy.is_some(), "{found:?}");
        }
    }

    #[test]
    fn an_image_is_there_or_it_is_told_how_to_get_it() {
        let place = tempfile::tempdir().unwrap();
        let config = VmConfig::new(place.path());
        let none = image(&config);
        assert!(none.state == Missing && none.remedy.is_some(), "{none:?}");
        assert_eq!(image(&VmConfig { make: MakePolicy::Missing, ..config.clone() }).state, Weaker);
        let named = VmConfig { root: RootChoice::Made("mine".to_owned()), make: MakePolicy::Missing, ..config };
        assert!(image(&named).detail.contains("'mine'"));
        assert!(!place.path().join("images").exists(), "looking made something");
    }
}
