//! Checks of this host for the requirements of the backend, done within about a second. They start no VM.

use std::path::Path;
use std::process::Stdio;

use cofferdam_contract::Finding;
use cofferdam_contract::FindingState::{Missing, Ok as Good, Weaker};
use cofferdam_image::{Cache, ImageError, Images, Listed, ext4};
use cofferdam_linux::child::{self, Seclusion, Start};
use cofferdam_linux::{landlock, programs};

use crate::bounds;
use crate::choice::{self, Known};
use crate::config::{MakePolicy, RootChoice, VmConfig};
use crate::error::VmError;
use crate::firecracker::{self, FirecrackerVmm, Jailer};
use crate::kvm::record::KernelTrial;
use crate::qemu::Qemu;
use crate::vmm::{Acceleration, Driver, Vmm};

fn missing(name: &str, error: VmError) -> Finding {
    Finding::missing(name, &error.into_error("probe"))
}

/// Runs all checks. Needs a tokio runtime with time and IO.
pub async fn doctor(config: &VmConfig) -> Vec<Finding> {
    if let Err(error) = config.check() {
        return vec![Finding::missing("configuration", &error)];
    }
    let mut findings = vec![qemu(config).await];
    let owned = config.clone();
    let known = tokio::task::spawn_blocking(move || choice::known(owned.probes.clone())).await;
    let Ok(known) = known else {
        findings.push(Finding::new("accelerator", Missing, "the check was interrupted", None));
        return findings;
    };
    findings.push(firecracker_driver(config, &known).await);
    let owned = config.clone();
    let others = tokio::task::spawn_blocking(move || {
        vec![
            accelerator((owned.driver, owned.acceleration), &known),
            image(&owned),
            disks(),
            confinement(),
            seclusion(),
            bounded(),
        ]
    });
    match others.await {
        Ok(others) => findings.extend(others),
        Err(_) => findings.push(Finding::new("host", Missing, "the check was interrupted", None)),
    }
    findings
}

async fn qemu(config: &VmConfig) -> Finding {
    let qemu = match Qemu::new(config.qemu.clone()) {
        Ok(qemu) => qemu,
        Err(error) => return missing("qemu", error),
    };
    match qemu.version().await {
        Ok(version) => {
            let program =
                config.qemu.program.as_deref().unwrap_or(Path::new(crate::qemu::PROGRAM)).display().to_string();
            Finding::new("qemu", Good, format!("{version} ({program}), CPU model {}", config.qemu.processor), None)
        }
        Err(error) if config.driver == Driver::Firecracker => {
            Finding::new("qemu", Good, format!("{error}, and not used: the driver is firecracker"), None)
        }
        Err(error) => missing("qemu", error),
    }
}

/// Describes the accelerator of the configured driver, or that of QEMU if none is configured. Pure.
fn accelerator((driver, acceleration): (Driver, Acceleration), known: &Known) -> Finding {
    let Known { verdict, trial, firecracker } = known;
    let (acceleration, trial) = match (driver, acceleration) {
        (Driver::Firecracker, Acceleration::Tcg) => {
            let what = "tcg is configured, and Firecracker translates nothing";
            return Finding::new(
                "accelerator",
                Missing,
                what,
                Some("use the driver qemu, or the accelerator auto or kvm"),
            );
        }
        (Driver::Firecracker, _) => (Acceleration::Kvm, firecracker),
        (Driver::Auto | Driver::Qemu, acceleration) => (acceleration, trial),
    };
    let slow = "VMs are emulated (tcg): same isolation, many times slower";
    let found = match trial {
        Some(KernelTrial { outcome: Ok(milliseconds), .. }) => {
            format!("{verdict}; a kernel booted in {milliseconds} ms since the host booted")
        }
        Some(KernelTrial { outcome: Err(why), .. }) => format!("{verdict}; but a kernel did not boot: {why}"),
        None if verdict.is_usable() => format!("{verdict}; a kernel is tried with the first VM"),
        None => verdict.to_string(),
    };
    let usable = verdict.is_usable() && trial.as_ref().is_none_or(|trial| trial.outcome.is_ok());
    let remedy = Some(verdict.remedy()).filter(|_| !verdict.is_usable());
    match (acceleration, usable) {
        (Acceleration::Tcg, _) => Finding::new("accelerator", Good, format!("tcg, as configured; {found}"), None),
        (_, true) => Finding::new("accelerator", Good, format!("kvm: {found}"), None),
        (Acceleration::Auto, false) => Finding::new("accelerator", Weaker, format!("{slow}; {found}"), remedy),
        (Acceleration::Kvm, false) => Finding::new(
            "accelerator",
            Missing,
            format!("kvm is required; {found}"),
            remedy.or(Some("use the accelerator auto or tcg")),
        ),
    }
}

