//! How a [`crate::DockerBackend`] is set up. Nothing here is read from the environment, and nothing is contacted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_contract::{Error, Result};

use crate::reference::{Pattern, Reference};

/// The image that a sandbox has where its spec names none.
pub const DEFAULT_IMAGE: &str = "cofferdam/base:latest";

/// Which engine is looked for where no address is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineName {
    /// Docker's sockets first, then Podman's.
    #[default]
    Docker,
    /// Podman's sockets only.
    Podman,
}

impl EngineName {
    /// The word used in options and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

/// What is done about an image that the engine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullPolicy {
    /// The create fails, and says how to get it.
    #[default]
    Never,
    /// It is pulled from its registry.
    Missing,
}

/// How long the engine has for its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// To accept a connection and say which version it is.
    pub connect: Duration,
    /// To answer a question.
    pub call: Duration,
    /// To create, start or remove a container.
    pub change: Duration,
    /// To say anything at all while it pulls or takes in an image.
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

/// How a [`crate::DockerBackend`] is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerConfig {
    /// Which engine is looked for where `host` is not given.
    pub engine: EngineName,
    /// The engine's address: `unix:///path`, an absolute path, or `tcp://host:port` (unencrypted). A face passes
    /// `DOCKER_HOST` here.
    pub host: Option<String>,
    /// The caller's directory for sockets. A face passes `XDG_RUNTIME_DIR` here.
    pub runtime_dir: Option<PathBuf>,
    /// The OCI runtime, by the engine's name for it. Default: the engine's own default.
    pub runtime: Option<String>,
    /// The image that a sandbox has where its spec names none.
    pub image: String,
    /// What is done about an image that is missing.
    pub pull: PullPolicy,
    /// The images that a spec may name, besides the default: `name` (any tag), `name:tag`, `name@sha256:…`, or the
    /// beginning of a name and `*`. `None` allows every image.
    pub images: Option<Vec<String>>,
    /// How long the engine has for its answers.
    pub deadlines: Deadlines,
}

impl Default for DockerConfig {
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

/// Where an engine listens.
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
            Self::Tcp(place) => write!(f, "tcp://{place}"),
        }
    }
}

/// A configuration that was looked through.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub addresses: Vec<Address>,
    pub runtime: Option<String>,
    pub image: Reference,
    pub pull: PullPolicy,
    pub images: Option<Vec<Pattern>>,
    pub deadlines: Deadlines,
}

impl DockerConfig {
    /// Looks it through, without contacting anybody.
    pub(crate) fn check(&self) -> Result<Checked> {
        let Self { engine, host, runtime_dir, runtime, image, pull, images, deadlines } = self;
        let addresses = match host {
            Some(host) => vec![parse_host(host)?],
            None => sockets(*engine, runtime_dir.as_deref()),
        };
        if let Some(runtime) = runtime
            && !is_runtime_name(runtime)
        {
            return Err(Error::invalid("configure", "this is no name of an OCI runtime")
                .with_context("runtime", runtime.escape_debug().to_string())
                .with_remedy("name one that the engine has, such as runc or runsc: `cofferdam doctor` lists them"));
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

/// Names that engines take: `runc`, `io.containerd.runsc.v1`, `kata-fc`. A path to a program is none: which programs
/// make containers is for the engine's owner to say.
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
        Error::invalid("configure", "this is no address of a container engine")
            .with_context("host", text.escape_debug().to_string())
            .with_remedy(remedy.to_owned())
    };
    if text.contains(|c: char| c.is_control()) {
        return Err(bad("write unix:///path/to/docker.sock or tcp://host:port"));
    }
    if let Some(path) = text.strip_prefix("unix://").or_else(|| text.starts_with('/').then_some(text)) {
        let path = PathBuf::from(path);
        return if path.is_absolute() {
            Ok(Address::Unix(path))
        } else {
            Err(bad("a socket's path must be absolute: unix:///path/to/docker.sock"))
        };
    }
    if let Some(place) = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("http://")) {
        let place = place.trim_end_matches('/');
        let port = place.rsplit_once(':').map(|(host, port)| (!host.is_empty(), port.parse::<u16>().is_ok()));
        return match port {
            Some((true, true)) if !place.contains(['/', '@', '?', '#', ' ']) => Ok(Address::Tcp(place.to_owned())),
            _ => Err(bad("write tcp://host:port")),
        };
    }
    Err(bad(
        "only unix:// and tcp:// are spoken here; forward a remote socket with `ssh -L local.sock:/var/run/docker.sock \
             host` and name the local one, for what needs TLS or ssh",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(config: DockerConfig) -> Vec<String> {
        config.check().unwrap().addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_address_that_is_given_is_the_only_one() {
        for (given, address) in [
            ("unix:///x/d.sock", "unix:///x/d.sock"),
            ("/x/d.sock", "unix:///x/d.sock"),
            ("tcp://localhost:2375", "tcp://localhost:2375"),
            ("tcp://[::1]:2375/", "tcp://[::1]:2375"),
        ] {
            let config = DockerConfig { host: Some(given.to_owned()), ..DockerConfig::default() };
            assert_eq!(addresses(config), [address]);
        }
    }

    #[test]
    fn sockets_are_looked_for_in_order() {
        let config = DockerConfig { runtime_dir: Some("/run/user/7".into()), ..DockerConfig::default() };
        let docker = ["unix:///var/run/docker.sock", "unix:///run/user/7/docker.sock"];
        let podman = ["unix:///run/user/7/podman/podman.sock", "unix:///run/podman/podman.sock"];
        assert_eq!(addresses(config.clone()), [docker, podman].concat());
        assert_eq!(addresses(DockerConfig { engine: EngineName::Podman, ..config }), podman);
    }

    #[test]
    fn bad_settings_are_refused() {
        let host = |text: &str| DockerConfig { host: Some(text.to_owned()), ..DockerConfig::default() };
        let runtime = |text: &str| DockerConfig { runtime: Some(text.to_owned()), ..DockerConfig::default() };
        let hosts =
            ["", "x", "unix://relative", "ssh://host", "https://h:1", "tcp://h", "tcp://:1", "tcp://h:1/x", "/a\nb"];
        let bad = hosts.map(host).into_iter().chain(["", "/usr/bin/evil", "-x", "a b", "../x"].map(runtime));
        for config in bad {
            let error = config.check().unwrap_err();
            assert!(error.remedy().is_some(), "{config:?}");
        }
    }
}
