//! The specification of a sandbox: immutable, validated once, with the same field names on the command line, in REST
//! and in policies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mount::validate_mounts;
use crate::{Error, ErrorKind, Limits, MAX_MOUNTS, Mount, NetworkPolicy, Protection, Result};

/// The path of the workspace inside every sandbox.
pub const WORKSPACE_PATH: &str = "/workspace";

/// The most labels, and the most attributes, of a spec.
const MAX_MAP_ENTRIES: usize = 64;
/// The most directories that a spec records: workspace and root, each possibly changed once, and mounts.
const MAX_DIRECTORIES: usize = 4 + MAX_MOUNTS;
/// The most bytes of a key or value of a label, and of a key of an attribute.
const MAX_MAP_TEXT: usize = 4096;

/// The id of a sandbox, unique for the lifetime of the process that created it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SandboxId(String);

impl SandboxId {
    /// Creates an id. Called by backends.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The tenant that owns a sandbox: 1 to 64 letters, digits, `.`, `_` and `-`, starting with a letter or digit. Default:
/// `default`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct TenantId(String);

impl TenantId {
    /// Parses a tenant id. Fails with `InvalidInput` if it is malformed.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if (1..=64).contains(&text.len())
            && text.chars().all(allowed)
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        {
            Ok(Self(text))
        } else {
            Err(Error::invalid(
                "create",
                "a tenant must be 1 to 64 letters, digits, '.', '_' or '-', and start with a letter or digit",
            ))
        }
    }

    /// Returns the tenant id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TenantId {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl TryFrom<String> for TenantId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<TenantId> for String {
    fn from(tenant: TenantId) -> Self {
        tenant.0
    }
}

/// The guest's access to the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Code may create, change and delete files. The default.
    #[default]
    ReadWrite,
    /// Every write fails.
    ReadOnly,
}

/// The working directory of the code, mounted at [`WORKSPACE_PATH`]. Default: private and writable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Workspace {
    /// An empty directory of the sandbox's own, deleted with it. With [`Access::ReadOnly`] only the file API can fill
    /// it.
    Private {
        /// The guest's access. Default: read-write.
        #[serde(default)]
        access: Access,
    },
    /// A mounted host directory. With [`Access::ReadOnly`] neither code nor the file API can change it.
    HostDir {
        /// The absolute path on the host.
        path: PathBuf,
        /// The guest's access. Default: read-write.
        #[serde(default)]
        access: Access,
    },
    /// A host directory whose files code sees, and that is never written. All changes go to a layer of the sandbox's own,
    /// which the disk limit bounds, and which [`crate::Sandbox::changes`] returns.
    CopyOnWrite {
        /// The absolute path on the host.
        path: PathBuf,
    },
}

impl Workspace {
    /// Returns the guest's access.
    pub fn access(&self) -> Access {
        match self {
            Self::Private { access } | Self::HostDir { access, .. } => *access,
            Self::CopyOnWrite { .. } => Access::ReadWrite,
        }
    }

    /// Returns the host directory, if it has one.
    pub fn host_directory(&self) -> Option<&Path> {
        match self {
            Self::Private { .. } => None,
            Self::HostDir { path, .. } | Self::CopyOnWrite { path } => Some(path),
        }
    }

    /// Fails with `Denied` if the workspace is a host directory that is mounted read-only. Backends call it before the
    /// file API changes a workspace.
    pub fn check_change(&self, operation: &'static str) -> Result<()> {
        match self {
            Self::Private { .. } | Self::CopyOnWrite { .. } | Self::HostDir { access: Access::ReadWrite, .. } => Ok(()),
            Self::HostDir { access: Access::ReadOnly, .. } => Err(Error::new(
                ErrorKind::Denied,
                operation,
                "the workspace is a host directory that is mounted read-only",
            )
            .with_remedy("mount it writable, or use a private workspace")),
        }
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::Private { access: Access::ReadWrite }
    }
}

/// The identity of a host directory. A path may be changed to lead elsewhere; the identity cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DirectoryId {
    /// The device number (`st_dev`).
    pub device: u64,
    /// The inode number (`st_ino`).
    pub inode: u64,
}

