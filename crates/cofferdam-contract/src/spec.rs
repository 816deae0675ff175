//! What sandbox to make: immutable, built once, the same words for command line, REST and policies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Limits, Protection, Result};

/// Where the workspace appears inside every sandbox.
pub const WORKSPACE_PATH: &str = "/workspace";

/// The most labels or attributes a spec may carry.
const MAX_MAP_ENTRIES: usize = 64;
/// The most directories that a spec records: its workspace and its root, also where both were changed once.
const MAX_DIRECTORIES: usize = 4;
/// The most bytes in one label or attribute key or value.
const MAX_MAP_TEXT: usize = 4096;

/// Names one sandbox; unique for the life of the process that made it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SandboxId(String);

impl SandboxId {
    /// An id made by a backend.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose work this is: 1 to 64 characters of letters, digits, `.`, `_` and `-`, beginning with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct TenantId(String);

impl TenantId {
    /// Parses a tenant id.
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
                "a tenant is 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            ))
        }
    }

    /// The tenant as text.
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

/// Whether code inside may change the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Code may create, change and delete.
    #[default]
    ReadWrite,
    /// Every write fails.
    ReadOnly,
}

/// The directory that the code works in; it appears as [`WORKSPACE_PATH`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Workspace {
    /// An empty directory of the sandbox's own, gone with it. With [`Access::ReadOnly`] only the file API can fill it.
    Private {
        /// What the code may do.
        #[serde(default)]
        access: Access,
    },
    /// A directory of the host. With [`Access::ReadOnly`] nothing changes it: no code, and not the file API.
    HostDir {
        /// An absolute path.
        path: PathBuf,
        /// What the code may do.
        #[serde(default)]
        access: Access,
    },
}

impl Workspace {
    /// What the code may do.
    pub fn access(&self) -> Access {
        match self {
            Self::Private { access } | Self::HostDir { access, .. } => *access,
        }
    }

    /// Refuses the file API a change of a directory that was lent to be read only. Backends ask before they change
    /// anything in a workspace.
    pub fn check_change(&self, operation: &'static str) -> Result<()> {
        match self {
            Self::Private { .. } | Self::HostDir { access: Access::ReadWrite, .. } => Ok(()),
            Self::HostDir { access: Access::ReadOnly, .. } => Err(Error::new(
                ErrorKind::Denied,
                operation,
                "the workspace is a directory of the host that was lent to be read only",
            )
            .with_remedy("lend it with the right to write, or use a private workspace")),
        }
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::Private { access: Access::ReadWrite }
    }
}

/// Which directory of the host a path stands for: a name can be made to lead elsewhere, this cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DirectoryId {
    /// The device that holds it (`st_dev`).
    pub device: u64,
    /// Its number there (`st_ino`).
    pub inode: u64,
}

/// What the code sees as its root file system, always read-only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum RootFs {
    /// What the backend offers by itself: the host's programs for `process`, the base image elsewhere.
    #[default]
    Default,
    /// A directory of the host that holds a root file system.
    Directory {
        /// An absolute path.
        path: PathBuf,
    },
    /// An image with a name: of a container engine, or of the backend's own.
    Image {
        /// What the engine knows it by, such as `python:3.13-slim`, with a digest (`name@sha256:…`) to name its content:
        /// 1 to 512 bytes without blanks.
        reference: String,
    },
}

/// The most bytes of an image's name.
const MAX_IMAGE_NAME: usize = 512;

/// What the code may reach over the network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[non_exhaustive]
pub enum NetworkPolicy {
    /// Nothing but the sandbox's own loopback.
    #[default]
    None,
    /// The named hosts only.
    Allow {
        /// Host names, `*.` and a domain, or addresses (of IPv6 in brackets), each with an optional `:port`.
        hosts: Vec<String>,
    },
}

/// What sandbox to make. Immutable; made by [`Spec::builder`] or read from JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    workspace: Workspace,
    root: RootFs,
    limits: Limits,
    network: NetworkPolicy,
    tenant: TenantId,
    labels: BTreeMap<String, String>,
    allow_weaker: BTreeSet<Protection>,
    attributes: BTreeMap<String, serde_json::Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    directories: BTreeMap<PathBuf, DirectoryId>,
}

/// All settings of a [`Spec`], given by [`Spec::parts`]. A new setting is a new field here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpecParts<'a> {
    /// The directory that the code works in.
    pub workspace: &'a Workspace,
    /// The root file system.
    pub root: &'a RootFs,
    /// What the sandbox may use.
    pub limits: &'a Limits,
    /// What the code may reach.
    pub network: &'a NetworkPolicy,
    /// Whose work this is.
    pub tenant: &'a TenantId,
    /// Names and values for the caller's own use.
    pub labels: &'a BTreeMap<String, String>,
    /// Protections that may be weaker than asked, or absent.
    pub allow_weaker: &'a BTreeSet<Protection>,
    /// Options of one backend.
    pub attributes: &'a BTreeMap<String, serde_json::Value>,
    /// Which directories of the host the paths stood for when the caller named them.
    pub directories: &'a BTreeMap<PathBuf, DirectoryId>,
}

impl Spec {
    /// Starts from the defaults: private workspace, default limits, no network.
    pub fn builder() -> SpecBuilder {
        SpecBuilder { spec: Self::default() }
    }

    /// The directory that the code works in.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// The root file system.
    pub fn root(&self) -> &RootFs {
        &self.root
    }

