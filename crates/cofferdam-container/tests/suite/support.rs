//! The engines of the tests, and inspection of their containers and volumes.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder};
use cofferdam_container::{ContainerBackend, ContainerConfig};
use cofferdam_contract::{Protection, Spec, SpecBuilder};

/// An engine to test with.
#[derive(Debug, Clone)]
pub(crate) struct TestEngine {
    pub name: &'static str,
    pub socket: PathBuf,
    pub runtime: Option<&'static str>,
}

impl TestEngine {
    pub(crate) fn config(&self) -> ContainerConfig {
        ContainerConfig {
            host: Some(format!("unix://{}", self.socket.display())),
            runtime: self.runtime.map(str::to_owned),
            image: image(),
            ..ContainerConfig::default()
        }
    }

    pub(crate) fn backend(&self) -> ContainerBackend {
        ContainerBackend::new(&self.config()).expect("the configuration is valid")
    }

    /// Returns a client of the engine that is independent of the backend under test.
    pub(crate) fn client(&self) -> Docker {
        let path = self.socket.to_string_lossy();
        Docker::connect_with_unix(&path, 120, bollard::API_DEFAULT_VERSION).expect("the socket exists")
    }

    pub(crate) async fn negotiated(&self) -> Docker {
        self.client().negotiate_version().await.expect("the engine answers")
    }

    /// Returns the number of containers with a label.
    pub(crate) async fn census_of(&self, label: &str) -> usize {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = self.negotiated().await.list_containers(Some(options)).await;
        listed.map_or(usize::MAX, |containers| containers.len())
    }

    /// Returns all containers, and all volumes except those of agents, which stay.
    pub(crate) async fn census(&self) -> BTreeSet<String> {
        let docker = self.negotiated().await;
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let begun = std::time::Instant::now();
        let containers = loop {
            match docker.list_containers(Some(options.clone())).await {
                Ok(containers) => break containers,
                // Podman briefly has a state that the API does not define.
                Err(error) => assert!(begun.elapsed().as_secs() < 20, "containers are listed: {error}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        };
        let containers = containers
            .into_iter()
            .map(|container| format!("container {} {:?}", container.id.unwrap_or_default(), container.names));
        let volumes = docker.list_volumes(Some(ListVolumesOptionsBuilder::default().build())).await;
        let volumes = volumes.expect("volumes are listed").volumes.unwrap_or_default();
        let volumes = volumes.into_iter().filter(|volume| !volume.name.starts_with("cofferdam-agent-"));
        containers.chain(volumes.map(|volume| format!("volume {}", volume.name))).collect()
    }
}

/// Returns the objects that were not there before and stay for a while. Those of concurrent tests disappear.
pub(crate) async fn left(engine: &TestEngine, before: &BTreeSet<String>) -> BTreeSet<String> {
    let begun = std::time::Instant::now();
    let mut left: Option<BTreeSet<String>> = None;
    loop {
        let now: BTreeSet<String> = engine.census().await.difference(before).cloned().collect();
        let still = left.map_or_else(|| now.clone(), |left| left.intersection(&now).cloned().collect());
        if still.is_empty() || begun.elapsed() > MAX_LIFE {
            return still;
        }
        left = Some(still);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// The maximum lifetime of a sandbox of a test.
const MAX_LIFE: std::time::Duration = std::time::Duration::from_secs(120);

/// Returns the image of the tests' sandboxes.
pub(crate) fn image() -> String {
    std::env::var("COFFERDAM_TEST_IMAGE").unwrap_or_else(|_| cofferdam_container::DEFAULT_IMAGE.to_owned())
}

fn named(test: &str, name: &'static str, variable: &str, runtime: Option<&'static str>) -> Option<TestEngine> {
    match std::env::var_os(variable) {
        Some(socket) => Some(TestEngine { name, socket: socket.into(), runtime }),
        None => {
            println!("SKIP {test}: no {name} available ({variable} is not set)");
            None
        }
    }
}

/// Returns Docker with its default runtime.
pub(crate) fn docker(test: &str) -> Option<TestEngine> {
    named(test, "docker", "COFFERDAM_TEST_DOCKER", None)
}

/// Returns Podman.
pub(crate) fn podman(test: &str) -> Option<TestEngine> {
    named(test, "podman", "COFFERDAM_TEST_PODMAN", None)
}

/// Returns Docker with gVisor, if it has it.
pub(crate) async fn runsc(test: &str) -> Option<TestEngine> {
    let engine = named(test, "docker:runsc", "COFFERDAM_TEST_DOCKER", Some("runsc"))?;
    let runtimes = engine.client().info().await.ok()?.runtimes.unwrap_or_default();
    if runtimes.contains_key("runsc") {
        return Some(engine);
    }
    println!("SKIP {test}: this Docker has no runtime runsc");
    None
}

/// Returns a builder of a spec that this user can get. On cgroup v1 only root can limit the socket buffers of a
/// container, so other users accept weaker memory limits.
pub(crate) fn spec() -> SpecBuilder {
    let spec = Spec::builder();
    if weaker_memory() { spec.allow_weaker(Protection::Memory) } else { spec }
}

/// Returns true if this user's containers have no limit of socket buffers.
pub(crate) fn weaker_memory() -> bool {
    !rustix::process::geteuid().is_root() && Path::new("/sys/fs/cgroup/memory").is_dir()
}

/// Returns all available engines with their default runtimes.
pub(crate) fn engines(test: &str) -> Vec<TestEngine> {
    [docker(test), podman(test)].into_iter().flatten().collect()
}

/// Returns a registry that the engines can reach, as `host:port`.
pub(crate) fn registry(test: &str) -> Option<String> {
    let registry = std::env::var("COFFERDAM_TEST_REGISTRY").ok();
    if registry.is_none() {
        println!("SKIP {test}: no registry available (COFFERDAM_TEST_REGISTRY is not set)");
    }
    registry
}

/// Creates a backend for a socket.
pub(crate) fn backend_at(socket: &Path, change: impl FnOnce(&mut ContainerConfig)) -> ContainerBackend {
    let mut config =
        ContainerConfig { host: Some(format!("unix://{}", socket.display())), ..ContainerConfig::default() };
    change(&mut config);
    ContainerBackend::new(&config).expect("the configuration is valid")
}

/// Returns the labels of a container of a process.
pub(crate) fn labels(name: &str, host: &str, process: u32, start: u64) -> HashMap<String, String> {
    let label = |key: &str, value: String| (format!("dev.cofferdam.{key}"), value);
    HashMap::from([
        label("sandbox", name.to_owned()),
        label("owner.host", host.to_owned()),
        label("owner.process", process.to_string()),
        label("owner.start", start.to_string()),
    ])
}

pub(crate) fn unique(prefix: &str) -> String {
    format!("{prefix}-{:016x}", fastrand::u64(..))
}
