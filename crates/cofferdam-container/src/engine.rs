//! The connection to an engine: discovery, version and features, and deadlines.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::text::excerpt;
use tokio::time::timeout;

use crate::config::{Address, Checked, Deadlines};
use crate::error::{self, Failed, Unreachable};

/// The minimum version of the API: Docker 19.03.
const MIN_API: (usize, usize) = (1, 40);
/// The version of the API that added control group namespaces.
const CGROUP_NAMESPACES: (usize, usize) = (1, 41);
/// The timeout of bollard in seconds. It must be longer than the deadlines of all calls.
const BOLLARD_TIMEOUT_SECONDS: u64 = 24 * 3600;

/// The properties of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    pub podman: bool,
    pub version: String,
    pub api: (usize, usize),
    /// The architecture, such as `amd64`.
    pub architecture: String,
    pub kernel: String,
    pub storage_driver: String,
    pub cgroup_version: String,
    /// The names of the runtimes, sorted.
    pub runtimes: Vec<String>,
    pub default_runtime: String,
    pub swap_limit: bool,
    pub pids_limit: bool,
    /// True if the engine is not root on its host.
    pub rootless: bool,
    /// True if the engine remaps the ids of all containers.
    pub remapped: bool,
    /// True if the engine has a system call filter for containers.
    pub seccomp: bool,
    /// True if the engine's address is a local socket, so that it shares a file system with this process.
    pub local: bool,
}

impl Facts {
    pub(crate) fn name(&self) -> &'static str {
        if self.podman { "podman" } else { "docker" }
    }

    /// Returns true if a container's memory limit does not include swap. Only version 1 can count memory alone.
    pub(crate) fn has_uncounted_swap(&self) -> bool {
        self.cgroup_version == "1" && !self.swap_limit
    }

    /// Returns true if containers can have their own control group namespace. Podman has none on cgroup v1.
    pub(crate) fn has_cgroup_namespaces(&self) -> bool {
        self.api >= CGROUP_NAMESPACES && !(self.podman && self.cgroup_version == "1")
    }

    /// Returns true if containers of this runtime, by default the engine's own, run on a kernel that is not the
    /// engine's.
    pub(crate) fn has_own_kernel(&self, runtime: Option<&str>) -> bool {
        let runtime = runtime.unwrap_or(&self.default_runtime);
        ["runsc", "gvisor", "kata"].iter().any(|name| runtime.contains(name))
    }

    /// Returns true if the engine's kernel has at least this version. Returns false for an unknown version.
    pub(crate) fn kernel_is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.kernel.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
    }

    /// Returns true if a container's limits can be changed. Podman's Docker API has this since version 5.
    pub(crate) fn can_update(&self) -> bool {
        let major: Option<u32> = self.version.split('.').next().and_then(|major| major.parse().ok());
        !self.podman || major.is_some_and(|major| major >= 5)
    }
}

/// An engine that answered.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub docker: Docker,
    pub address: Address,
    pub facts: Arc<Facts>,
    pub deadlines: Deadlines,
}

impl Engine {
    /// Connects to the first trusted address that accepts a connection.
    pub(crate) async fn connect(config: &Checked) -> Result<Self> {
        let mut tried = Vec::new();
        for address in &config.addresses {
            match reach(address, config.deadlines.connect).await {
                Ok(()) => return Self::greet(address.clone(), config.deadlines).await,
                Err(error) => tried.push((address, error)),
            }
        }
        Err(no_engine(&tried))
    }