    /// What the sandbox may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What the code may reach.
    pub fn network(&self) -> &NetworkPolicy {
        &self.network
    }

    /// Whose work this is.
    pub fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    /// Names and values for the caller's own use; backends attach them where their platform has labels.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Protections that may be weaker than asked, or absent.
    pub fn allow_weaker(&self) -> &BTreeSet<Protection> {
        &self.allow_weaker
    }

    /// Options of one backend, named `backend.option`. A backend refuses an option under its own name that it does
    /// not know, and ignores other backends' options.
    pub fn attributes(&self) -> &BTreeMap<String, serde_json::Value> {
        &self.attributes
    }

    /// Which directories of the host the paths of this spec stood for when the caller named them. A backend compares the
    /// directory that it opens, and refuses another one: a name that a guest can change may lead elsewhere by then.
    pub fn directories(&self) -> &BTreeMap<PathBuf, DirectoryId> {
        &self.directories
    }

    /// Refuses a directory that is not the one that `path` stood for when the caller named it. Backends ask with what
    /// they opened. A path that the caller recorded nothing for is accepted.
    pub fn check_directory(&self, path: &Path, found: DirectoryId) -> Result<()> {
        match self.directories.get(path) {
            Some(named) if *named != found => Err(Error::new(
                ErrorKind::NotFound,
                "create",
                "the directory at this path is not the one that was named any more",
            )
            .with_context("path", path.display().to_string())
            .with_remedy("it was replaced in the meantime: name it again, if that was you")),
            _ => Ok(()),
        }
    }

    /// Every setting there is, to be taken apart without `..`: whoever enforces settings then fails to compile when one
    /// is added, instead of leaving it out.
    pub fn parts(&self) -> SpecParts<'_> {
        let Self { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } = self;
        SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories }
    }

    /// A builder that begins with this spec's values.
    pub fn to_builder(&self) -> SpecBuilder {
        SpecBuilder { spec: self.clone() }
    }

    /// Checks what can be checked without a host. Backends call it first, because a spec may come from JSON.
    pub fn validate(&self) -> Result<()> {
        self.limits.validate()?;
        for (what, path) in [
            (
                "workspace",
                match &self.workspace {
                    Workspace::HostDir { path, .. } => Some(path),
                    Workspace::Private { .. } => None,
                },
            ),
            (
                "root",
                match &self.root {
                    RootFs::Directory { path } => Some(path),
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
            return Err(Error::invalid("create", "an image is named by 1 to 512 letters, digits and signs")
                .with_context("image", reference.escape_debug().to_string()));
        }
        let entries = self.labels.len().max(self.attributes.len());
        let text = self.labels.iter().any(|(key, value)| key.len() > MAX_MAP_TEXT || value.len() > MAX_MAP_TEXT);
        if entries > MAX_MAP_ENTRIES || text || self.attributes.keys().any(|key| key.len() > MAX_MAP_TEXT) {
            return Err(Error::invalid("create", "at most 64 labels and 64 attributes of 4096 bytes each"));
        }
        if self.directories.len() > MAX_DIRECTORIES {
            return Err(Error::invalid("create", "more directories are recorded than a spec can name"));
        }
        Ok(())
    }
}

/// Builds a [`Spec`].
#[derive(Debug, Clone)]
#[must_use]
pub struct SpecBuilder {
    spec: Spec,
}

impl SpecBuilder {
    /// Sets the workspace.
    pub fn workspace(mut self, workspace: Workspace) -> Self {
        self.spec.workspace = workspace;
        self
    }

    /// Sets the root file system.
    pub fn root(mut self, root: RootFs) -> Self {
        self.spec.root = root;
        self
    }

    /// Sets all limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.spec.limits = limits;
        self
    }

    /// Sets the network policy.
    pub fn network(mut self, network: NetworkPolicy) -> Self {
        self.spec.network = network;
        self
    }

    /// Sets the tenant.
    pub fn tenant(mut self, tenant: TenantId) -> Self {
        self.spec.tenant = tenant;
        self
    }

    /// Adds a label.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.labels.insert(key.into(), value.into());
        self
    }

    /// Names a protection that may be weaker than asked.
    pub fn allow_weaker(mut self, protection: Protection) -> Self {
        self.spec.allow_weaker.insert(protection);
        self
    }

    /// Adds an option of one backend.
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.spec.attributes.insert(key.into(), value.into());
        self
    }

    /// Records which directory of the host a path of this spec stands for.
    pub fn directory(mut self, path: impl Into<PathBuf>, id: DirectoryId) -> Self {
        self.spec.directories.insert(path.into(), id);
        self
    }

    /// Checks and returns the spec.
    pub fn build(self) -> Result<Spec> {
        self.spec.validate()?;
        Ok(self.spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn only_what_is_lent_to_be_read_is_closed_to_the_file_api() {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            assert!(Workspace::Private { access }.check_change("write_file").is_ok());
            let lent = Workspace::HostDir { path: "/srv/x".into(), access };
            let refused = lent.check_change("write_file").err().map(|error| error.kind());
            assert_eq!(refused, (access == Access::ReadOnly).then_some(ErrorKind::Denied));
        }
    }

    #[test]
    fn the_schema_names_every_field() {
        let schema = serde_json::to_value(schemars::schema_for!(Spec)).unwrap();
        for field in ["workspace", "root", "limits", "network", "tenant", "labels", "allow_weaker", "attributes"] {
            assert!(schema["properties"].get(field).is_some(), "{field}");
        }
    }
}
