//! A report on the protections that this host can enforce, those that it lacks, and remedies.

use cofferdam_contract::{Backend, ProtectionState, Sandbox, Spec};

use crate::{ControlGroups, ProcessBackend, ProcessConfig, posture};

/// The state of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingState {
    /// The protection is complete.
    Ok,
    /// The protection works, but weaker than possible.
    Weaker,
    /// The protection is missing.
    Missing,
}

/// A finding about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The subject.
    pub name: String,
    /// The state.
    pub state: FindingState,
    /// The details.
    pub detail: String,
    /// The remedy.
    pub remedy: Option<String>,
}

fn finding(name: &str, state: FindingState, detail: impl Into<String>, remedy: Option<String>) -> Finding {
    Finding { name: name.to_owned(), state, detail: detail.into(), remedy }
}

/// Creates a sandbox with the default limits. Reports the protections that it really has and the features of the host.
pub async fn doctor() -> Vec<Finding> {
    let mut findings = vec![kernel()];
    let backend =
        match ProcessBackend::new(ProcessConfig { control_groups: ControlGroups::Auto, ..ProcessConfig::default() }) {
            Ok(backend) => backend,
            Err(error) => {
                findings.push(failure("configuration", &error));
                return findings;
            }
        };
    let launcher = match backend.launcher(&Spec::default()).await {
        Ok(launcher) => launcher,
        Err(error) => {
            findings.push(failure("namespaces", &error));
            return findings;
        }
    };
    let facts = match launcher.ready().await {
        Ok(facts) => facts,
        Err(error) => {
            findings.push(failure("namespaces", &error));
            return findings;
        }
    };
    findings.push(match facts.cgroup_version {
        0 => finding(
            "control-groups",
            FindingState::Weaker,
            format!("none usable ({}): resource limits and the init enforce limits", facts.cgroup_reason),
            Some(posture::delegation_remedy(facts.privileged)),
        ),
        version => finding("control-groups", FindingState::Ok, format!("version {version}, usable"), None),
    });
    findings.push(match facts.cgroup_cpu {
        true => finding("cpu-share", FindingState::Ok, "--cpus takes fractions", None),
        false => finding(
            "cpu-share",
            FindingState::Weaker,
            "--cpus takes whole processors only",
            Some("delegate the cpu controller, or run as root".to_owned()),
        ),
    });
    drop(launcher);
    match backend.create(Spec::default()).await {
        Ok(sandbox) => {
            findings.extend(rows(&*sandbox));
            if let Err(error) = sandbox.close().await {
                findings.push(failure("close", &error));
            }
        }
        Err(error) => findings.push(failure("sandbox", &error)),
    }
    findings
}

fn rows(sandbox: &dyn Sandbox) -> impl Iterator<Item = Finding> {
    sandbox.posture().items().iter().map(|item| {
        let state = match item.state {
            ProtectionState::Enforced | ProtectionState::NotAsked => FindingState::Ok,
            ProtectionState::WeakerThanRequired => FindingState::Weaker,
            ProtectionState::Absent => FindingState::Missing,
        };
        finding(item.protection.as_str(), state, item.mechanism.clone(), item.remedy.clone())
    })
}

fn failure(name: &str, error: &cofferdam_contract::Error) -> Finding {
    finding(name, FindingState::Missing, error.to_string(), error.remedy().map(str::to_owned))
}

/// Reports on the kernel. 5.14 is the first one that counts processes separately for each user namespace.
fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= (5, 14) {
        finding("kernel", FindingState::Ok, format!("Linux {release}"), None)
    } else {
        let remedy = Some("boot Linux 5.14 or newer".to_owned());
        finding("kernel", FindingState::Missing, format!("Linux {release} is too old"), remedy)
    }
}