    async fn greet(address: Address, deadlines: Deadlines) -> Result<Self> {
        let limit = deadlines.connect;
        let docker = open(&address).map_err(|answer| failure(&address, "connect", Failed::Answered(answer)))?;
        // Concurrently, because the engine runs other programs for both.
        let (version, info) = tokio::join!(within(limit, docker.version()), within(limit, docker.info()));
        let version = version.map_err(|failed| failure(&address, "read the engine's version", failed))?;
        let api = version.api_version.as_deref().and_then(parse_api).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "connect", "the server at this address is not a container engine")
                .with_retry(Retry::Never)
                .with_context("engine", address.to_string())
                .with_remedy("set DOCKER_HOST to the socket of Docker or Podman")
        })?;
        if api < MIN_API {
            let what =
                format!("the container engine has API version {}.{}, but 1.40 or newer is required", api.0, api.1);
            return Err(Error::new(ErrorKind::Unavailable, "connect", what)
                .with_retry(Retry::Never)
                .with_context("engine", address.to_string())
                .with_remedy("install Docker 19.03 or newer, or Podman 4 or newer"));
        }
        let info = info.map_err(|failed| failure(&address, "read the engine's features", failed))?;
        let mut runtimes: Vec<String> = info.runtimes.into_iter().flatten().map(|(name, _)| name).collect();
        runtimes.sort();
        let options = info.security_options.unwrap_or_default();
        let option = |name: &str| {
            options
                .iter()
                .any(|text| text.split(',').any(|part| part == name || part.strip_prefix("name=") == Some(name)))
        };
        let components = version.components.unwrap_or_default();
        let facts = Facts {
            podman: components.iter().any(|component| component.name.to_ascii_lowercase().contains("podman")),
            version: excerpt(&version.version.unwrap_or_default()),
            api,
            architecture: version.arch.unwrap_or_default(),
            kernel: excerpt(&version.kernel_version.unwrap_or_default()),
            storage_driver: excerpt(&info.driver.unwrap_or_default()),
            cgroup_version: info.cgroup_version.map(|version| version.to_string()).unwrap_or_default(),
            runtimes,
            default_runtime: info.default_runtime.unwrap_or_default(),
            swap_limit: info.swap_limit.unwrap_or(false),
            pids_limit: info.pids_limit.unwrap_or(false),
            rootless: option("rootless"),
            remapped: option("userns"),
            seccomp: option("seccomp"),
            local: matches!(address, Address::Unix(_)),
        };
        Ok(Self { docker, address, facts: Arc::new(facts), deadlines })
    }

    /// Runs a query with the deadline [`Deadlines::call`].
    pub(crate) async fn ask<T>(&self, work: impl Future<Output = Answered<T>>) -> Result<T, Failed> {
        within(self.deadlines.call, work).await
    }

    /// Runs a change with the deadline [`Deadlines::change`].
    pub(crate) async fn change<T>(&self, work: impl Future<Output = Answered<T>>) -> Result<T, Failed> {
        within(self.deadlines.change, work).await
    }

    /// Converts a failed call to an error. `doing` completes "cannot …".
    pub(crate) fn error(&self, operation: &'static str, doing: &str, failed: Failed) -> Error {
        failed.into_error(operation, doing, &self.address)
    }

    /// Fails if the engine would not use this runtime. The error lists its runtimes.
    pub(crate) fn check_runtime(&self, runtime: Option<&str>) -> Result<()> {
        check_runtime(&self.facts, runtime)
    }
}

fn check_runtime(facts: &Facts, runtime: Option<&str>) -> Result<()> {
    let Some(name) = runtime else { return Ok(()) };
    if !facts.podman {
        return if facts.runtimes.iter().any(|known| known == name) {
            Ok(())
        } else {
            Err(unknown_runtime(name, facts))
        };
    }
    // Podman ignores the runtime in a request of Docker's API, and uses its own, which it names or gives the path of.
    if facts.default_runtime.rsplit('/').next() == Some(name) {
        return Ok(());
    }
    let what = format!("Podman uses its default OCI runtime, not '{name}': a client cannot choose it");
    Err(Error::unsupported("create", what)
        .with_context("runtime", excerpt(&facts.default_runtime))
        .with_remedy("start the service with `podman --runtime NAME system service`, or use Docker"))
}

/// Creates the error for a runtime that the engine does not have.
pub(crate) fn unknown_runtime(name: &str, facts: &Facts) -> Error {
    Error::new(ErrorKind::Unavailable, "create", format!("the container engine has no OCI runtime '{name}'"))
        .with_retry(Retry::Never)
        .with_context("runtimes", facts.runtimes.join(", "))
        .with_remedy("use one of those, or add it to the engine's configuration (/etc/docker/daemon.json, `runtimes`)")
}

pub(crate) type Answered<T> = Result<T, bollard::errors::Error>;

pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = Answered<T>>) -> Result<T, Failed> {
    match timeout(limit, work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(answer)) => Err(Failed::Answered(answer)),
        Err(_) => Err(Failed::Silent(limit)),
    }
}

