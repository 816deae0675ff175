//! The policy for tenants: turns a request for a sandbox into a spec, and refuses what only the operator
//! may decide. Pure.
//!
//! A tenant names no file of the host (the server's own user may show a directory, copy-on-write), mounts only its own
//! volumes, weakens no protection, sets no attribute of a backend, and reaches only public host names if the operator
//! allows network policies at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Access, Backend, ByteSize, Capabilities, Capability, Error, ErrorKind, ExecRequest, Limits, MAX_MOUNTS,
    NetworkPolicy, NetworkRules, Protection, Result, RootFs, Spec, SpecBuilder, Workspace,
};
use cofferdam_volume::sandbox::VolumeMount;
use serde_json::Value;

use crate::bounds::Bounds;
use crate::caller::{Caller, Scope};
use crate::live::NewSandbox;
use crate::rest::views::{CreateSandbox, CreateVolume, HostDirectory, MountVolume};
use crate::snapshots::SnapshotArchive;

/// The most bytes of all labels of a sandbox, of which lists have many.
const MAX_LABELS: usize = 16 << 10;
/// The size of a volume whose creator sets none.
const DEFAULT_VOLUME: ByteSize = ByteSize::from_mebibytes(1024);

/// A backend with the attributes of its sandboxes.
#[derive(Debug, Clone)]
pub struct ServedBackend {
    /// The backend, with all layers around it.
    pub backend: Arc<dyn Backend>,
    /// The operator's attributes for each spec.
    pub attributes: Vec<(String, Value)>,
    /// The files of its snapshots. `None` if its snapshots cannot be stored.
    pub archive: Option<Arc<dyn SnapshotArchive>>,
}

/// The policy for tenants.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The backends by name.
    pub backends: BTreeMap<String, ServedBackend>,
    /// The backend of sandboxes that name none. Must be one of `backends`.
    pub default_backend: String,
    /// The limits of sandboxes that set none, and the most that a tenant can set. `None` there means no bound.
    pub max_limits: Limits,
    /// Protections that may be weaker in every sandbox.
    pub allow_weaker: BTreeSet<Protection>,
    /// True if tenants may choose an image.
    pub images: bool,
    /// True if tenants may set a network policy.
    pub network: bool,
    /// True if the server's own user may show directories of this host, because their changes are kept.
    pub workspaces: bool,
}

fn denied(message: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Denied, "create", message.to_string())
}

impl Policy {
    /// Returns the backend and the settings of a new sandbox.
    ///
    /// # Errors
    /// - `Denied` for settings that only the operator may choose, and for limits beyond the operator's.
    /// - `NotFound` for a backend that is not served.
    pub fn sandbox(
        &self,
        caller: &Caller,
        request: CreateSandbox,
        bounds: &Bounds,
    ) -> Result<(Arc<dyn Backend>, NewSandbox)> {
        let CreateSandbox {
            backend,
            level,
            name,
            image,
            workspace,
            read_only,
            limits,
            network,
            labels,
            idle,
            life,
            snapshot,
            volumes,
        } = request;
        let served = self.select(backend.as_deref(), level)?;
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let mut spec = Spec::builder()
            .tenant(caller.tenant.clone())
            .workspace(Workspace::Private { access })
            .limits(self.limits(limits, bounds)?)
            .network(self.network("create", network)?);
        if let Some(directory) = workspace {
            if read_only || snapshot.is_some() {
                let message = "a copy-on-write workspace is not read-only, and starts from no snapshot";
                return Err(Error::invalid("create", message).with_remedy("leave read_only and snapshot out"));
            }
            spec = self.over(caller, directory, spec)?;
        }
        if snapshot.is_some() && !volumes.is_empty() {
            let message = "a sandbox from a snapshot has no volumes: their files have changed since";
            return Err(Error::invalid("create", message).with_remedy("leave snapshot or volumes out"));
        }
        let volumes = mounted(caller, volumes, &*served.backend)?;
        if let Some(reference) = image {
            self.check_images()?;
            spec = spec.root(RootFs::Image { reference });
        }
        let text: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        if text > MAX_LABELS {
            return Err(Error::invalid("create", format!("the labels of a sandbox have at most {MAX_LABELS} bytes")));
        }
        for (key, value) in labels {
            spec = spec.label(key, value);
        }
        for (key, value) in &served.attributes {
            spec = spec.attribute(key.clone(), value.clone());
        }
        for protection in &self.allow_weaker {
            spec = spec.allow_weaker(*protection);
        }
        let (life, idle) = times(life, idle, bounds)?;
        Ok((
            Arc::clone(&served.backend),
            NewSandbox { spec: spec.build()?, name, life, idle, snapshot: None, parent: None, volumes },
        ))
    }

