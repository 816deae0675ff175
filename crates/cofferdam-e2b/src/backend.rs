//! Creation of sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Access, Backend, Capabilities, Capability, Error, ErrorKind, Level, Limits, NetworkPolicy, PreparedSandbox, Result,
    RootFs, Sandbox, Snapshot, Spec, SpecParts, Workspace, unsupported_mount,
};
use hyper::Method;

use crate::NAME;
use crate::client::{Client, ROOT, USER, parsed};
use crate::config::E2bConfig;
use crate::core::{Core, delete, keep_alive};
use crate::error::Failure;
use crate::guest::{PROBE, Probed, SETUP, script};
use crate::posture::{known, posture};
use crate::sandbox::{E2bSandbox, detached};
use crate::wire::{CreatedSandbox, Detail, NewSandbox};

/// The features of the backend.
const CAPABILITIES: [Capability; 6] = [
    Capability::MultipleExecs,
    Capability::StreamingStdin,
    Capability::Terminal,
    Capability::Files,
    Capability::Pause,
    Capability::UnixPrograms,
];
/// The oldest agent that takes uploads without a form, and ends of input.
const MIN_AGENT: [u32; 3] = [0, 5, 7];
/// The key of E2B's metadata that has the tenant.
const TENANT: &str = "cofferdam-tenant";
/// The most bytes that the script which measures a VM prints.
const MAX_PROBED: usize = 64 << 10;
/// The user and group of programs, as names.
const OWNER: &str = "user:";

/// A backend whose sandboxes are VMs of E2B.
#[derive(Debug)]
pub struct E2bBackend {
    client: Client,
}

impl E2bBackend {
    /// Creates the backend. Nothing is sent before the first sandbox.
    ///
    /// # Errors
    /// - `InvalidInput` for an address, domain, template or lifetime that cannot be, and for an address to which the key
    ///   would travel without TLS.
    pub fn new(config: E2bConfig) -> Result<Self> {
        Ok(Self { client: Client::new(config)? })
    }
}

#[async_trait]
impl Backend for E2bBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Vm
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES.into()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let request = request(&spec, self.client.config())?;
        // Limits that E2B never enforces are refused before a VM costs something.
        known(&spec).require(spec.allow_weaker())?;
        let client = self.client.clone();
        // A sandbox whose caller gave up is deleted.
        detached("create", async move { create(client, spec, request).await }).await
    }

    async fn restore(&self, _: Snapshot, _: Spec) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("restore", "the e2b backend has no snapshots"))
    }

    async fn prepare(&self, _: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Err(Error::unsupported("warm", "the e2b backend prepares no sandboxes: each costs money while it waits"))
    }
}

