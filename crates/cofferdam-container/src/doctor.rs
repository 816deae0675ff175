//! Diagnosis of a container engine: its features, and remedies for missing ones.

use std::sync::Arc;

use cofferdam_contract::{Finding, FindingState};

use crate::config::{Checked, ContainerConfig};
use crate::engine::{Engine, Facts};
use crate::image;
use crate::load::ImageSource;

/// Inspects the engine, within the deadline for connecting. Creates no container.
pub async fn doctor(config: &ContainerConfig) -> Vec<Finding> {
    doctor_with_source(config, None).await
}

/// Inspects the engine like [`doctor`], for sandboxes that also get images from another store.
pub async fn doctor_with_source(config: &ContainerConfig, source: Option<Arc<dyn ImageSource>>) -> Vec<Finding> {
    let checked = match config.check() {
        Ok(checked) => checked,
        Err(error) => return vec![Finding::missing("configuration", &error)],
    };
    let engine = match Engine::connect(&checked).await {
        Ok(engine) => engine,
        Err(error) => return vec![Finding::missing("engine", &error)],
    };
    let mut findings = about(&engine.facts, &engine.address.to_string());
    findings.push(match engine.check_runtime(checked.runtime.as_deref()) {
        Ok(()) => runtimes(&engine.facts, checked.runtime.as_deref()),
        Err(error) => Finding::missing("runtimes", &error),
    });
    findings.push(default_image(&engine, &checked, source).await);
    findings
}

/// Returns the findings about an engine's properties. Pure.
fn about(facts: &Facts, address: &str) -> Vec<Finding> {
    use FindingState::{Missing, Ok, Weaker};
    let (name, version) = (facts.name(), &facts.version);
    let mode = if facts.rootless { ", without root" } else { "" };
    let engine = Finding::new("engine", Ok, format!("{name} {version} at {address}{mode}"), None);
    let api = Finding::new("api", Ok, format!("{}.{}", facts.api.0, facts.api.1), None);
    let storage = Finding::new("storage", Ok, format!("{} on Linux {}", facts.storage_driver, facts.kernel), None);
    let cgroups = match (facts.cgroup_version.as_str(), facts.pids_limit || facts.podman) {
        ("", _) => Finding::new("cgroups", Weaker, "the engine does not report the version", None),
        (_, false) => Finding::new(
            "cgroups",
            Missing,
            "the engine cannot limit processes",
            Some("enable the pids controller; a rootless engine needs delegated control groups"),
        ),
        (version, true) => Finding::new("cgroups", Ok, format!("version {version}"), None),
    };
    let swap = if facts.swap_limit || facts.podman {
        Finding::new("swap", Ok, "counts as memory", None)
    } else {
        Finding::new(
            "swap",
            Weaker,
            "this kernel does not count swap",
            Some("boot with swapaccount=1, or without swap"),
        )
    };
    let filter = if facts.seccomp {
        Finding::new("seccomp", Ok, "the engine's own filter, and Cofferdam's on top", None)
    } else {
        Finding::new(
            "seccomp",
            Weaker,
            "the engine has no system call filter; only Cofferdam's applies",
            Some("use an engine with seccomp"),
        )
    };
    let root = if facts.rootless || facts.remapped {
        Finding::new("user namespaces", Ok, "root inside is an ordinary user outside", None)
    } else {
        Finding::new(
            "user namespaces",
            Weaker,
            "ids inside are ids of the host (sandboxes never run as root)",
            Some(
                "use a rootless engine, or `userns-remap` in its configuration, for a user namespace around each container",
            ),
        )
    };
    vec![engine, api, storage, cgroups, swap, filter, root]
}

fn runtimes(facts: &Facts, requested: Option<&str>) -> Finding {
    let default = if facts.default_runtime.is_empty() { "the engine's default" } else { &facts.default_runtime };
    let used = requested.unwrap_or(default);
    let known =
        if facts.runtimes.is_empty() { String::new() } else { format!("; it has {}", facts.runtimes.join(", ")) };
    Finding::new("runtimes", FindingState::Ok, format!("{used} is used{known}"), None)
}

async fn default_image(engine: &Engine, config: &Checked, source: Option<Arc<dyn ImageSource>>) -> Finding {
    match image::find_default(engine, config).await {
        Ok(facts) => {
            let id: String = facts.id.chars().take(19).collect();
            Finding::new("image", FindingState::Ok, format!("{} is {id}", config.image), None)
        }
        Err(error) => match source {
            Some(source) if is_stored(Arc::clone(&source), config.image.as_str()).await => {
                let found = format!("{} is in the image store, and the first sandbox loads it", config.image);
                Finding::new("image", FindingState::Ok, found, None)
            }
            _ => Finding::missing("image", &error),
        },
    }
}

/// Returns true if another store has an image. A failed search finds nothing: the missing image is reported.
async fn is_stored(source: Arc<dyn ImageSource>, name: &str) -> bool {
    let name = name.to_owned();
    let found = tokio::task::spawn_blocking(move || source.find(&name)).await;
    matches!(found, Ok(Ok(Some(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_findings_have_remedies() {
        let poor = Facts { cgroup_version: "1".to_owned(), ..Facts::default() };
        let findings = about(&poor, "unix:///x");
        let state = |name: &str| findings.iter().find(|finding| finding.name == name).unwrap();
        assert_eq!(state("cgroups").state, FindingState::Missing);
        assert_eq!(state("seccomp").state, FindingState::Weaker);
        assert!(
            findings.iter().all(|finding| finding.state == FindingState::Ok || finding.remedy.is_some()),
            "{findings:?}"
        );
        let good = Facts { pids_limit: true, swap_limit: true, seccomp: true, rootless: true, ..poor };
        assert!(about(&good, "unix:///x").iter().all(|finding| finding.state == FindingState::Ok));
    }
}