fn image(config: &VmConfig) -> Finding {
    let images = Images::new(&config.images, Cache::new(&config.packages));
    let inventory = images.inventory();
    let named = |name: &str| inventory.named.iter().find(|listed| listed.name == name && listed.bytes.is_some());
    let shown = |listed: &Listed| {
        let release = if listed.release.is_empty() { String::new() } else { format!(", Linux {}", listed.release) };
        Finding::new("image", Good, format!("'{}'{release}: {}", listed.name, listed.about), None)
    };
    let by_source = || images.seems_built(&config.source);
    let name = match &config.root {
        RootChoice::Source => None,
        RootChoice::Built(name) | RootChoice::BuiltOrSource(name) => Some(name),
    };
    if let Some(listed) = name.and_then(|name| named(name)) {
        return shown(listed);
    }
    let must = matches!(config.root, RootChoice::Built(_));
    if !must && by_source() {
        return Finding::new("image", Good, "built from the configured packages", None);
    }
    let remedy = Some("cofferdam vm build-image");
    match (must, config.make, name) {
        (true, _, name) => {
            let name = name.map_or("", String::as_str);
            Finding::new("image", Missing, format!("there is no image '{}'", name.escape_debug()), remedy)
        }
        (false, MakePolicy::Missing, _) => {
            Finding::new("image", Weaker, "not built yet: the first VM builds it", remedy)
        }
        (false, MakePolicy::Never, _) => Finding::new("image", Missing, "not built yet", remedy),
    }
}

fn disks() -> Finding {
    match ext4::version() {
        Ok(version) => Finding::new("disks", Good, version, None),
        Err(error) => missing("disks", ImageError::from(error).into()),
    }
}

/// Checks the VMM's isolation from files.
fn confinement() -> Finding {
    match landlock::abi() {
        0 => {
            missing("VMM files", VmError::MissingBoundary { boundary: "Landlock, which restricts its access to files" })
        }
        abi => Finding::new("VMM files", Good, format!("Landlock ABI {abi} permits only its own program"), None),
    }
}

/// Checks the VMM's isolation from the network, by starting a program with it.
fn seclusion() -> Finding {
    let name = "VMM network";
    let mut command = match programs::command("true") {
        Ok(command) => command,
        Err(distrust) if distrust.is_missing() => {
            return Finding::new(
                name,
                Weaker,
                "could not be tested: program `true` not found",
                Some("install coreutils"),
            );
        }
        Err(distrust) => return missing(name, distrust.into()),
    };
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let tried = child::start(command, Start { seclusion: Seclusion::Apart, ..Start::default() });
    match tried.and_then(|mut child| child.wait()) {
        Ok(_) => Finding::new(name, Good, "none: the VMM has its own namespaces", None),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::new(name, Weaker, "could not be tested: program `true` not found", Some("install coreutils"))
        }
        Err(_) => missing(
            name,
            VmError::MissingBoundary { boundary: "namespaces of its own, which isolate it from the network" },
        ),
    }
}

fn bounded() -> Finding {
    match bounds::tried() {
        Ok(version) => {
            let detail =
                format!("{}: its memory, without swap, its processors and threads are limited", version.as_str());
            Finding::new("VMM limits", Good, detail, None)
        }
        Err(why) => Finding::new(
            "VMM limits",
            Weaker,
            format!("its memory and processor time are bounded only by resource limits ({why})"),
            Some(
                "run as root, or in a systemd scope with delegated control groups: \
                 `systemd-run --user --scope -p Delegate=yes`",
            ),
        ),
    }
}