/// Returns the request for a sandbox, or refuses a spec that E2B cannot satisfy. Destructures the spec: a new field must
/// be handled here.
fn request(spec: &Spec, config: &E2bConfig) -> Result<NewSandbox> {
    spec.validate()?;
    let SpecParts { workspace, root, mounts, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // The posture is checked against `allow_weaker`; no directory of this host is used.
    let (_, _) = (allow_weaker, directories);
    // Probed inside the VM, and compared with the limits in its posture: see `posture.rs`.
    let Limits { cpu_time: _, wall_time: _, memory: _, cpus: _, pids: _, disk: _, processes: _ } = limits;
    limits.refuse_processes(NAME)?;
    if let Some(mount) = mounts.first() {
        return Err(unsupported_mount(mount, "E2B mounts no files of this host")
            .with_remedy("copy files in and out, or use a local backend"));
    }
    match workspace {
        Workspace::Private { access: Access::ReadWrite | Access::ReadOnly } => {}
        Workspace::HostDir { path, .. } | Workspace::CopyOnWrite { path } => {
            return Err(Error::unsupported("create", "E2B has no directories of this host")
                .with_context("path", path.display().to_string())
                .with_remedy("use a private workspace, and copy files in and out"));
        }
    }
    if *network != NetworkPolicy::None {
        return Err(Error::unsupported("create", "the e2b backend has no network policies")
            .with_remedy("use no network, or a backend with policies such as process, docker or vm"));
    }
    match root {
        RootFs::Default => {}
        RootFs::Image { reference } => {
            return Err(Error::unsupported("create", "E2B has templates instead of images")
                .with_context("image", reference.escape_debug().to_string())
                .with_remedy("build a template at E2B, and use the backend e2b:TEMPLATE"));
        }
        RootFs::Directory { path } => {
            return Err(Error::unsupported("create", "E2B has no directories of this host")
                .with_context("path", path.display().to_string())
                .with_remedy("build a template at E2B, and use the backend e2b:TEMPLATE"));
        }
    }
    if let Some(key) = attributes.keys().find(|key| key.split('.').next() == Some(NAME)) {
        return Err(Error::invalid("create", format!("the e2b backend has no attribute '{}'", key.escape_debug()))
            .with_remedy("remove it: this backend takes no attributes"));
    }
    let mut metadata: BTreeMap<String, String> = labels.clone();
    if metadata.insert(TENANT.to_owned(), tenant.as_str().to_owned()).is_some() {
        return Err(Error::invalid("create", format!("the label {TENANT} is the tenant's")).with_remedy("rename it"));
    }
    Ok(NewSandbox {
        template_id: config.template.clone(),
        timeout: config.lifetime.as_secs(),
        auto_pause: false,
        allow_internet_access: false,
        metadata,
    })
}

async fn create(client: Client, spec: Spec, request: NewSandbox) -> Result<Arc<dyn Sandbox>> {
    let answer = client.call(Method::POST, "/v2/sandboxes", Some(&request), false).await;
    let answer = answer.map_err(|failure| not_created(failure, &request.template_id))?;
    let created: CreatedSandbox = parsed(&answer).map_err(|failure| failure.into_error("create"))?;
    if !is_id(&created.sandbox_id) {
        let failure = Failure::Foreign("the id of a sandbox is malformed".to_owned());
        return Err(failure.into_error("create"));
    }
    let id = created.sandbox_id.clone();
    match set_up(client.clone(), spec, created).await {
        Ok(sandbox) => Ok(Arc::new(sandbox)),
        // Every failure after the create leaves no VM.
        Err(error) => Err(error.with_failed_close(delete(&client, &id).await)),
    }
}

/// Returns the sandbox of a VM, if the VM is as the spec demands.
async fn set_up(client: Client, spec: Spec, created: CreatedSandbox) -> Result<E2bSandbox> {
    check_agent(&created.envd_version)?;
    let Some(token) = created.token.as_deref().filter(|token| !token.is_empty()) else {
        return Err(Error::unsupported("create", "E2B gave no token for the agent, so programs could command it")
            .with_remedy("use E2B with secured access, its default"));
    };
    let agent = client.agent(&created.sandbox_id, Some(token), created.domain.as_deref())?;
    let read_only = spec.workspace().access() == Access::ReadOnly;
    let mut core = Core::new(client, created.sandbox_id, agent, read_only);
    let (probed, detail) = measure(&core).await?;
    let posture = posture(&spec, &probed, &detail);
    posture.require(spec.allow_weaker())?;
    (core.path, core.home) = (probed.path, probed.home);
    let core = Arc::new(core);
    tokio::spawn(keep_alive(Arc::downgrade(&core), core.client.config().lifetime / 3));
    Ok(E2bSandbox::new(core, spec, posture))
}

/// Returns the error of a create. E2B answers 404 for a template that it does not have.
fn not_created(failure: Failure, template: &str) -> Error {
    match failure {
        Failure::Refused(refusal) if refusal.status == 404 => {
            Error::new(ErrorKind::NotFound, "create", "E2B has no such template")
                .with_context("template", template.escape_debug().to_string())
                .with_remedy("use a template of the E2B dashboard: the backend e2b:TEMPLATE")
        }
        other => other.into_error("create"),
    }
}

/// Returns true for an id that is safe in paths and host names.
fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=128).contains(&text.len()) && text.bytes().all(plain)
}

/// Refuses an agent that is too old.
fn check_agent(version: &str) -> Result<()> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version_of = [parts.next().unwrap_or(0), parts.next().unwrap_or(0), parts.next().unwrap_or(0)];
    if version_of >= MIN_AGENT {
        return Ok(());
    }
    Err(Error::unsupported("create", "the agent of the template is too old")
        .with_context("version", crate::error::shown(version))
        .with_remedy("build the template again at E2B"))
}

/// Creates the workspace, and measures the VM.
async fn measure(core: &Core) -> Result<(Probed, Detail)> {
    let access = if core.read_only { "ro" } else { "rw" };
    let setup = script(SETUP, vec![access.to_owned(), OWNER.to_owned()], true);
    let output = core.run("create", ROOT, setup, MAX_PROBED).await?;
    if output.code != 0 {
        return Err(Error::new(ErrorKind::Io, "create", "cannot create the workspace")
            .with_remedy("use a template with bash, coreutils, findutils and grep"));
    }
    let output = core.run("create", USER, script(PROBE, Vec::new(), false), MAX_PROBED).await?;
    let probed = Probed::parse(&String::from_utf8_lossy(&output.stdout));
    let detail = core.detail().await.map_err(|failure| core.failed("create", failure))?;
    Ok((probed, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Key;

    #[test]
    fn ids_and_versions_are_checked() {
        assert!(is_id("ix2a-b_9") && !is_id("") && !is_id("a/b") && !is_id("a.b") && !is_id(&"a".repeat(200)));
        for (version, good) in [("0.5.7", true), ("0.6.13", true), ("1.0.0", true), ("0.5.6", false), ("x", false)] {
            assert_eq!(check_agent(version).is_ok(), good, "{version}");
        }
    }

    #[test]
    fn labels_and_the_tenant_become_metadata() {
        let config = E2bConfig::new(Key::new("e2b_0").unwrap());
        let spec = Spec::builder().label("job", "7").build().unwrap();
        let body = request(&spec, &config).unwrap();
        assert_eq!(body.metadata["job"], "7");
        assert_eq!(body.metadata[TENANT], "default");
        assert!(!body.allow_internet_access && !body.auto_pause);
        let taken = Spec::builder().label(TENANT, "x").build().unwrap();
        assert!(request(&taken, &config).is_err());
    }
}