fn failure(address: &Address, doing: &str, failed: Failed) -> Error {
    failed.into_error("connect", doing, address)
}

fn open(address: &Address) -> Answered<Docker> {
    match address {
        Address::Unix(path) => {
            Docker::connect_with_unix(&path.to_string_lossy(), BOLLARD_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
        }
        Address::Tcp(authority) => {
            Docker::connect_with_http(&format!("http://{authority}"), BOLLARD_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
        }
    }
}

/// Tries to connect, unless a user other than root and the caller could replace the socket. A program of that user
/// would get the code and files of sandboxes. The error distinguishes a missing socket from one without permission.
async fn reach(address: &Address, limit: Duration) -> Result<(), Unreachable> {
    if let Address::Unix(path) = address {
        // The path stays as it is checked, because no other user can change a directory or link on it.
        trust::check(path, Secrecy::Public)?;
    }
    let connecting = async {
        match address {
            Address::Unix(path) => tokio::net::UnixStream::connect(path).await.map(drop),
            Address::Tcp(authority) => tokio::net::TcpStream::connect(authority).await.map(drop),
        }
    };
    timeout(limit, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(Unreachable::Io)
}

/// Creates the error for no reachable engine. Its remedy is that of the address closest to success.
fn no_engine(tried: &[(&Address, Unreachable)]) -> Error {
    let rank = |reason: &Unreachable| match reason {
        Unreachable::Io(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Unreachable::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => 1,
        Unreachable::Io(_) | Unreachable::Untrusted(_) => 2,
    };
    let reasons: Vec<(String, &str)> =
        tried.iter().map(|(address, reason)| error::unreachable(address, reason)).collect();
    let best = tried.iter().enumerate().max_by_key(|(index, (_, reason))| (rank(reason), usize::MAX - index));
    let remedy = best.map_or("set DOCKER_HOST to its address", |(index, _)| reasons[index].1);
    let what: Vec<&str> = reasons.iter().map(|(what, _)| what.as_str()).collect();
    Error::new(ErrorKind::Unavailable, "connect", format!("no container engine can be reached: {}", what.join("; ")))
        .with_remedy(remedy)
}

fn parse_api(text: &str) -> Option<(usize, usize)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_that_of_the_address_closest_to_an_engine() {
        let (one, two) = (Address::Unix("/a".into()), Address::Unix("/b".into()));
        let failed = |kind: io::ErrorKind| Unreachable::Io(kind.into());
        let error =
            no_engine(&[(&one, failed(io::ErrorKind::NotFound)), (&two, failed(io::ErrorKind::PermissionDenied))]);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("group `docker`")), "{error:?}");
        assert!(error.message().contains("/a") && error.message().contains("/b"), "{error}");
        assert!(no_engine(&[]).remedy().is_some());
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(parse_api("1.41"), Some((1, 41)));
        for text in ["", "1", "1.x", "a.b"] {
            assert_eq!(parse_api(text), None, "{text}");
        }
    }

    #[test]
    fn podman_is_not_asked_for_another_runtime_than_its_own() {
        let facts = |podman, default: &str| Facts {
            podman,
            default_runtime: default.to_owned(),
            runtimes: vec!["crun".to_owned(), "runsc".to_owned()],
            ..Facts::default()
        };
        let kind = |facts: &Facts, name: &str| check_runtime(facts, Some(name)).err().map(|error| error.kind());
        for default in ["crun", "/usr/bin/crun"] {
            assert_eq!(kind(&facts(true, default), "crun"), None);
            assert_eq!(kind(&facts(true, default), "runsc"), Some(ErrorKind::Unsupported));
            assert!(check_runtime(&facts(true, default), None).is_ok());
        }
        assert_eq!(kind(&facts(true, ""), "crun"), Some(ErrorKind::Unsupported));
        assert_eq!(kind(&facts(false, "runc"), "runsc"), None);
        assert_eq!(kind(&facts(false, "runc"), "kata"), Some(ErrorKind::Unavailable));
    }

    #[test]
    fn old_podman_cannot_change_limits() {
        let facts = |podman, version: &str| Facts { podman, version: version.to_owned(), ..Facts::default() };
        assert!(facts(false, "20.10").can_update() && facts(true, "5.0.1").can_update());
        assert!(!facts(true, "4.3.1").can_update() && !facts(true, "").can_update());
    }
}