/// The root file system of the code, always read-only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum RootFs {
    /// The backend's own choice, and the default: the host's programs for `process`, the base image for other backends.
    #[default]
    Default,
    /// A host directory that contains a root file system.
    Directory {
        /// The absolute path on the host.
        path: PathBuf,
    },
    /// An image with a name: of a container engine, or of the backend itself.
    Image {
        /// The image's name in the engine, such as `python:3.13-slim`, or with a digest (`name@sha256:...`) to pin the
        /// content: 1 to 512 bytes without blanks.
        reference: String,
    },
}

/// The most bytes of an image's name.
const MAX_IMAGE_NAME: usize = 512;

/// A specification of a sandbox. Immutable; created by [`Spec::builder`] or deserialized from JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    workspace: Workspace,
    root: RootFs,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Mount>,
    limits: Limits,
    network: NetworkPolicy,
    tenant: TenantId,
    labels: BTreeMap<String, String>,
    allow_weaker: BTreeSet<Protection>,
    attributes: BTreeMap<String, serde_json::Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    directories: BTreeMap<PathBuf, DirectoryId>,
}

/// All settings of a [`Spec`], returned by [`Spec::parts`]. Every new setting becomes a field here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpecParts<'a> {
    /// The working directory of the code.
    pub workspace: &'a Workspace,
    /// The root file system.
    pub root: &'a RootFs,
    /// Mounts besides root and workspace.
    pub mounts: &'a [Mount],
    /// The resource limits.
    pub limits: &'a Limits,
    /// The network policy.
    pub network: &'a NetworkPolicy,
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Labels: keys and values for the caller's own use.
    pub labels: &'a BTreeMap<String, String>,
    /// Protections that may be weaker than requested, or absent.
    pub allow_weaker: &'a BTreeSet<Protection>,
    /// Options of individual backends.
    pub attributes: &'a BTreeMap<String, serde_json::Value>,
    /// Identities of host directories, recorded by the caller, by path.
    pub directories: &'a BTreeMap<PathBuf, DirectoryId>,
}

impl Spec {
    /// Creates a builder with the defaults: private workspace, default limits, no network.
    pub fn builder() -> SpecBuilder {
        SpecBuilder { spec: Self::default() }
    }

    /// Returns the workspace.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Returns the root file system.
    pub fn root(&self) -> &RootFs {
        &self.root
    }

    /// Returns the mounts besides root and workspace.
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// Returns the resource limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the network policy.
    pub fn network(&self) -> &NetworkPolicy {
        &self.network
    }

    /// Returns the tenant.
    pub fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Returns the labels: keys and values for the caller's own use. Backends attach them to objects of platforms that
    /// have labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Returns the protections that may be weaker than requested, or absent.
    pub fn allow_weaker(&self) -> &BTreeSet<Protection> {
        &self.allow_weaker
    }

    /// Returns options of individual backends, named `backend.option`. A backend rejects an unknown option under its
    /// own name and ignores options of other backends.
    pub fn attributes(&self) -> &BTreeMap<String, serde_json::Value> {
        &self.attributes
    }

    /// Returns the identities of host directories that the caller recorded, by path. A backend compares the directory
    /// that it opens and rejects a different one, because a guest may have changed where the path leads.
    pub fn directories(&self) -> &BTreeMap<PathBuf, DirectoryId> {
        &self.directories
    }

    /// Checks that `found`, the directory that a backend opened at `path`, is the one that the caller recorded. Accepts
    /// a path without a record.
    ///
    /// # Errors
    /// - `NotFound` if the directory is a different one.
    pub fn check_directory(&self, path: &Path, found: DirectoryId) -> Result<()> {
        match self.directories.get(path) {
            Some(named) if *named != found => Err(Error::new(
                ErrorKind::NotFound,
                "create",
                "the directory at this path is not the one that was named any more",
            )
            .with_context("path", path.display().to_string())
            .with_remedy("the directory was replaced in the meantime; specify it again if that was intended")),
            _ => Ok(()),
        }
    }

    /// Checks that this spec's tenant is `owner`, the tenant whose work a snapshot contains. Accepts a snapshot without
    /// an owner.
    ///
    /// # Errors
    /// - `Denied` for another tenant. The error does not name the owner.
    pub fn check_tenant(&self, owner: Option<&TenantId>) -> Result<()> {
        match owner {
            Some(owner) if *owner != self.tenant => {
                let what = format!("the snapshot belongs to another tenant than '{}'", self.tenant.as_str());
                Err(Error::new(ErrorKind::Denied, "restore", what)
                    .with_remedy("restore it as its own tenant, with --tenant or the spec's tenant"))
            }
            _ => Ok(()),
        }
    }