    /// Shows a directory of this host to a sandbox.
    fn over(&self, caller: &Caller, directory: HostDirectory, spec: SpecBuilder) -> Result<SpecBuilder> {
        if !caller.is_operator {
            return Err(denied("a directory of this host can be named by the server's own user only, on its socket")
                .with_remedy("use a private workspace, and copy files in and out"));
        }
        if !self.workspaces {
            return Err(denied("this server keeps no changes, so it has no copy-on-write workspaces"));
        }
        let HostDirectory { path, id } = directory;
        let spec = id.into_iter().fold(spec, |spec, id| spec.directory(&path, id));
        Ok(spec.workspace(Workspace::CopyOnWrite { path }))
    }

    /// Checks that tenants may choose an image.
    ///
    /// # Errors
    /// - `Denied` if they may not.
    pub fn check_images(&self) -> Result<()> {
        match self.images {
            true => Ok(()),
            false => Err(denied("this server does not let tenants choose an image")
                .with_remedy("the operator can start it with --allow-images")),
        }
    }

    /// Returns the size of a new volume in bytes, `None` for one without a limit.
    ///
    /// # Errors
    /// - `Denied` for a size beyond the server's bound, and for a volume without a limit of another caller than the
    ///   server's own user.
    pub fn volume(&self, caller: &Caller, request: &CreateVolume, bounds: &Bounds) -> Result<Option<u64>> {
        let CreateVolume { name: _, size, unlimited } = request;
        match (size, unlimited) {
            (Some(_), true) => Err(Error::invalid("volume", "a volume without a limit has no size")),
            (None, true) if caller.is_operator => Ok(None),
            (None, true) => Err(denied("a volume without a limit is for the server's own user, on its socket")
                .with_remedy("give the volume a size")),
            (Some(size), false) if *size > bounds.volume => {
                Err(denied(format!("the size of a volume is at most {} on this server", bounds.volume)))
            }
            (size, false) => Ok(Some(size.unwrap_or(DEFAULT_VOLUME).as_bytes())),
        }
    }

    /// Returns the features of a backend that a caller can use.
    pub fn capabilities(&self, served: &ServedBackend, caller: &Caller) -> Capabilities {
        let is_usable = |feature: &Capability| match feature {
            Capability::CopyOnWrite => caller.is_operator && self.workspaces,
            // Directories and files of the host, and what needs them.
            Capability::HostWorkspace
            | Capability::Mounts
            | Capability::CopyOnWriteMounts
            | Capability::DiskMounts
            | Capability::RootDirectory
            | Capability::Warm => false,
            Capability::Image => self.images,
            Capability::NetworkAllowlist => self.network,
            Capability::Snapshot => served.archive.is_some(),
            _ => true,
        };
        served.backend.capabilities().into_iter().filter(is_usable).collect()
    }

    /// Returns the files of a backend's snapshots.
    ///
    /// # Errors
    /// - `Unsupported` if its snapshots cannot be stored, or if it is no longer served.
    pub fn archive(&self, backend: &str) -> Result<&Arc<dyn SnapshotArchive>> {
        self.backends.get(backend).and_then(|served| served.archive.as_ref()).ok_or_else(|| {
            let names = self.backends.iter().filter(|(_, served)| served.archive.is_some());
            let names: Vec<_> = names.map(|(name, _)| name.as_str()).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let message = format!("this server stores no snapshots of the backend '{}'", backend.escape_debug());
            Error::unsupported("snapshot", message)
                .with_remedy(format!("create the sandbox with a backend that has snapshots; this server has: {known}"))
        })
    }

