//! Policy of requested sandboxes: a call can tighten the server's settings, never exceed them. Pure.

use std::time::Duration;

use cofferdam_contract::{Access, ByteSize, Error, ErrorKind, NetworkPolicy, Result, Spec, Workspace};

use crate::arguments::{CreateSandbox, Network, Tighter};

/// Returns the spec of a sandbox that a client requests.
pub fn spec(template: &Spec, requested: &CreateSandbox) -> Result<Spec> {
    let mut builder = tightened(template, &requested.limits)?.to_builder();
    if requested.network == Some(Network::None) {
        builder = builder.network(NetworkPolicy::None);
    }
    if requested.read_only {
        builder = builder.workspace(match template.workspace() {
            Workspace::Private { .. } => Workspace::Private { access: Access::ReadOnly },
            Workspace::HostDir { path, .. } | Workspace::CopyOnWrite { path } => {
                Workspace::HostDir { path: path.clone(), access: Access::ReadOnly }
            }
        });
        builder = builder.read_only_mounts();
    }
    builder.build()
}

/// Returns the spec with tighter limits.
pub fn tightened(template: &Spec, requested: &Tighter) -> Result<Spec> {
    let Tighter { timeout_seconds, cpu_seconds, memory_bytes, disk_bytes, pids, processes } = requested;
    let mut limits = template.limits().clone();
    if let Some(requested) = timeout_seconds {
        let requested = seconds("timeout_seconds", *requested)?;
        limits.wall_time = at_most("timeout_seconds", requested, Some(limits.wall_time), |time| format!("{time:?}"))?;
    }
    if let Some(requested) = cpu_seconds {
        let requested = seconds("cpu_seconds", *requested)?;
        limits.cpu_time = Some(at_most("cpu_seconds", requested, limits.cpu_time, |time| format!("{time:?}"))?);
    }
    limits.memory = size("memory_bytes", *memory_bytes, limits.memory)?;
    limits.disk = size("disk_bytes", *disk_bytes, limits.disk)?;
    if let Some(requested) = pids {
        limits.pids = Some(at_most("pids", *requested, limits.pids, |count| count.to_string())?);
    }
    if let Some(requested) = processes {
        limits.processes = Some(at_most("processes", *requested, limits.processes, |count| count.to_string())?);
    }
    template.to_builder().limits(limits).build()
}

fn size(name: &str, requested: Option<u64>, max: Option<ByteSize>) -> Result<Option<ByteSize>> {
    let Some(requested) = requested else { return Ok(max) };
    at_most(name, ByteSize::from_bytes(requested), max, |size| size.as_bytes().to_string()).map(Some)
}

/// Parses a duration from a client.
pub fn seconds(name: &str, requested: f64) -> Result<Duration> {
    let time = Duration::try_from_secs_f64(requested).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| {
        Error::invalid("policy", format!("{name} must be a number of seconds above 0"))
            .with_remedy(format!("leave out {name}, or pass a number such as 10"))
    })
}

fn at_most<T: PartialOrd + Copy>(name: &str, requested: T, max: Option<T>, show: fn(T) -> String) -> Result<T> {
    match max {
        Some(max) if requested > max => {
            let what = format!("{name} {} exceeds the server's limit of {}", show(requested), show(max));
            Err(Error::new(ErrorKind::Denied, "policy", what)
                .with_remedy(format!("request at most the limit, or leave out {name}; arguments cannot raise it")))
        }
        _ => Ok(requested),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::Limits;
    use cofferdam_contract::{Mount, MountAccess, MountSource, MountTarget};

    /// Promise (MCP server): An argument can only lower limits.
    #[test]
    fn limits_only_become_tighter() {
        let template = Spec::default();
        let requested = Tighter {
            timeout_seconds: Some(1.5),
            cpu_seconds: Some(1.0),
            memory_bytes: Some(64 << 20),
            disk_bytes: Some(1 << 20),
            pids: Some(3),
            processes: Some(2),
        };
        let limits = tightened(&template, &requested).unwrap().limits().clone();
        let expected = Limits {
            cpu_time: Some(Duration::from_secs(1)),
            memory: Some(ByteSize::from_mebibytes(64)),
            disk: Some(ByteSize::from_mebibytes(1)),
            wall_time: Duration::from_millis(1500),
            pids: Some(3),
            processes: Some(2),
            cpus: None,
        };
        assert_eq!(limits, expected);
        for requested in [
            Tighter { timeout_seconds: Some(61.0), ..Tighter::default() },
            Tighter { cpu_seconds: Some(30.5), ..Tighter::default() },
            Tighter { memory_bytes: Some(u64::MAX), ..Tighter::default() },
            Tighter { disk_bytes: Some((1 << 30) + 1), ..Tighter::default() },
            Tighter { pids: Some(300), ..Tighter::default() },
        ] {
            assert_eq!(tightened(&template, &requested).unwrap_err().kind(), ErrorKind::Denied, "{requested:?}");
        }
        for wrong in [0.0, -1.0, f64::INFINITY, f64::NAN, 1e300] {
            let requested = Tighter { timeout_seconds: Some(wrong), ..Tighter::default() };
            assert_eq!(tightened(&template, &requested).unwrap_err().kind(), ErrorKind::InvalidInput, "{wrong}");
        }
    }

    #[test]
    fn a_limit_that_was_lifted_can_be_set() {
        let limits = Limits { memory: None, pids: None, ..Limits::default() };
        let template = Spec::builder().limits(limits).build().unwrap();
        let requested = Tighter { memory_bytes: Some(1 << 30), pids: Some(500), ..Tighter::default() };
        let limits = tightened(&template, &requested).unwrap().limits().clone();
        assert_eq!((limits.memory, limits.pids), (Some(ByteSize::from_mebibytes(1024)), Some(500)));
    }

    /// Promise (MCP server): An argument can only reduce access to network, workspace and mounts.
    #[test]
    fn network_and_workspace_only_become_less() {
        let network = NetworkPolicy::Allow { hosts: vec!["example.com".to_owned()] };
        let workspace = Workspace::HostDir { path: "/srv".into(), access: Access::ReadWrite };
        let source = MountSource::HostPath { path: "/data".into(), access: MountAccess::ReadWrite };
        let mount = Mount { target: MountTarget::new("/data").unwrap(), source };
        let template = Spec::builder().network(network.clone()).workspace(workspace).mount(mount).build().unwrap();
        let same = spec(&template, &CreateSandbox::default()).unwrap();
        assert_eq!(same, template);
        let requested = CreateSandbox { network: Some(Network::None), read_only: true, ..CreateSandbox::default() };
        let less = spec(&template, &requested).unwrap();
        assert_eq!(*less.network(), NetworkPolicy::None);
        assert_eq!(*less.workspace(), Workspace::HostDir { path: "/srv".into(), access: Access::ReadOnly });
        assert!(less.mounts().iter().all(|mount| mount.source.is_read_only()), "{:?}", less.mounts());
    }
}
