//! This backend's options and limits of a spec, validated.

use cofferdam_contract::{Access, Error, Limits, Result, RootFs, Spec, SpecParts, Workspace, unsupported_mount};
use serde_json::Value;

use crate::network::Rules;
use crate::{NAME, directories};

/// The options of this backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Policy {
    /// The seed of deterministic clocks and random numbers.
    pub(crate) seed: Option<u64>,
    /// The fuel of one exec.
    pub(crate) fuel: Option<u64>,
}

impl Policy {
    /// Returns true if execution is metered. Metering also makes floating-point results deterministic.
    pub(crate) fn is_metered(self) -> bool {
        self.seed.is_some() || self.fuel.is_some()
    }

    /// Reads a spec, and rejects what this backend does not support.
    pub(crate) fn of(spec: &Spec) -> Result<Self> {
        spec.validate()?;
        let SpecParts {
            workspace,
            root,
            mounts,
            limits,
            network,
            tenant,
            labels,
            allow_weaker,
            attributes,
            directories,
        } = spec.parts();
        if let Some(mount) = mounts.first() {
            return Err(unsupported_mount(mount, "a WebAssembly sandbox has a workspace and no other directories"));
        }
        // Tenant, labels and permissions do not affect the sandbox.
        let (_, _, _) = (tenant, labels, allow_weaker);
        let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = limits;
        // Each exec takes its times from the spec, and the sandbox its accounts of memory and disk.
        let (_, _, _, _) = (cpu_time, wall_time, memory, disk);
        // A guest is one thread, so these bound the number of execs. The posture reports them.
        let (_, _, _) = (pids, processes, cpus);
        // Checked when the directory is opened.
        let _ = directories;
        if matches!(workspace, Workspace::HostDir { access: Access::ReadWrite, .. }) {
            let what = "the wasm backend does not support writable host directories, only read-only copies";
            return Err(Error::unsupported("create", what).with_remedy(
                "mount it read-only (--workspace DIR:ro), write files by the file API, or use level process",
            ));
        }
        if matches!(workspace, Workspace::CopyOnWrite { .. }) {
            return Err(Error::unsupported("create", "the wasm backend has no copy-on-write workspaces")
                .with_remedy("mount it read-only (--workspace DIR:ro), or use level process"));
        }
        if *root != RootFs::Default {
            return Err(Error::unsupported("create", "the wasm backend does not support root file systems"));
        }
        // Read again where it is used.
        let rules = Rules::of(network)?;
        if rules.as_ref().is_some_and(Rules::is_detailed) {
            let what = "the wasm backend has rules for hosts and ports only, not for protocols, requests, or budgets";
            return Err(Error::unsupported("create", what).with_remedy("list hosts with ports, or use level process"));
        }
        let mut policy = Self::default();
        for (key, value) in attributes {
            let Some(option) = key.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('.')) else { continue };
            match option {
                "deterministic" => policy.seed = Some(seed(value)?),
                "fuel" => policy.fuel = Some(fuel(value)?),
                // Read again where it is used.
                "directories" => drop(directories::read(value)?),
                _ => {
                    return Err(Error::invalid("create", "unknown option of the wasm backend")
                        .with_context("attribute", key.escape_debug().to_string())
                        .with_remedy("the options are wasm.deterministic, wasm.fuel and wasm.directories"));
                }
            }
        }
        if rules.is_some() && policy.seed.is_some() {
            return Err(Error::unsupported("create", "a deterministic sandbox cannot have a network")
                .with_remedy("remove wasm.deterministic, or the hosts of the network policy"));
        }
        Ok(policy)
    }
}

fn seed(value: &Value) -> Result<u64> {
    match value {
        Value::String(text) => Ok(text.parse().unwrap_or_else(|_| hash(text))),
        Value::Number(number) if number.is_u64() => Ok(number.as_u64().unwrap_or_default()),
        _ => Err(Error::invalid("create", "wasm.deterministic must be a seed: a string or an unsigned integer")),
    }
}

/// Hashes a text to a seed by FNV-1a, whose result is stable across hosts and versions.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn fuel(value: &Value) -> Result<u64> {
    let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    number.filter(|number| *number > 0).ok_or_else(|| Error::invalid("create", "wasm.fuel must be a positive integer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::ErrorKind;

    #[test]
    fn options_are_read_or_refused() {
        let of = |key: &str, value: Value| Policy::of(&Spec::builder().attribute(key, value).build().unwrap());
        assert_eq!(of("wasm.fuel", 5.into()).unwrap(), Policy { fuel: Some(5), ..Policy::default() });
        assert_eq!(of("wasm.deterministic", "7".into()).unwrap().seed, Some(7));
        assert_eq!(
            of("wasm.deterministic", "x".into()).unwrap().seed,
            of("wasm.deterministic", "x".into()).unwrap().seed
        );
        assert_ne!(
            of("wasm.deterministic", "x".into()).unwrap().seed,
            of("wasm.deterministic", "y".into()).unwrap().seed
        );
        assert_eq!(of("process.x", 1.into()).unwrap(), Policy::default());
        for (key, value) in [
            ("wasm.fuel", Value::from(0)),
            ("wasm.fuel", Value::from("x")),
            ("wasm.deterministic", Value::from(true)),
            ("wasm.deterministic", Value::from(-1)),
            ("wasm.x", Value::from(1)),
        ] {
            assert_eq!(of(key, value.clone()).unwrap_err().kind(), ErrorKind::InvalidInput, "{key} {value}");
        }
    }
}