    fn select(&self, name: Option<&str>, level: Option<cofferdam_contract::Level>) -> Result<&ServedBackend> {
        let reaches = |served: &ServedBackend| level.is_none_or(|level| served.backend.level() >= level);
        let missing = |message: String| {
            let names: Vec<_> = self.backends.keys().map(String::as_str).collect();
            Error::new(ErrorKind::NotFound, "create", message)
                .with_remedy(format!("this server has: {}", names.join(", ")))
        };
        match name {
            Some(name) => {
                let served = self
                    .backends
                    .get(name)
                    .ok_or_else(|| missing(format!("this server has no backend '{}'", name.escape_debug())))?;
                if !reaches(served) {
                    return Err(Error::unsupported("create", format!("the backend '{name}' does not reach the level")));
                }
                Ok(served)
            }
            None => {
                let default = self.backends.get(&self.default_backend).filter(|served| reaches(served));
                let lowest = || self.backends.values().filter(|one| reaches(one)).min_by_key(|one| one.backend.level());
                default.or_else(lowest).ok_or_else(|| missing("this server has no backend of this level".to_owned()))
            }
        }
    }

    fn limits(&self, requested: Option<Limits>, bounds: &Bounds) -> Result<Limits> {
        let Some(requested) = requested else { return Ok(self.max_limits.clone()) };
        // A new limit must be capped here.
        let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = requested;
        let max = &self.max_limits;
        if wall_time > bounds.max_life {
            return Err(denied(format!(
                "the limit wall_time is at most {} s on this server",
                bounds.max_life.as_secs()
            )));
        }
        Ok(Limits {
            cpu_time: capped("cpu_time", cpu_time, max.cpu_time, |value| format!("{}s", value.as_secs_f64()))?,
            memory: capped("memory", memory, max.memory, ToString::to_string)?,
            disk: capped("disk", disk, max.disk, ToString::to_string)?,
            wall_time,
            pids: capped("pids", pids, max.pids, ToString::to_string)?,
            processes: capped("processes", processes, max.processes, ToString::to_string)?,
            cpus: capped("cpus", cpus, max.cpus, ToString::to_string)?,
        })
    }

    /// Returns the network policy that a caller asks for.
    ///
    /// # Errors
    /// - `Denied` for what only the operator may allow: a network at all, secrets and addresses.
    pub fn network(&self, operation: &'static str, policy: NetworkPolicy) -> Result<NetworkPolicy> {
        let refused = |message: &str| Error::new(ErrorKind::Denied, operation, message);
        match &policy {
            NetworkPolicy::None => return Ok(policy),
            _ if !self.network => {
                return Err(refused("this server does not let tenants use the network")
                    .with_remedy("the operator can start it with --allow-network"));
            }
            NetworkPolicy::Allow { .. } => {}
            NetworkPolicy::Rules(NetworkRules { allow: _, secrets }) if secrets.is_empty() => {}
            NetworkPolicy::Rules(_) => return Err(refused("secrets of the host are not for tenants")),
            _ => return Err(refused("this server accepts no such network policy")),
        }
        for host in policy.hosts() {
            if is_address(host) {
                return Err(refused("a tenant's network policy names hosts, not addresses")
                    .with_context("host", host.escape_debug().to_string()));
            }
        }
        Ok(policy)
    }

    /// Bounds what an exec may ask of the server.
    ///
    /// # Errors
    /// - `Denied` for a timeout or output beyond the server's bounds.
    pub fn exec(&self, request: ExecRequest, bounds: &Bounds) -> Result<ExecRequest> {
        if request.timeout().is_some_and(|timeout| timeout > bounds.max_life) {
            return Err(denied(format!("the timeout is at most {} s here", bounds.max_life.as_secs())));
        }
        if request.max_output() > bounds.output {
            return Err(denied(format!("the output of an exec is at most {} here", bounds.output)));
        }
        let replay = request.output_buffer().min(bounds.replay);
        request.to_builder().output_buffer(replay).build()
    }
}

