//! What a spec asks of this backend, checked and in its own words.

use cofferdam_contract::{Access, Error, Result, RootFs, Spec, SpecParts, Workspace};
use serde_json::Value;

use crate::backend::NAME;
use crate::network::Rules;
use crate::preopens;

/// The options of this backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Policy {
    /// Made-up clocks and random numbers of this seed.
    pub(crate) seed: Option<u64>,
    /// Steps that one exec may take.
    pub(crate) fuel: Option<u64>,
}

impl Policy {
    /// Whether the guest's steps are counted, which is also what makes its numbers the same everywhere.
    pub(crate) fn is_metered(self) -> bool {
        self.seed.is_some() || self.fuel.is_some()
    }

    /// Reads a spec, and refuses what this backend does not have.
    pub(crate) fn of(spec: &Spec) -> Result<Self> {
        spec.validate()?;
        let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
            spec.parts();
        // Limits become the posture; tenant, labels and permissions change nothing that is built.
        let (_, _, _, _) = (limits, tenant, labels, allow_weaker);
        // Compared where the directory is opened.
        let _ = directories;
        if matches!(workspace, Workspace::HostDir { access: Access::ReadWrite, .. }) {
            let what = "a WebAssembly sandbox has no directory of the host in it, only a copy that can be read";
            return Err(Error::unsupported("create", what).with_remedy(
                "lend it read-only (--workspace DIR:ro), put files in through the file API, or use level process",
            ));
        }
        if *root != RootFs::Default {
            return Err(Error::unsupported("create", "a WebAssembly sandbox has no root file system"));
        }
        // Looked at again where it is used.
        let rules = Rules::of(network)?;
        let mut policy = Self::default();
        for (key, value) in attributes {
            let Some(option) = key.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('.')) else { continue };
            match option {
                "deterministic" => policy.seed = Some(seed(value)?),
                "fuel" => policy.fuel = Some(fuel(value)?),
                // Looked at again where it is used.
                "directories" => drop(preopens::read(value)?),
                _ => {
                    return Err(Error::invalid("create", "the wasm backend has no such option")
                        .with_context("attribute", key.escape_debug().to_string())
                        .with_remedy("it has wasm.deterministic, wasm.fuel and wasm.directories"));
                }
            }
        }
        if rules.is_some() && policy.seed.is_some() {
            return Err(Error::unsupported("create", "what comes over a network is not the same each time")
                .with_remedy("leave out wasm.deterministic, or the hosts of the network policy"));
        }
        Ok(policy)
    }
}

fn seed(value: &Value) -> Result<u64> {
    match value {
        Value::String(text) => Ok(text.parse().unwrap_or_else(|_| hash(text))),
        Value::Number(number) if number.is_u64() => Ok(number.as_u64().unwrap_or_default()),
        _ => Err(Error::invalid("create", "wasm.deterministic is a seed: a text or a whole number")),
    }
}

/// FNV-1a: a text's seed is the same everywhere and for ever.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn fuel(value: &Value) -> Result<u64> {
    let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    number.filter(|number| *number > 0).ok_or_else(|| Error::invalid("create", "wasm.fuel is a whole number above 0"))
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
