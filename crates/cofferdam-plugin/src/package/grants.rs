//! Grants: a text of each thing that a plugin may do, for the user that installs it.

use cofferdam_contract::ByteSize;
use serde::Serialize;

use crate::{Manifest, Runtime, Strategy};

/// A part of what a plugin may do: a name such as `hosts`, and its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// The name.
    pub name: &'static str,
    /// The values.
    pub values: Vec<String>,
}

/// Returns what a plugin may do, without empty parts.
pub fn grants(manifest: &Manifest) -> Vec<Grant> {
    let Manifest { sandbox, events, .. } = manifest;
    let level = sandbox.level.map(|level| format!("{level} or stronger"));
    let none = matches!(sandbox.strategy, Some(Strategy::Thread | Strategy::Inline)).then(|| "no isolation".to_owned());
    let isolation = [Some(strategy(manifest).to_owned()), level, none].into_iter().flatten().collect();
    let all = [
        ("isolation", isolation),
        ("permissions", manifest.permissions.iter().map(|permission| permission.as_str().to_owned()).collect()),
        ("hosts", sandbox.net.clone()),
        ("reads", sandbox.fs_access.read.clone()),
        ("writes", sandbox.fs_access.write.clone()),
        ("secrets", manifest.secrets.clone()),
        ("publishes", events.publish.clone()),
        ("subscribes", events.subscribe.clone()),
    ];
    all.into_iter().map(|(name, values)| Grant { name, values }).filter(|grant| !grant.values.is_empty()).collect()
}

/// Returns what the new version of a plugin may do and the old one may not.
pub fn added(old: &Manifest, new: &Manifest) -> Vec<Grant> {
    let old = grants(old);
    let is_old = |name, value: &String| old.iter().any(|grant| grant.name == name && grant.values.contains(value));
    let mut new = grants(new);
    for grant in &mut new {
        grant.values.retain(|value| !is_old(grant.name, value));
    }
    new.retain(|grant| !grant.values.is_empty());
    new
}

/// Returns the limits of a plugin. The host has defaults for others.
pub fn limits(manifest: &Manifest) -> Vec<String> {
    let limits = &manifest.sandbox.limits;
    let size = |name: &str, size: Option<ByteSize>| size.map(|size| format!("{name} {size}"));
    let all = [
        size("memory", limits.memory),
        size("disk", limits.disk),
        limits.cpu_time.map(|time| format!("cpuTime {time:?}")),
        limits.pids.map(|pids| format!("pids {pids}")),
        manifest.sandbox.timeouts.call.map(|time| format!("call {time:?}")),
    ];
    all.into_iter().flatten().collect()
}

/// Returns the strategy that a plugin runs with.
pub fn strategy(manifest: &Manifest) -> &'static str {
    match (manifest.sandbox.strategy, manifest.runtime) {
        (None, Runtime::Wasm) | (Some(Strategy::Wasm), _) => "wasm",
        (None | Some(Strategy::Subprocess), _) => "subprocess",
        (Some(Strategy::Container), _) => "container",
        (Some(Strategy::Vm), _) => "vm",
        (Some(Strategy::Thread), _) => "thread",
        (Some(Strategy::Inline), _) => "inline",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, check};

    fn manifest(change: impl Fn(String) -> String) -> Manifest {
        let text = include_str!("../../tests/full.toml").to_owned();
        check(&change(text), Format::Toml).unwrap().0
    }

    #[test]
    fn upgrade_shows_added_permissions_only() {
        let old = manifest(|text| text);
        assert_eq!(added(&old, &old), []);
        let new = manifest(|text| {
            text.replace("\"secrets.read\"]", "\"secrets.read\", \"invoke\"]")
                .replace("[\"API_TOKEN\"]", "[\"API_TOKEN\", \"OTHER\"]")
                .replace("\"api.example.com:443\", ", "\"evil.example.com:443\", ")
        });
        let grant = |name, value: &str| Grant { name, values: vec![value.to_owned()] };
        let expected =
            [grant("permissions", "invoke"), grant("hosts", "evil.example.com:443"), grant("secrets", "OTHER")];
        assert_eq!(added(&old, &new), expected);
        let less = manifest(|text| text.replace("[\"data\", \"/usr/share/zoneinfo\"]", "[\"data\"]"));
        assert_eq!(added(&old, &less), []);
    }

    #[test]
    fn isolation_and_limits_are_shown() {
        let all = manifest(|text| text);
        assert_eq!(grants(&all)[0].values, ["subprocess", "process or stronger"]);
        assert_eq!(limits(&all), ["memory 256 MiB", "cpuTime 10s", "pids 32", "call 30s"]);
        let other = manifest(|text| text.replace("\"subprocess\"", "\"inline\""));
        assert_eq!(added(&all, &other)[0].values, ["inline", "no isolation"]);
    }
}