    /// Returns every setting, to be destructured without `..`. Code that enforces settings then fails to compile when a
    /// setting is added, instead of ignoring it.
    pub fn parts(&self) -> SpecParts<'_> {
        let Self { workspace, root, mounts, limits, network, tenant, labels, allow_weaker, attributes, directories } =
            self;
        SpecParts { workspace, root, mounts, limits, network, tenant, labels, allow_weaker, attributes, directories }
    }

    /// Creates a builder that starts with this spec's values.
    pub fn to_builder(&self) -> SpecBuilder {
        SpecBuilder { spec: self.clone() }
    }

    /// Checks everything that can be checked without a host. Backends call it first, because a spec may come from JSON.
    ///
    /// # Errors
    /// - `InvalidInput` for limits that [`Limits::validate`] rejects, a relative host path, a malformed image name,
    ///   more than 64 labels or attributes, or one that is too long.
    pub fn validate(&self) -> Result<()> {
        self.limits.validate()?;
        validate_mounts(&self.mounts)?;
        for (what, path) in [
            ("workspace", self.workspace.host_directory()),
            (
                "root",
                match &self.root {
                    RootFs::Directory { path } => Some(&**path),
                    RootFs::Default | RootFs::Image { .. } => None,
                },
            ),
        ] {
            if let Some(path) = path
                && !path.is_absolute()
            {
                return Err(Error::invalid("create", format!("the {what} directory must be an absolute path"))
                    .with_context("path", path.display().to_string()));
            }
        }
        if let RootFs::Image { reference } = &self.root
            && (reference.is_empty()
                || reference.len() > MAX_IMAGE_NAME
                || !reference.chars().all(|c| c.is_ascii_graphic())
                || reference.starts_with('-'))
        {
            return Err(Error::invalid(
                "create",
                "an image name must be 1 to 512 printable ASCII characters without blanks, and must not start with '-'",
            )
            .with_context("image", reference.escape_debug().to_string()));
        }
        let entries = self.labels.len().max(self.attributes.len());
        let text = self.labels.iter().any(|(key, value)| key.len() > MAX_MAP_TEXT || value.len() > MAX_MAP_TEXT);
        if entries > MAX_MAP_ENTRIES || text || self.attributes.keys().any(|key| key.len() > MAX_MAP_TEXT) {
            return Err(Error::invalid(
                "create",
                "a spec may have at most 64 labels and 64 attributes of at most 4096 bytes each",
            ));
        }
        if self.directories.len() > MAX_DIRECTORIES {
            return Err(Error::invalid("create", format!("a spec may record at most {MAX_DIRECTORIES} directories")));
        }
        Ok(())
    }
}

/// A builder for a [`Spec`].
#[derive(Debug, Clone)]
#[must_use]
pub struct SpecBuilder {
    spec: Spec,
}

impl SpecBuilder {
    /// Sets the workspace. Default: private and writable.
    pub fn workspace(mut self, workspace: Workspace) -> Self {
        self.spec.workspace = workspace;
        self
    }

    /// Sets the root file system. Default: the backend's own choice.
    pub fn root(mut self, root: RootFs) -> Self {
        self.spec.root = root;
        self
    }

    /// Adds a mount. A spec may have at most [`MAX_MOUNTS`], each with its own target.
    pub fn mount(mut self, mount: Mount) -> Self {
        self.spec.mounts.push(mount);
        self
    }

    /// Makes all mounts of files and disks of the host read-only.
    pub fn read_only_mounts(mut self) -> Self {
        self.spec.mounts.iter_mut().for_each(|mount| mount.source.make_read_only());
        self
    }

