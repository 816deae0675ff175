//! Connection to a server, and creation of its sandboxes.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Access, Backend, Capabilities, Capability, Error, ErrorKind, Level, NetworkPolicy, PreparedSandbox, Result, RootFs,
    Sandbox, Snapshot, Spec, SpecParts, Workspace, unsupported_mount,
};
use hyper::Method;

use super::NAME;
use super::config::RemoteConfig;
use super::sandbox::{RemoteSandbox, RemoteSnapshot};
use crate::client::{Client, Credentials, detached};
use crate::rest::views::{BackendList, BackendView, CreateSandbox, SandboxDetails, Version};

/// The version of the API that this client speaks.
const API: &str = "v1";
/// The most characters of a server's versions that are shown.
const MAX_SHOWN: usize = 64;
/// The features of a server's backend that can be used through the API.
const USABLE: [Capability; 12] = [
    Capability::MultipleExecs,
    Capability::StreamingStdin,
    Capability::Terminal,
    Capability::Files,
    Capability::Image,
    Capability::Snapshot,
    Capability::Fork,
    Capability::Pause,
    Capability::NetworkAllowlist,
    Capability::Connect,
    Capability::Watch,
    Capability::UnixPrograms,
];

/// A backend whose sandboxes are on a server.
#[derive(Debug)]
pub struct RemoteBackend {
    client: Client,
    backend: String,
    level: Level,
    capabilities: Capabilities,
}

impl RemoteBackend {
    /// Connects to a server and asks for its backends.
    ///
    /// # Errors
    /// - `Unavailable` if the server does not answer.
    /// - `Denied` for an invalid key.
    /// - `Unsupported` for a server of another version of the API, `NotFound` for a backend that it does not have.
    pub async fn connect(config: &RemoteConfig) -> Result<Self> {
        let RemoteConfig { server, key, ca, certificate, trace, backend: _ } = config;
        let credentials = Credentials { key: key.as_deref(), ca: ca.as_deref(), certificate: certificate.as_ref() };
        let client = Client::with(server, &credentials)?;
        let client = match trace {
            Some(parent) => client.traced(parent),
            None => client,
        };
        negotiate(&client).await?;
        let list: BackendList = client.call(Method::GET, "/v1/backends", None::<&()>).await?;
        let names: Vec<String> = list.backends.iter().map(|one| one.name.clone()).collect();
        let is_chosen = |one: &BackendView| match &config.backend {
            Some(name) => one.name == *name,
            None => one.default,
        };
        let Some(BackendView { name, level, capabilities, .. }) = list.backends.into_iter().find(is_chosen) else {
            let wanted = config.backend.as_deref().unwrap_or("default").escape_debug().to_string();
            return Err(Error::new(ErrorKind::NotFound, "connect", format!("the server has no backend '{wanted}'"))
                .with_remedy(format!("the server has: {}", names.join(", "))));
        };
        let capabilities = capabilities.into_iter().filter(|one| USABLE.contains(one)).collect();
        Ok(Self { client, backend: name, level, capabilities })
    }

    /// Creates a sandbox in a task of its own: one whose caller gave up is deleted.
    async fn create_from(&self, spec: Spec, snapshot: Option<String>) -> Result<Arc<dyn Sandbox>> {
        let request =
            CreateSandbox { snapshot, backend: Some(self.backend.clone()), ..request(&spec, &self.capabilities)? };
        let client = self.client.clone();
        let sandbox = detached("create", async move {
            let details: SandboxDetails = client.call(Method::POST, "/v1/sandboxes", Some(&request)).await?;
            Ok(RemoteSandbox::new(client, spec, details))
        });
        let sandbox = sandbox.await?;
        if let Err(error) = sandbox.posture().require(sandbox.spec().allow_weaker()) {
            return Err(error.with_failed_close(sandbox.close().await));
        }
        Ok(Arc::new(sandbox))
    }
}

