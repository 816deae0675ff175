//! A server of sandboxes for many tenants, over any backend.
//!
//! ```text
//! connection (Unix socket, TCP, TLS) -> gate (identity, scope) -> REST -> policy -> layers -> backend
//!                                                              |
//!                                                              '-> live sandboxes, by tenant and id
//! ```
//!
//! The server knows the contract only: the program gives it backends by name. REST translates and decides nothing.
//!
//! # Where to look
//!
//! - What tenants may ask for: `policy.rs`, which is pure. Bounds: `bounds.rs`.
//! - Quotas, rates and fair sharing: `quota/`, which is pure; `admission.rs` is its lock, `recorder.rs` its durable side.
//! - Layers around backends for traces, quota, audit and metrics: `layers/`. Metrics: `metrics.rs`.
//! - Bytes of audit records: `metering.rs`. Work at intervals: `upkeep.rs`.
//! - Live sandboxes and their execs: `live/`; the end of their time: `live/lease.rs`, which is pure; their
//!   changes then: `live/changes.rs`.
//! - Snapshots of all tenants, their files and quotas: `snapshots/`. Volumes of all tenants: `volumes.rs`.
//! - Images of the host, which the program manages: `images.rs`. Plugins, which the program hosts: `plugins.rs`. Pools,
//!   which the program owns: `pools.rs`.
//! - Callers and their scopes: `caller.rs`, `identity/`. Keys: `identity/keys.rs`. Tokens of an issuer: `identity/oidc/`.
//!   Certificates of clients: `identity/certificates.rs`.
//! - The position of a request in its client's trace: `trace.rs`. Spans: `tracer.rs`; their export: `otlp.rs`.
//! - The tasks that run now: `tasks.rs`.
//! - State that outlives the server: `store/`, one file for each table.
//! - Endpoints: `rest/`, one file each; their documents: `rest/views.rs`; errors: `rest/problem.rs`.
//! - The client of the command line: `client/`. The web pages: `dashboard/`.
//! - Sockets and connections: `listen/`. Start and stop: `server.rs`.
//! - Upgrades without a pause: `handover/`; requests for sandboxes of the version before: `rest/forward.rs`.
#![forbid(unsafe_code)]

mod admission;
mod bounds;
mod caller;
pub mod client;
mod dashboard;
mod handover;
mod identity;
mod ids;
mod images;
mod layers;
mod listen;
mod live;
mod metering;
mod metrics;
mod otlp;
mod plugins;
mod policy;
mod pools;
mod quota;
mod recorder;
mod refusal;
pub mod remote;
mod report;
pub mod rest;
mod server;
mod snapshots;
mod store;
mod tasks;
mod trace;
mod tracer;
mod turns;
mod upkeep;
mod volumes;

pub use admission::QueueBounds;
pub use bounds::Bounds;
pub use caller::{Caller, Proof, Scope};
pub use handover::{Control, Predecessor};
pub use identity::keys::{self, Key, NewKey};
pub use identity::{CertificateRules, Consent, Gate, Identities, Oidc, OidcConfig, Peer, check_listener};
pub use images::{
    AddedImage, AddedImages, DroppedMetadata, HostImage, HostImageConfig, HostImageDetails, HostImageLayer,
    HostImageList, HostImages, RemovedImages,
};
pub use listen::{ClientCertificates, Listen, ListenTls, Listener, TlsFiles};
pub use otlp::OtlpConfig;
pub use plugins::{HostPlugin, HostPlugins, PluginAnswer, PluginCall, PluginError, PluginItem, PluginMethod};
pub use policy::{Policy, ServedBackend};
pub use pools::{HostPool, HostPools};
pub use quota::{Capacity, Prices, Quota, QuotaFile, Total};
pub use rest::document;
pub use server::{Server, ServerConfig};
pub use snapshots::{SnapshotArchive, WorkspaceArchive};
pub use store::{Database, KeyRecord, Store, Usage, UsageRow};
pub use volumes::VolumesConfig;