/// Returns the mounts of a tenant's volumes.
fn mounted(caller: &Caller, volumes: Vec<MountVolume>, backend: &dyn Backend) -> Result<Vec<VolumeMount>> {
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    if volumes.len() > MAX_MOUNTS {
        return Err(Error::invalid("create", format!("a sandbox may have at most {MAX_MOUNTS} volumes")));
    }
    let capabilities = backend.capabilities();
    if ![Capability::Mounts, Capability::DiskMounts].iter().any(|it| capabilities.contains(it)) {
        let message = format!("the backend '{}' mounts no volumes", backend.name());
        return Err(
            Error::unsupported("create", message).with_remedy("use a backend of level process, container or vm")
        );
    }
    let needs = |volume: &MountVolume| if volume.read_only { Scope::VolumesRead } else { Scope::VolumesWrite };
    if let Some(scope) = volumes.iter().map(needs).find(|scope| !caller.may(*scope)) {
        return Err(denied(format!("the key lacks the scope {scope}")));
    }
    volumes.into_iter().map(MountVolume::into_mount).collect()
}

/// Returns true for an address or a range of addresses, such as `127.0.0.1:80`, `[::1]` or `fd00::/8`, for what resolvers
/// may take as one, and for the name of the host itself.
fn is_address(host: &str) -> bool {
    // A name has no bracket, no slash, and one colon at most, before its port.
    if host.contains(['[', '/']) || host.matches(':').count() > 1 {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.').to_ascii_lowercase();
    if name == "localhost" || name.ends_with(".localhost") {
        return true;
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    // No top-level domain has a digit first.
    last.starts_with(|c: char| c.is_ascii_digit())
}

fn capped<T: PartialOrd>(
    what: &str,
    requested: Option<T>,
    max: Option<T>,
    show: impl Fn(&T) -> String,
) -> Result<Option<T>> {
    match (requested, max) {
        (requested, None) => Ok(requested),
        (Some(requested), Some(max)) if requested <= max => Ok(Some(requested)),
        (_, Some(max)) => Err(denied(format!("the limit {what} is at most {} on this server", show(&max)))),
    }
}

fn bounded(what: &str, requested: Option<Duration>, default: Duration, max: Duration) -> Result<Duration> {
    match requested {
        None => Ok(default.min(max)),
        Some(requested) if requested.is_zero() => {
            Err(Error::invalid("create", format!("{what} must be greater than 0")))
        }
        Some(requested) if requested > max => {
            Err(denied(format!("{what} is at most {} s on this server", max.as_secs())))
        }
        Some(requested) => Ok(requested),
    }
}

/// Returns the lifetime and the idle time of a sandbox.
///
/// # Errors
/// - `InvalidInput` for a time of 0, `Denied` for one beyond the server's bound.
pub fn times(life: Option<Duration>, idle: Option<Duration>, bounds: &Bounds) -> Result<(Duration, Duration)> {
    Ok((
        bounded("the lifetime", life, bounds.default_life, bounds.max_life)?,
        bounded("the idle time", idle, bounds.default_idle, bounds.max_life)?,
    ))
}

/// Checks the times of an extension.
///
/// # Errors
/// - `InvalidInput` for a time of 0, `Denied` for one beyond the server's bound.
pub fn check_time(what: &str, requested: Option<Duration>, bounds: &Bounds) -> Result<Option<Duration>> {
    requested.map(|requested| bounded(what, Some(requested), requested, bounds.max_life)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_no_names() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:443",
            "::1",
            "169.254.169.254:80",
            "10.1",
            "2130706433",
            "0x7f.1",
            "a.0x7f000001",
            "::1/128",
            "fd00::/32",
            "fd00:ec2::254/128",
            "10.0.0.0/8",
            "localhost",
            "LocalHost.:5432",
            "a.localhost:80",
        ] {
            assert!(is_address(host), "{host}");
        }
        for host in ["example.com", "*.example.com:443", "@python", "localhost.example", "a-1.example"] {
            assert!(!is_address(host), "{host}");
        }
    }
}
