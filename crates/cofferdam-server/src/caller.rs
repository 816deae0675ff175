//! The caller of a request: a tenant and what it may do.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cofferdam_contract::{Error, TenantId};
use serde::{Deserialize, Serialize};

use crate::identity::PeerCertificate;

macro_rules! scopes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A permission of a key.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Scope {
            $($(#[$doc])* $variant,)*
        }

        impl Scope {
            /// All scopes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the name in options and documents.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

scopes! {
    /// List sandboxes and read their state.
    SandboxesRead = "sandboxes:read",
    /// Create, change and delete sandboxes.
    SandboxesWrite = "sandboxes:write",
    /// List execs, read their output and wait for them.
    ExecsRead = "execs:read",
    /// Start, feed and signal execs.
    ExecsWrite = "execs:write",
    /// Read and list files.
    FilesRead = "files:read",
    /// Write and delete files.
    FilesWrite = "files:write",
    /// Write reviewed changes of workspaces to their directories of the host. Never granted unless it is named.
    ChangesApply = "changes:apply",
    /// List and download snapshots, and create sandboxes from them.
    SnapshotsRead = "snapshots:read",
    /// Take, upload and delete snapshots.
    SnapshotsWrite = "snapshots:write",
    /// List volumes, and mount them read-only.
    VolumesRead = "volumes:read",
    /// Create and delete volumes, and mount them.
    VolumesWrite = "volumes:write",
    /// Connect to ports of sandboxes.
    Ports = "ports",
    /// List plugins and call their methods.
    Plugins = "plugins",
    /// Run one command in a sandbox of its own.
    Runs = "runs",
    /// Read the tenant's own usage and quota.
    UsageRead = "usage:read",
    /// Search the audit log for the tenant's own lines.
    AuditRead = "audit:read",
    /// Read the server's metrics, and the usage and audit lines of all tenants. Manage the images of the host.
    Admin = "admin",
}

impl Scope {
    /// Returns the scopes of a tenant: all but [`Scope::Admin`] and [`Scope::ChangesApply`].
    pub fn of_tenants() -> BTreeSet<Self> {
        let named = [Self::Admin, Self::ChangesApply];
        Self::ALL.iter().copied().filter(|scope| !named.contains(scope)).collect()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.iter().copied().find(|scope| scope.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|scope| scope.as_str()).collect();
            Error::invalid("parse scope", format!("there is no scope '{}'", text.escape_debug()))
                .with_remedy(format!("use one of {}", known.join(", ")))
        })
    }
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The tenant whose objects the caller sees.
    pub tenant: TenantId,
    /// The permissions of the caller.
    pub scopes: BTreeSet<Scope>,
    /// The key's public part, or how the caller was recognised without a key.
    pub key: String,
    /// True for the server's own user over the private socket, who may name directories of this host.
    pub is_operator: bool,
    /// The proof of the caller's identity.
    pub proof: Proof,
    /// The certificate of the connection.
    pub certificate: Option<Arc<PeerCertificate>>,
}

/// A proof of identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// The connection itself, perhaps with its certificate.
    Connection,
    /// A key, which can be revoked.
    Key,
    /// A signed token, until a second since 1970.
    Until(i64),
}

impl Caller {
    /// Returns true if the caller has the scope.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }
}
