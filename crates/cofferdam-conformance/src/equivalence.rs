//! Comparison of two sandboxes of the same spec: one created on request, and one claimed from a prepared sandbox.
//!
//! The trials are random and repeatable. They compare everything that a caller can see: the spec, the posture, the
//! environment, write access to the workspace, and the text of a refusal. They do not compare speed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Access, Backend, ByteSize, Cpus, ErrorKind, ExecRequestBuilder, Limits, Posture, Protection, Result, Sandbox,
    SandboxPath, Spec, TenantId, Workspace,
};

use crate::{GuestProgram, Programs};

/// A spec to test, and additions to the environment.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The spec to create.
    pub spec: Spec,
    /// Environment variables of the programs.
    pub env: Vec<(String, String)>,
}

impl Trial {
    /// Returns the trial of `seed`: `base` with other limits, access, tenant, labels and exceptions. With `mounted`, some
    /// trials mount that host directory as their workspace.
    pub fn seeded(seed: u64, base: &Spec, mounted: Option<&Path>) -> Self {
        let mut dice = Dice(seed);
        let mut spec = base.to_builder().limits(limits(base.limits(), &mut dice));
        let access = dice.pick([Access::ReadWrite, Access::ReadWrite, Access::ReadOnly]);
        let workspace = match mounted.filter(|_| dice.one_in(3)) {
            Some(path) => Workspace::HostDir { path: path.to_owned(), access },
            None => Workspace::Private { access },
        };
        spec = spec.workspace(workspace);
        for protection in [Protection::Disk, Protection::Cpus, Protection::Memory] {
            if dice.one_in(3) {
                spec = spec.allow_weaker(protection);
            }
        }
        for number in 0..dice.below(3) {
            spec = spec.label(format!("label-{number}"), dice.below(1000).to_string());
        }
        let tenant = TenantId::new(format!("tenant-{}", dice.below(5))).unwrap_or_default();
        let env = (0..dice.below(3)).map(|number| (format!("TRIAL_{number}"), dice.below(1000).to_string())).collect();
        let spec = spec.tenant(tenant).build().unwrap_or_else(|_| base.clone());
        Self { spec, env }
    }

    fn request(&self, programs: &dyn Programs, program: &GuestProgram) -> Option<ExecRequestBuilder> {
        let request = programs.request(program)?;
        Some(self.env.iter().fold(request, |request, (name, value)| request.env(name, value)))
    }
}

fn limits(base: &Limits, dice: &mut Dice) -> Limits {
    let mebibytes = ByteSize::from_mebibytes;
    Limits {
        memory: Some(mebibytes(dice.pick([96, 128, 300, 512]))),
        pids: Some(dice.pick([6, 10, 40])),
        processes: None,
        disk: Some(mebibytes(dice.pick([2, 8, 64]))),
        cpu_time: dice.pick([Some(Duration::from_secs(7)), base.cpu_time, None]),
        wall_time: dice.pick([Duration::from_secs(20), base.wall_time]),
        cpus: dice.one_in(4).then(|| Cpus::from_millis(500)),
    }
}

/// Creates a sandbox of each backend for a trial, and compares them.
pub async fn compare_backends(
    one: &dyn Backend,
    other: &dyn Backend,
    programs: &dyn Programs,
    trial: &Trial,
) -> Result<(), String> {
    // Sequential, because both may mount the same host directory.
    let created = one.create(trial.spec.clone()).await;
    let claimed = other.create(trial.spec.clone()).await;
    compare(created, claimed, programs, trial).await
}

/// Compares the two results of the same trial, and closes both. The error describes the difference.
pub async fn compare(
    created: Result<Arc<dyn Sandbox>>,
    claimed: Result<Arc<dyn Sandbox>>,
    programs: &dyn Programs,
    trial: &Trial,
) -> Result<(), String> {
    let (created, claimed) = match (created, claimed) {
        (Ok(created), Ok(claimed)) => (created, claimed),
        (Err(one), Err(other)) => {
            let (one, other): (ErrorKind, ErrorKind) = (one.kind(), other.kind());
            return same("the kind of refusal", &one, &other);
        }
        (created, claimed) => {
            let differs = format!("one was refused: {:?} and {:?}", outcome(&created), outcome(&claimed));
            for sandbox in [created, claimed].into_iter().flatten() {
                sandbox.close().await.map_err(|error| error.to_string())?;
            }
            return Err(differs);
        }
    };
    let verdict = compare_living(&created, &claimed, programs, trial).await;
    for sandbox in [created, claimed] {
        sandbox.close().await.map_err(|error| format!("cannot close: {error}"))?;
    }
    verdict
}

