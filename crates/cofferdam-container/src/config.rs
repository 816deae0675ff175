//! The configuration of a [`crate::ContainerBackend`]. It does not depend on the environment, and contacts no engine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_contract::{Error, Result};

use crate::reference::{Pattern, Reference};

/// The image of a sandbox whose spec has none.
pub const DEFAULT_IMAGE: &str = "cofferdam/base:latest";

/// The engine to look for without an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineName {
    /// Docker's sockets first, then Podman's.
    #[default]
    Docker,
    /// Podman's sockets only.
    Podman,
}

impl EngineName {
    /// Returns the name in options and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// The action for an image that the engine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullPolicy {
    /// Fail the create, with the way to get the image as remedy.
    #[default]
    Never,
    /// Pull the image from its registry.
    Missing,
}

/// The time limits for answers of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// The limit for accepting a connection and reporting the version.
    pub connect: Duration,
    /// The limit for a query.
    pub call: Duration,
    /// The limit for creating, starting or removing a container.
    pub change: Duration,
    /// The limit for each progress event while pulling or importing an image.
    pub stall: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            call: Duration::from_secs(30),
            change: Duration::from_secs(60),
            stall: Duration::from_secs(120),
        }
    }
}

/// The configuration of a [`crate::ContainerBackend`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerConfig {
    /// The engine to look for if `host` is `None`.
    pub engine: EngineName,
    /// The engine's address: `unix:///path`, an absolute path, or `tcp://host:port` (unencrypted). A socket and the
    /// directories on its path must belong to root or the effective user, and only they may change them. A frontend
    /// passes `DOCKER_HOST` here.
    pub host: Option<String>,
    /// The caller's directory for sockets. A frontend passes `XDG_RUNTIME_DIR` here. A socket in it that is not trusted
    /// is skipped.
    pub runtime_dir: Option<PathBuf>,
    /// The OCI runtime, by the engine's name for it. Default: the engine's own default.
    pub runtime: Option<String>,
    /// The image of a sandbox whose spec has none.
    pub image: String,
    /// The action for a missing image.
    pub pull: PullPolicy,
    /// The images that a spec may use in addition to the default: `name` (any tag), `name:tag`, `name@sha256:…`, or a
    /// prefix of a name and `*`. `None` allows every image.
    pub images: Option<Vec<String>>,
    /// The time limits for answers of the engine.
    pub deadlines: Deadlines,
}

impl Default for ContainerConfig {
    fn default() -> Self {
        Self {
            engine: EngineName::Docker,
            host: None,
            runtime_dir: None,
            runtime: None,
            image: DEFAULT_IMAGE.to_owned(),
            pull: PullPolicy::Never,
            images: None,
            deadlines: Deadlines::default(),
        }
    }
}

/// The address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// A validated configuration.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub addresses: Vec<Address>,
    pub runtime: Option<String>,
    pub image: Reference,
    pub pull: PullPolicy,
    pub images: Option<Vec<Pattern>>,
    pub deadlines: Deadlines,
}

impl ContainerConfig {
    /// Validates the configuration, without contacting an engine.
    pub(crate) fn check(&self) -> Result<Checked> {
        let Self { engine, host, runtime_dir, runtime, image, pull, images, deadlines } = self;
        let addresses = match host {
            Some(host) => vec![parse_host(host)?],
            None => sockets(*engine, runtime_dir.as_deref()),
        };
        if let Some(runtime) = runtime
            && !is_runtime_name(runtime)
        {
            return Err(Error::invalid("configure", "invalid name of an OCI runtime")
                .with_context("runtime", runtime.escape_debug().to_string())
                .with_remedy("use a runtime of the engine, such as runc or runsc: `cofferdam doctor` lists them"));
        }
        let patterns = images.as_ref().map(|all| all.iter().map(|text| Pattern::parse(text)).collect());
        Ok(Checked {
            addresses,
            runtime: runtime.clone(),
            image: Reference::parse(image)?,
            pull: *pull,
            images: patterns.transpose()?,
            deadlines: *deadlines,
        })
    }
}