/// Describes the use of Firecracker, which is optional unless it is the configured driver.
async fn firecracker_driver(config: &VmConfig, known: &Known) -> Finding {
    const NAME: &str = firecracker::PROGRAM;
    let vmm = FirecrackerVmm::new(config.firecracker.clone());
    let at = |program: &Path| program.display().to_string();
    let location = config.firecracker.program.as_deref().map_or_else(String::new, at);
    let jailed = if config.firecracker.jailer == Jailer::Off { "" } else { ", started by its own jailer" };
    let location = format!("{location}{jailed}");
    match (config.driver, vmm.version().await) {
        (Driver::Auto, Ok(version)) if config.acceleration == Acceleration::Tcg => {
            Finding::new(NAME, Good, format!("{version} ({location}), not used: the accelerator is tcg"), None)
        }
        (Driver::Qemu, Ok(version)) => {
            Finding::new(NAME, Good, format!("{version} ({location}), not used: the driver is qemu"), None)
        }
        (Driver::Qemu, Err(error)) => Finding::new(NAME, Good, format!("{error}; not used: the driver is qemu"), None),
        (Driver::Firecracker, Ok(version)) => {
            Finding::new(NAME, Good, format!("{version} ({location}), as configured"), None)
        }
        (Driver::Firecracker, Err(error)) => missing(NAME, error),
        (Driver::Auto, Ok(version)) => {
            let (state, then) = match (&known.firecracker, known.verdict.is_usable()) {
                (_, false) => (Good, "not used: it needs hardware virtualisation".to_owned()),
                (None, true) => (Good, "tried with the first VM".to_owned()),
                (Some(KernelTrial { outcome: Ok(took), .. }), true) => (Good, format!("a kernel booted in {took} ms")),
                (Some(KernelTrial { outcome: Err(why), .. }), true) => {
                    (Weaker, format!("not used: a kernel did not boot: {why}"))
                }
            };
            Finding::new(NAME, state, format!("{version} ({location}), {then}"), None)
        }
        (Driver::Auto, Err(VmError::MissingTool { .. })) => {
            Finding::new(NAME, Good, "not found, and not needed: QEMU runs the VMs", None)
        }
        (Driver::Auto, Err(error)) => {
            let error = error.into_error("probe");
            Finding::new(NAME, Weaker, format!("{location}: {}; QEMU runs the VMs", error.message()), error.remedy())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::kvm::Verdict;

    fn trial(outcome: Result<u64, String>) -> Option<KernelTrial> {
        Some(KernelTrial { vmm: "qemu 7.2".to_owned(), image: "x".to_owned(), outcome })
    }

    /// Promise (Virtual machines): `doctor` reports the accelerator and its evidence.
    #[test]
    fn doctor_reports_the_accelerator_with_evidence() {
        let took = Duration::from_millis(1);
        for (acceleration, verdict, trial, state, says) in [
            (Acceleration::Auto, Verdict::Usable { took }, None, Good, "first VM"),
            (Acceleration::Auto, Verdict::Usable { took }, trial(Ok(700)), Good, "700 ms"),
            (Acceleration::Auto, Verdict::Usable { took }, trial(Err("silence".to_owned())), Weaker, "silence"),
            (Acceleration::Auto, Verdict::Emulated { took: took * 110 }, None, Weaker, "110.0ms"),
            (Acceleration::Kvm, Verdict::Emulated { took: took * 110 }, None, Missing, "required"),
            (Acceleration::Kvm, Verdict::Usable { took }, trial(Err("silence".to_owned())), Missing, "silence"),
            (Acceleration::Tcg, Verdict::Missing, None, Good, "as configured"),
        ] {
            let found = accelerator((Driver::Auto, acceleration), &Known { verdict, trial, firecracker: None });
            assert!(found.state == state && found.detail.contains(says), "{found:?}");
            assert!(found.state != Missing || found.remedy.is_some(), "{found:?}");
        }
    }

    /// Promise (Virtual machines): `doctor` reports a configured Firecracker that is missing.
    #[tokio::test]
    async fn doctor_reports_missing_firecracker_if_requested() {
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
        // The jailer is checked, and reported with its missing requirement, before any VM is created.
        let mut config = VmConfig { driver: Driver::Firecracker, ..VmConfig::new("/x") };
        config.firecracker.program = Some("/bin/true".into());
        config.firecracker.jailer = Jailer::At("/nowhere/jailer".into());
        let found = firecracker_driver(&config, &usable).await;
        assert!(found.state == Missing && found.detail.contains("jailer is not installed"), "{found:?}");
        for (driver, acceleration, known, says) in [
            (Driver::Firecracker, Acceleration::Tcg, &usable, "translates nothing"),
            (Driver::Firecracker, Acceleration::Auto, &none, "required"),
            (Driver::Firecracker, Acceleration::Auto, &usable, "silence"),
        ] {
            let found = accelerator((driver, acceleration), known);
            assert!(found.state == Missing && found.detail.contains(says) && found.remedy.is_some(), "{found:?}");
        }
    }

    /// Promise (Virtual machines): `doctor` reports a missing image with its remedy.
    #[test]
    fn doctor_reports_missing_image_with_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let config = VmConfig::new(directory.path());
        let none = image(&config);
        assert!(none.state == Missing && none.remedy.is_some(), "{none:?}");
        assert_eq!(image(&VmConfig { make: MakePolicy::Missing, ..config.clone() }).state, Weaker);
        let named = VmConfig { root: RootChoice::Built("mine".to_owned()), make: MakePolicy::Missing, ..config };
        assert!(image(&named).detail.contains("'mine'"));
        assert!(!directory.path().join("images").exists(), "the check created something");
    }
}