async fn compare_living(
    created: &Arc<dyn Sandbox>,
    claimed: &Arc<dyn Sandbox>,
    programs: &dyn Programs,
    trial: &Trial,
) -> Result<(), String> {
    same("the spec", created.spec(), claimed.spec())?;
    same("the spec and the requested spec", &trial.spec, claimed.spec())?;
    same("the posture", &shape(created.posture()), &shape(claimed.posture()))?;
    if created.id() == claimed.id() {
        return Err(format!("both are {}", created.id()));
    }
    same("the files at the start", &listing(created).await, &listing(claimed).await)?;
    let environment = GuestProgram::PrintEnvironment;
    let (one, other) =
        (observe(created, programs, trial, &environment), observe(claimed, programs, trial, &environment));
    same("the environment", &one.await?, &other.await?)?;
    let write = GuestProgram::WriteFile { path: "made-by-a-trial".into(), contents: "x".into() };
    let one = observe(created, programs, trial, &write).await?;
    same("write access to the workspace", &one, &observe(claimed, programs, trial, &write).await?)
}

/// Returns a program's output and exit, or `None` if the guests cannot run it.
async fn observe(
    sandbox: &Arc<dyn Sandbox>,
    programs: &dyn Programs,
    trial: &Trial,
    program: &GuestProgram,
) -> Result<Option<(i32, Vec<String>)>, String> {
    let Some(request) = trial.request(programs, program) else { return Ok(None) };
    let request = request.build().map_err(|error| error.to_string())?;
    let done = sandbox.exec(request).await.map_err(|error| format!("{} failed: {error}", program.name()))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let mut parts: Vec<String> = text.split('\0').map(str::to_owned).collect();
    parts.sort();
    Ok(Some((done.exit.code, parts)))
}

async fn listing(sandbox: &Arc<dyn Sandbox>) -> Result<Vec<String>, ErrorKind> {
    let entries = sandbox.list_dir(&SandboxPath::default()).await.map_err(|error| error.kind())?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

fn outcome(created: &Result<Arc<dyn Sandbox>>) -> String {
    created.as_ref().map_or_else(ToString::to_string, |sandbox| format!("created {}", sandbox.id()))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, one: &T, other: &T) -> Result<(), String> {
    if one == other { Ok(()) } else { Err(format!("{what} differs: {one:?} and {other:?}")) }
}

/// Returns a posture without the identities of namespaces and users, which are unique to each sandbox. Two sandboxes of
/// the same spec have the rest in common.
pub fn shape(posture: &Posture) -> Vec<String> {
    let rows = posture.items().iter().map(|item| {
        let identities = item.protection.as_str().ends_with("namespace") || item.protection == Protection::User;
        let words = item.mechanism.split(' ');
        let plain = words.filter(|word| !(identities && word.contains(|c: char| c.is_ascii_digit())));
        format!("{} {:?} {} {}", item.protection, item.state, item.probed, plain.collect::<Vec<_>>().join(" "))
    });
    rows.collect()
}

/// A deterministic random number generator: SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Clone, const N: usize>(&mut self, from: [T; N]) -> T {
        from[self.below(N as u64) as usize].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_repeatable_valid_and_differ() {
        let base = Spec::default();
        let specs: Vec<Spec> =
            (0..200).map(|seed| Trial::seeded(seed, &base, Some(Path::new("/mounted"))).spec).collect();
        for (seed, spec) in (0..).zip(&specs) {
            assert_eq!(spec, &Trial::seeded(seed, &base, Some(Path::new("/mounted"))).spec);
            assert!(spec.validate().is_ok() && *spec != base, "{spec:?}");
        }
        let count = |test: fn(&Spec) -> bool| specs.iter().filter(|spec| test(spec)).count();
        assert!(count(|spec| matches!(spec.workspace(), Workspace::HostDir { .. })) > 20);
        assert!(count(|spec| spec.workspace().access() == Access::ReadOnly) > 20);
        assert!(count(|spec| spec.limits().cpus.is_some()) > 10);
    }
}