/// Returns true for a runtime name such as `runc`, `io.containerd.runsc.v1` or `kata-fc`. A path to a program is
/// invalid, because the engine's owner decides which programs create containers.
fn is_runtime_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte))
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

fn sockets(engine: EngineName, runtime_dir: Option<&Path>) -> Vec<Address> {
    let own = |name: &str| runtime_dir.map(|directory| directory.join(name));
    let docker = [Some(PathBuf::from("/var/run/docker.sock")), own("docker.sock")];
    let podman = [own("podman/podman.sock"), Some(PathBuf::from("/run/podman/podman.sock"))];
    let all: Vec<Option<PathBuf>> = match engine {
        EngineName::Docker => docker.into_iter().chain(podman).collect(),
        EngineName::Podman => podman.into(),
    };
    all.into_iter().flatten().map(Address::Unix).collect()
}

fn parse_host(text: &str) -> Result<Address> {
    let bad = |remedy: &str| {
        Error::invalid("configure", "invalid address of a container engine")
            .with_context("host", text.escape_debug().to_string())
            .with_remedy(remedy.to_owned())
    };
    if text.contains(|c: char| c.is_control()) {
        return Err(bad("use unix:///path/to/docker.sock or tcp://host:port"));
    }
    if let Some(path) = text.strip_prefix("unix://").or_else(|| text.starts_with('/').then_some(text)) {
        let path = PathBuf::from(path);
        return if path.is_absolute() {
            Ok(Address::Unix(path))
        } else {
            Err(bad("use an absolute path of a socket: unix:///path/to/docker.sock"))
        };
    }
    if let Some(address) = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("http://")) {
        let address = address.trim_end_matches('/');
        let port = address.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>().is_ok()));
        return match port {
            Some((true, true)) if !address.contains(['/', '@', '?', '#', ' ']) => Ok(Address::Tcp(address.to_owned())),
            _ => Err(bad("use tcp://host:port")),
        };
    }
    Err(bad(
        "use unix:// or tcp://; for TLS or ssh, forward the remote socket with `ssh -L local.sock:/var/run/docker.sock \
                     host` and use the local one",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(config: ContainerConfig) -> Vec<String> {
        config.check().unwrap().addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_address_that_is_given_is_the_only_one() {
        for (host, address) in [
            ("unix:///x/d.sock", "unix:///x/d.sock"),
            ("/x/d.sock", "unix:///x/d.sock"),
            ("tcp://localhost:2375", "tcp://localhost:2375"),
            ("tcp://[::1]:2375/", "tcp://[::1]:2375"),
        ] {
            let config = ContainerConfig { host: Some(host.to_owned()), ..ContainerConfig::default() };
            assert_eq!(addresses(config), [address]);
        }
    }

    #[test]
    fn engine_sockets_are_tried_in_order() {
        let config = ContainerConfig { runtime_dir: Some("/run/user/7".into()), ..ContainerConfig::default() };
        let docker = ["unix:///var/run/docker.sock", "unix:///run/user/7/docker.sock"];
        let podman = ["unix:///run/user/7/podman/podman.sock", "unix:///run/podman/podman.sock"];
        assert_eq!(addresses(config.clone()), [docker, podman].concat());
        assert_eq!(addresses(ContainerConfig { engine: EngineName::Podman, ..config }), podman);
    }

    #[test]
    fn bad_settings_are_refused() {
        let host = |text: &str| ContainerConfig { host: Some(text.to_owned()), ..ContainerConfig::default() };
        let runtime = |text: &str| ContainerConfig { runtime: Some(text.to_owned()), ..ContainerConfig::default() };
        let hosts =
            ["", "x", "unix://relative", "ssh://host", "https://h:1", "tcp://h", "tcp://:1", "tcp://h:1/x", "/a\nb"];
        let bad = hosts.map(host).into_iter().chain(["", "/usr/bin/evil", "-x", "a b", "../x"].map(runtime));
        for config in bad {
            let error = config.check().unwrap_err();
            assert!(error.remedy().is_some(), "{config:?}");
        }
    }
}
