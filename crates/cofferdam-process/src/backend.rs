//! The backend: manages launchers and requests sandboxes from them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Access, Backend, ByteSize, Capabilities, Capability, DirectoryId, Error, ExecHandle, ExecRequest, Level,
    PreparedSandbox, Result, RootFs, Sandbox, Snapshot, Spec, Workspace,
};
use cofferdam_linux::named::Directory;
use tokio::sync::Mutex;

use crate::NAME;
use crate::client::Launcher;
use crate::config::{ControlGroups, Images, ProcessConfig, RootImage};
use crate::image::{self, Surroundings};
use crate::interpreters::{self, Found};
use crate::pending::SandboxInputs;
use crate::plan::SpecPlan;
use crate::prepared::PreparedProcessSandbox;
use crate::protocol::{Configure, Create, INSIDE, LayerPlan, MountPlan, MountPoint, RootPlan, WorkspacePlan};
use crate::{creation, error, mounts, network};

/// The maximum of launchers that are kept for later sandboxes, besides the one of the default root.
const MAX_LAUNCHERS: usize = 16;
/// The default search path of programs.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A root file system with its mount points, which one launcher prepares for many sandboxes.
type Root = (Option<RootPlan>, Vec<MountPoint>);

/// A backend that isolates processes.
#[derive(Debug)]
pub struct ProcessBackend {
    config: ProcessConfig,
    interpreters: Found,
    /// Prefixes of interpreters that are not visible inside.
    hidden: Vec<PathBuf>,
    launchers: Mutex<HashMap<Root, Arc<Launcher>>>,
}

/// Makes sure that there is a place for another launcher, by dropping those without sandboxes. Launchers in use live on
/// through their sandboxes.
fn has_slot(launchers: &mut HashMap<Root, Arc<Launcher>>) -> bool {
    let is_other = |root: &Root| *root != (None, Vec::new());
    let count = |launchers: &HashMap<Root, Arc<Launcher>>| launchers.keys().filter(|root| is_other(root)).count();
    if count(launchers) >= MAX_LAUNCHERS {
        launchers.retain(|root, launcher| !is_other(root) || Arc::strong_count(launcher) > 1);
    }
    count(launchers) < MAX_LAUNCHERS
}

impl ProcessBackend {
    /// Sets up the backend. No process is started before the first sandbox.
    pub fn new(config: ProcessConfig) -> Result<Self> {
        if let Some(path) = config.read_only.iter().find(|path| !path.is_absolute()) {
            return Err(Error::invalid("configure", "a read-only directory must be an absolute path")
                .with_context("path", path.display().to_string()));
        }
        if let Some(path) = config.read_only.iter().find(|path| interpreters::is_covered(path)) {
            return Err(Error::invalid("configure", "each sandbox has its own directory at this path")
                .with_context("path", path.display().to_string())
                .with_remedy("mount it as the workspace, or move it on the host"));
        }
        let mut interpreters = match &config.search_path {
            Some(path) if config.find_interpreters => interpreters::find(path, config.home.as_deref()),
            _ => Found::default(),
        };
        let hidden = interpreters.take_hidden();
        Ok(Self { config, interpreters, hidden, launchers: Mutex::new(HashMap::new()) })
    }

    /// Returns the launcher for a root, and starts it if necessary.
    pub(crate) async fn launcher(
        &self,
        spec: &Spec,
        image: Option<&RootImage>,
        mounts: &[MountPlan],
    ) -> Result<Arc<Launcher>> {
        let root = match spec.root() {
            RootFs::Default => None,
            RootFs::Image { .. } => image.map(image::plan).transpose()?,
            RootFs::Directory { path } => {
                let opened = open_directory(spec, "root", path)?;
                let (device, inode) = opened.identity();
                Some(RootPlan::Directory(LayerPlan { path: opened.path().to_owned(), device, inode }))
            }
        };
        let root = (root, mounts::mount_points(mounts));
        let mut launchers = self.launchers.lock().await;
        if let Some(launcher) = launchers.get(&root).filter(|launcher| launcher.is_alive()) {
            return Ok(Arc::clone(launcher));
        }
        // Other tenants' roots must not leave a sandbox without a launcher: it then gets one that ends with it.
        let is_retained = root == (None, Vec::new()) || has_slot(&mut launchers);
        let with_host = root.0.is_none();
        let configure = Configure {
            root: root.0.clone(),
            mount_points: root.1.clone(),
            read_only: self.config.read_only.clone(),
            interpreters: if with_host { self.interpreters.parts() } else { Vec::new() },
            hidden: if with_host { self.hidden.clone() } else { Vec::new() },
            use_cgroups: self.config.control_groups == ControlGroups::Auto,
            prepare_ahead: is_retained && self.config.prepare_ahead,
        };
        let launcher = Arc::new(Launcher::start(&self.config.launcher, &configure)?);
        if launcher.is_single() {
            // It belongs to its only sandbox, which waits for it.
            return Ok(launcher);
        }
        launcher.ready().await?;
        if is_retained {
            launchers.insert(root, Arc::clone(&launcher));
        }
        Ok(launcher)
    }