    /// Sets all resource limits. Default: [`Limits::default`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.spec.limits = limits;
        self
    }

    /// Sets the network policy. Default: no network.
    pub fn network(mut self, network: NetworkPolicy) -> Self {
        self.spec.network = network;
        self
    }

    /// Sets the tenant. Default: `default`.
    pub fn tenant(mut self, tenant: TenantId) -> Self {
        self.spec.tenant = tenant;
        self
    }

    /// Adds a label. A spec may have at most 64, with keys and values of at most 4096 bytes.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.labels.insert(key.into(), value.into());
        self
    }

    /// Accepts a protection that is weaker than requested, or absent.
    pub fn allow_weaker(mut self, protection: Protection) -> Self {
        self.spec.allow_weaker.insert(protection);
        self
    }

    /// Adds an option of a backend, named `backend.option`.
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.spec.attributes.insert(key.into(), value.into());
        self
    }

    /// Records the identity of the host directory at a path of this spec.
    pub fn directory(mut self, path: impl Into<PathBuf>, id: DirectoryId) -> Self {
        self.spec.directories.insert(path.into(), id);
        self
    }

    /// Checks the spec with [`Spec::validate`] and returns it.
    pub fn build(self) -> Result<Spec> {
        self.spec.validate()?;
        Ok(self.spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Contract): A spec is an immutable value that JSON represents without loss.
    #[test]
    fn a_spec_round_trips_through_json() {
        let spec = Spec::builder()
            .workspace(Workspace::HostDir { path: "/srv/x".into(), access: Access::ReadOnly })
            .tenant(TenantId::new("acme").unwrap())
            .label("job", "7")
            .allow_weaker(Protection::Memory)
            .attribute("process.hostname", "box")
            .build()
            .unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
        assert!(serde_json::from_str::<Spec>(r#"{"netwrok":{}}"#).is_err());
    }

    #[test]
    fn another_directory_at_a_recorded_path_is_refused() {
        let named = DirectoryId { device: 1, inode: 2 };
        let spec = Spec::builder().directory("/srv/x", named).build().unwrap();
        let text = serde_json::to_string(&spec).unwrap();
        let spec = serde_json::from_str::<Spec>(&text).unwrap();
        let check = |path: &str, device, inode| {
            spec.check_directory(Path::new(path), DirectoryId { device, inode }).err().map(|error| error.kind())
        };
        assert_eq!(check("/srv/x", 1, 2), None);
        assert_eq!(check("/srv/x", 1, 3), Some(ErrorKind::NotFound));
        assert_eq!(check("/srv/x", 2, 2), Some(ErrorKind::NotFound));
        assert_eq!(check("/srv/y", 1, 3), None, "nothing is recorded for it");
    }

    #[test]
    fn a_snapshot_of_another_tenant_is_refused_without_naming_it() {
        let [mine, other] = ["mine", "other"].map(|name| TenantId::new(name).unwrap());
        let spec = Spec::builder().tenant(other.clone()).build().unwrap();
        assert!(spec.check_tenant(None).is_ok() && spec.check_tenant(Some(&other)).is_ok());
        let error = spec.check_tenant(Some(&mine)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.remedy().is_some() && !error.to_string().contains("mine"), "{error}");
    }

    /// Promise (Contract): A spec with values that no sandbox can have is refused.
    #[test]
    fn bad_values_are_refused() {
        let relative = Workspace::HostDir { path: "x".into(), access: Access::ReadWrite };
        assert!(Spec::builder().workspace(relative).build().is_err());
        for tenant in ["", "a/b", "..", "-a", &"x".repeat(65)] {
            assert!(TenantId::new(tenant).is_err(), "{tenant}");
        }
        assert!(serde_json::from_str::<Spec>(r#"{"tenant":"../x"}"#).is_err());
        for reference in ["", "a b", "--privileged", "a\nb", "é", &"x".repeat(513)] {
            let root = RootFs::Image { reference: reference.to_owned() };
            assert!(Spec::builder().root(root).build().is_err(), "{reference:?}");
        }
    }

    #[test]
    fn file_api_refuses_changes_of_read_only_mounts_only() {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            assert!(Workspace::Private { access }.check_change("write_file").is_ok());
            let mounted = Workspace::HostDir { path: "/srv/x".into(), access };
            let refused = mounted.check_change("write_file").err().map(|error| error.kind());
            assert_eq!(refused, (access == Access::ReadOnly).then_some(ErrorKind::Denied));
        }
    }

    /// Promise (Contract): The JSON Schema names every field.
    #[test]
    fn the_schema_names_every_field() {
        let schema = serde_json::to_value(schemars::schema_for!(Spec)).unwrap();
        for field in
            ["workspace", "root", "mounts", "limits", "network", "tenant", "labels", "allow_weaker", "attributes"]
        {
            assert!(schema["properties"].get(field).is_some(), "{field}");
        }
    }
}