#[async_trait]
impl Backend for RemoteBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        self.level
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.create_from(spec, None).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        if !self.capabilities.contains(&Capability::Snapshot) {
            return Err(Error::unsupported("restore", "the server's backend has no snapshots"));
        }
        let remote: Option<&RemoteSnapshot> = snapshot.payload().filter(|_| snapshot.backend() == NAME);
        let remote =
            remote.ok_or_else(|| Error::invalid("restore", "the snapshot is not one of the remote backend"))?;
        spec.check_tenant(Some(&remote.tenant))?;
        self.create_from(spec, Some(remote.id.clone())).await
    }

    async fn prepare(&self, _spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Err(Error::unsupported("warm", "a server prepares its sandboxes itself"))
    }
}

/// Checks that a server speaks this client's version of the API.
async fn negotiate(client: &Client) -> Result<()> {
    let version: Version = match client.call(Method::GET, "/v1/version", None::<&()>).await {
        // A server that no longer has this version of the API.
        Err(error) if error.kind() == ErrorKind::NotFound => Version { version: "unknown".to_owned(), api: Vec::new() },
        answer => answer?,
    };
    if version.api.iter().any(|api| api == API) {
        return Ok(());
    }
    // The server may be any program.
    let shown = |text: &str| text.chars().take(MAX_SHOWN).collect::<String>().escape_debug().to_string();
    let spoken = match version.api.is_empty() {
        true => "another API".to_owned(),
        false => format!("API {}", shown(&version.api.join(", "))),
    };
    let (server, own) = (shown(&version.version), env!("CARGO_PKG_VERSION"));
    let message =
        format!("the server (version {server}) speaks {spoken}, this client (version {own}) speaks API {API}");
    Err(Error::unsupported("connect", message).with_remedy("use a client and a server of one release"))
}

/// Returns the request for a sandbox, or refuses a spec that no server can satisfy. Destructures the spec: a new field
/// must be handled here.
fn request(spec: &Spec, capabilities: &Capabilities) -> Result<CreateSandbox> {
    spec.validate()?;
    let lacks = |feature, what: &str| {
        let missing = !capabilities.contains(&feature);
        missing.then(|| Error::unsupported("create", format!("this server gives its clients no {what}")))
    };
    let SpecParts { workspace, root, mounts, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // The server knows the tenant by the key; the posture is checked against `allow_weaker`; no directory of this host
    // is used.
    let (_, _, _) = (tenant, allow_weaker, directories);
    if let Some(mount) = mounts.first() {
        return Err(unsupported_mount(mount, "a server mounts no files of its clients")
            .with_remedy("copy files in and out, or use a local backend"));
    }
    let read_only = match workspace {
        Workspace::Private { access } => *access == Access::ReadOnly,
        Workspace::HostDir { path, .. } | Workspace::CopyOnWrite { path } => {
            return Err(Error::unsupported("create", "a server has no directories of its clients")
                .with_context("path", path.display().to_string())
                .with_remedy("use a private workspace, and copy files in and out"));
        }
    };
    if *network != NetworkPolicy::None
        && let Some(error) = lacks(Capability::NetworkAllowlist, "network policy")
    {
        return Err(error.with_remedy("its operator can start it with --allow-network"));
    }
    let image = match root {
        RootFs::Default => None,
        RootFs::Image { reference } => match lacks(Capability::Image, "choice of an image") {
            Some(error) => return Err(error.with_remedy("its operator can start it with --allow-images")),
            None => Some(reference.clone()),
        },
        RootFs::Directory { path } => {
            return Err(Error::unsupported("create", "a server has no directories of its clients")
                .with_context("path", path.display().to_string()));
        }
    };
    let own = attributes.keys().find(|key| key.split('.').next() == Some(NAME));
    if let Some(key) = own {
        return Err(Error::invalid("create", format!("the remote backend has no attribute '{}'", key.escape_debug()))
            .with_remedy("remove it: this backend takes no attributes"));
    }
    Ok(CreateSandbox {
        image,
        read_only,
        limits: Some(limits.clone()),
        network: network.clone(),
        labels: labels.clone(),
        ..CreateSandbox::default()
    })
}
