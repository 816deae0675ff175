//! A report on the protections that this host can enforce, those that it lacks, and remedies.

use cofferdam_contract::{Backend, Finding, FindingState, ProtectionState, Sandbox, Spec};

use crate::{ControlGroups, ProcessBackend, ProcessConfig, posture};

/// Creates a sandbox with the default limits. Reports the protections that it really has and the features of the host.
pub async fn doctor() -> Vec<Finding> {
    let mut findings = vec![kernel()];
    let backend =
        match ProcessBackend::new(ProcessConfig { control_groups: ControlGroups::Auto, ..ProcessConfig::default() }) {
            Ok(backend) => backend,
            Err(error) => {
                findings.push(Finding::missing("configuration", &error));
                return findings;
            }
        };
    let launcher = match backend.launcher(&Spec::default(), None, &[]).await {
        Ok(launcher) => launcher,
        Err(error) => {
            findings.push(Finding::missing("namespaces", &error));
            return findings;
        }
    };
    let facts = match launcher.ready().await {
        Ok(facts) => facts,
        Err(error) => {
            findings.push(Finding::missing("namespaces", &error));
            return findings;
        }
    };
    findings.push(match facts.cgroup_version {
        0 => Finding::new(
            "control-groups",
            FindingState::Weaker,
            format!("none usable ({}): resource limits and the init enforce limits", facts.cgroup_reason),
            Some(&posture::delegation_remedy(facts.privileged)),
        ),
        version => Finding::new("control-groups", FindingState::Ok, format!("version {version}, usable"), None),
    });
    findings.push(match facts.cgroup_cpu {
        true => Finding::new("cpu-share", FindingState::Ok, "--cpus takes fractions", None),
        false => Finding::new(
            "cpu-share",
            FindingState::Weaker,
            "--cpus takes whole processors only",
            Some("delegate the cpu controller, or run as root"),
        ),
    });
    drop(launcher);
    match backend.create(Spec::default()).await {
        Ok(sandbox) => {
            findings.extend(rows(&*sandbox));
            if let Err(error) = sandbox.close().await {
                findings.push(Finding::missing("close", &error));
            }
        }
        Err(error) => findings.push(Finding::missing("sandbox", &error)),
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
        Finding::new(item.protection.as_str(), state, item.mechanism.clone(), item.remedy.as_deref())
    })
}

/// Reports on the kernel. 5.14 is the first one that counts processes separately for each user namespace.
fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= (5, 14) {
        Finding::new("kernel", FindingState::Ok, format!("Linux {release}"), None)
    } else {
        let remedy = Some("boot Linux 5.14 or newer");
        Finding::new("kernel", FindingState::Missing, format!("Linux {release} is too old"), remedy)
    }
}