    /// Checks a spec and converts it to a request for a launcher.
    async fn plan(&self, spec: Spec) -> Result<(Arc<Launcher>, Create, SandboxInputs)> {
        let SpecPlan { built_in, adjustable } = SpecPlan::of(&spec)?;
        let (workspace, directory) = workspace_plan(&spec)?;
        let (network, access) = match network::plan(built_in.network)? {
            Some((network, rules)) => (Some(network), Some(network::access(built_in.network, rules).await?)),
            None => (None, None),
        };
        let mounts = mounts::plan(&spec)?;
        let image = self.image(&spec)?;
        let launcher = self.launcher(&spec, image.as_ref(), &mounts).await?;
        let create = Create {
            serial: launcher.next_serial(),
            workspace,
            inside: image.as_ref().and_then(|image| image.user).unwrap_or(INSIDE),
            mounts,
            read_only: built_in.workspace.access() == Access::ReadOnly,
            disk: adjustable.disk.map(ByteSize::as_bytes),
            memory: adjustable.memory.map(ByteSize::as_bytes),
            tasks: adjustable.pids.map(u64::from),
            processes: built_in.processes.map(u64::from),
            cpu_millis: built_in.cpus.map(|cpus| u64::from(cpus.as_millis())),
            cpu_micros: adjustable.cpu_time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            network,
            probe: false,
            expected: None,
        };
        let surroundings = match &image {
            Some(image) => {
                let surroundings = Surroundings::of_image(image, PATH);
                let has_workspace = built_in.workspace.host_directory().is_some();
                Surroundings { directory: surroundings.directory.filter(|_| !has_workspace), ..surroundings }
            }
            None => Surroundings { path: self.path_inside(built_in.root), ..Surroundings::default() },
        };
        Ok((launcher, create, SandboxInputs { spec, surroundings, directory, access }))
    }

    /// Returns the image of a spec from the store.
    fn image(&self, spec: &Spec) -> Result<Option<RootImage>> {
        let RootFs::Image { reference } = spec.root() else { return Ok(None) };
        let Images(Some(store)) = &self.config.images else {
            return Err(Error::unsupported("create", "this process backend has no image store")
                .with_remedy("use a backend of level container or vm, or name a directory with a root file system"));
        };
        store.resolve(reference).map(Some)
    }

    /// Returns PATH inside a sandbox with this root.
    fn path_inside(&self, root: &RootFs) -> String {
        let found = if *root == RootFs::Default { self.interpreters.path.as_slice() } else { &[] };
        let own = found.iter().filter_map(|path| path.to_str()).filter(|path| !path.contains(':'));
        own.chain([PATH]).collect::<Vec<_>>().join(":")
    }
}

#[async_trait]
impl Backend for ProcessBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Process
    }

    fn capabilities(&self) -> Capabilities {
        let network = cfg!(feature = "net").then_some(Capability::NetworkAllowlist);
        let others = [
            Capability::MultipleExecs,
            Capability::StreamingStdin,
            Capability::Terminal,
            Capability::Files,
            Capability::HostWorkspace,
            Capability::CopyOnWrite,
            Capability::Mounts,
            Capability::CopyOnWriteMounts,
            Capability::RootDirectory,
            Capability::UnixPrograms,
            Capability::Warm,
            Capability::Connect,
            Capability::Watch,
        ];
        let images = self.config.images.0.is_some().then_some(Capability::Image);
        let disks = mounts::has_disks().then_some(Capability::DiskMounts);
        others.into_iter().chain(network).chain(images).chain(disks).collect()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let (launcher, create, inputs) = self.plan(spec).await?;
        Ok(Arc::new(creation::create(launcher, create, inputs).await?))
    }

    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        request.validate()?;
        let (launcher, create, inputs) = self.plan(spec).await?;
        let (sandbox, handle) = creation::start_one(launcher, create, inputs, request).await?;
        Ok((Arc::new(sandbox), handle))
    }

    async fn restore(&self, _snapshot: Snapshot, _spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("restore", "the process backend cannot restore snapshots")
            .with_remedy("use level vm for snapshots of running programs"))
    }

    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        if spec.workspace().host_directory().is_some() || !spec.mounts().is_empty() {
            return Err(Error::invalid(
                "warm",
                "cannot prepare a sandbox with a mounted host directory or other mounts",
            )
            .with_remedy(
                "use a template with a private workspace and no mounts; other sandboxes are created on request",
            ));
        }
        let (launcher, create, inputs) = self.plan(spec).await?;
        Ok(Box::new(PreparedProcessSandbox::prepare(launcher, create, inputs).await?))
    }
}

/// Opens the workspace's directory. From here on, this descriptor is used.
fn workspace_plan(spec: &Spec) -> Result<(WorkspacePlan, Option<Directory>)> {
    let Some(path) = spec.workspace().host_directory() else { return Ok((WorkspacePlan::Private, None)) };
    let copy_on_write = matches!(spec.workspace(), Workspace::CopyOnWrite { .. });
    let opened = open_directory(spec, "workspace", path)?;
    let ((device, inode), (uid, gid)) = (opened.identity(), opened.owner());
    let plan = WorkspacePlan::HostDir { path: opened.path().to_owned(), device, inode, uid, gid, copy_on_write };
    Ok((plan, Some(opened)))
}

/// Opens a directory of the spec, and checks that it is the one that the caller named.
fn open_directory(spec: &Spec, what: &str, path: &Path) -> Result<Directory> {
    let opened = Directory::open(path).map_err(|error| error::directory(what, path, error))?;
    let (device, inode) = opened.identity();
    spec.check_directory(path, DirectoryId { device, inode })?;
    Ok(opened)
}
