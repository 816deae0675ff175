//! The REST API: translates requests to calls of the contract, and results to documents. It decides nothing: the policy,
//! the layers around the backends and the table of sandboxes do.

mod actions;
mod archives;
mod attach;
mod audit;
mod authentication;
mod browser;
mod changes;
mod code;
mod entries;
mod events;
mod execs;
mod extract;
mod files;
mod forward;
mod idempotency;
mod images;
mod linger;
mod meta;
pub mod network;
mod openapi;
mod output;
mod pages;
mod plugins;
mod pools;
pub(crate) mod ports;
pub mod problem;
mod ranges;
mod refused;
mod runs;
mod sandboxes;
mod slots;
mod snapshots;
mod tasks;
mod upload;
mod usage;
pub mod views;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use cofferdam_audit::Log;
use cofferdam_code::CodeConfig;
use cofferdam_contract::{Error, ErrorKind, TenantId};
use opentelemetry::KeyValue;
use opentelemetry::trace::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter, UtoipaMethodRouterExt};
use utoipa_axum::routes;

pub use attach::{Control, STDERR, STDOUT};
pub use audit::{AuditLine, AuditPage};
pub(crate) use changes::SkippedChanges;
pub use openapi::document;
pub(crate) use ports::END as TUNNEL_END;
pub(crate) use usage::{RELOAD as QUOTA_RELOAD, load_quotas};

/// The trailer with the report of a copy.
pub(crate) const COPY_REPORT: &str = "cofferdam-copy-report";

/// The header with the files that a layer of changes lacks.
pub(crate) const CHANGES_SKIPPED: HeaderName = HeaderName::from_static("cofferdam-changes-skipped");

/// The time after which answers are forgotten, in seconds.
pub(crate) const FORGET_AFTER: i64 = 24 * 60 * 60;
/// The work with the audit log at once: searches of tenants, searches and verifications of operators, and verifications of
/// tenants.
const AUDIT_TURNS: [usize; 3] = [2, 1, 1];
/// The pulls and loads of images at once, of which one is of a tenant.
const IMAGE_TURNS: usize = 2;
/// The calls of plugins at once, of a tenant and of all. A plugin takes 256 at once.
const PLUGIN_CALLS: [usize; 2] = [32, 256];
/// The paths of requests that are answered by a full server too.
const UNCOUNTED: [&str; 2] = ["/v1/health", "/v1/ready"];

use crate::admission::{Admission, QueueBounds};
use crate::bounds::Bounds;
use crate::caller::{Caller, Scope};
use crate::dashboard;
use crate::handover::Predecessor;
use crate::identity::Gate;
use crate::images::HostImages;
use crate::live::Sandboxes;
use crate::metrics::Metrics;
use crate::plugins::HostPlugins;
use crate::policy::Policy;
use crate::pools::HostPools;
use crate::quota::{Capacity, Quota};
use crate::snapshots::Snapshots;
use crate::store::Store;
use crate::tasks::{Task, TaskGuard, TaskKind, Tasks};
use crate::tracer::{SANDBOX, Span, Tracer};
use crate::turns::Turns;
use crate::volumes::Volumes;
use idempotency::Idempotency;
use problem::Failure;
use refused::Refusals;
use slots::{Slots, TenantSlot};

/// The answer of most handlers.
type Answer = Result<Response, Failure>;

/// The state that all handlers share.
#[derive(Clone)]
pub struct App(Arc<Shared>);

/// The parts of a server that handlers use besides sandboxes.
#[derive(Clone)]
pub struct Services {
    /// Quotas and rates.
    pub admission: Arc<Admission>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The audit log.
    pub audit: Option<Log>,
    /// The state that outlives the server.
    pub store: Option<Store>,
    /// The snapshots of all tenants.
    pub snapshots: Option<Arc<Snapshots>>,
    /// The images of the host.
    pub images: Option<Arc<dyn HostImages>>,
    /// The plugins that the server hosts.
    pub plugins: Option<Arc<dyn HostPlugins>>,
    /// The pools of the host.
    pub pools: Option<Arc<dyn HostPools>>,
    /// The process before this one, after an upgrade.
    pub predecessor: Option<Arc<Predecessor>>,
    /// Spans.
    pub tracer: Tracer,
    /// The tasks that run now.
    pub tasks: Arc<Tasks>,
}

struct Shared {
    bounds: Bounds,
    policy: Policy,
    code: CodeConfig,
    sandboxes: Arc<Sandboxes>,
    gate: Gate,
    services: Services,
    idempotency: Idempotency,
    requests: Arc<Semaphore>,
    slots: Arc<Slots>,
    plugin_slots: Arc<Slots>,
    audit_turns: [Turns; 3],
    image_turns: Turns,
    refusals: [Refusals; 2],
    document: String,
    stop: CancellationToken,
}

impl App {
    /// Creates the state.
    pub fn new(
        bounds: Bounds,
        policy: Policy,
        code: CodeConfig,
        sandboxes: Arc<Sandboxes>,
        gate: Gate,
        services: Services,
        stop: CancellationToken,
    ) -> Self {
        let requests = Arc::new(Semaphore::new(bounds.requests));
        let slots = Arc::new(Slots::new(bounds.requests_of_tenant));
        let idempotency = Idempotency::default();
        let document = document();
        Self(Arc::new(Shared {
            bounds,
            policy,
            code,
            sandboxes,
            gate,
            services,
            idempotency,
            requests,
            slots,
            plugin_slots: Arc::new(Slots::shared(PLUGIN_CALLS[0], PLUGIN_CALLS[1])),
            audit_turns: AUDIT_TURNS.map(Turns::new),
            image_turns: Turns::new(IMAGE_TURNS),
            refusals: Default::default(),
            document,
            stop,
        }))
    }

    /// Creates a state without backends, for the document only.
    fn for_document() -> Self {
        let policy = Policy {
            backends: Default::default(),
            default_backend: String::new(),
            max_limits: Default::default(),
            allow_weaker: Default::default(),
            images: false,
            network: false,
            workspaces: false,
        };
        let gate = Gate {
            owner: u32::MAX,
            tenant: Default::default(),
            without_keys: false,
            store: None,
            identities: Default::default(),
        };
        let requests = Arc::new(Semaphore::new(0));
        Self(Arc::new(Shared {
            bounds: Bounds::default(),
            policy,
            code: CodeConfig::default(),
            sandboxes: Arc::default(),
            gate,
            services: Services {
                admission: Admission::new(Quota::default(), Capacity::default(), QueueBounds::default()),
                metrics: Arc::default(),
                audit: None,
                store: None,
                snapshots: None,
                images: None,
                plugins: None,
                pools: None,
                predecessor: None,
                tracer: Tracer::default(),
                tasks: Arc::default(),
            },
            idempotency: Idempotency::default(),
            requests,
            slots: Arc::new(Slots::new(0)),
            plugin_slots: Arc::new(Slots::new(0)),
            audit_turns: AUDIT_TURNS.map(Turns::new),
            image_turns: Turns::new(IMAGE_TURNS),
            refusals: Default::default(),
            document: String::new(),
            stop: CancellationToken::new(),
        }))
    }

    fn bounds(&self) -> &Bounds {
        &self.0.bounds
    }

    fn policy(&self) -> &Policy {
        &self.0.policy
    }

    fn code(&self) -> &CodeConfig {
        &self.0.code
    }

    fn sandboxes(&self) -> &Arc<Sandboxes> {
        &self.0.sandboxes
    }

    fn gate(&self) -> &Gate {
        &self.0.gate
    }

    fn services(&self) -> &Services {
        &self.0.services
    }

    /// Returns the state that outlives the server.
    fn store(&self) -> Result<&Store, Failure> {
        let missing = || Error::new(ErrorKind::Unavailable, "open database", "the server has no database");
        self.0.services.store.as_ref().ok_or_else(|| missing().into())
    }

    /// Returns the snapshots of all tenants.
    fn snapshots(&self) -> Result<&Arc<Snapshots>, Failure> {
        let missing = || Error::new(ErrorKind::Unavailable, "open snapshots", "the server has no snapshots");
        self.0.services.snapshots.as_ref().ok_or_else(|| missing().into())
    }

    /// Returns the images of the host.
    fn images(&self) -> Result<Arc<dyn HostImages>, Failure> {
        let missing = || Error::unsupported("open image store", "the server has no image store");
        self.0.services.images.clone().ok_or_else(|| missing().into())
    }

    /// Returns the volumes of all tenants.
    fn volumes(&self) -> Result<&Arc<Volumes>, Failure> {
        Ok(self.sandboxes().volumes()?)
    }

    /// Returns the process before this one, if it still has sandboxes.
    fn predecessor(&self) -> Option<&Arc<Predecessor>> {
        self.0.services.predecessor.as_ref().filter(|predecessor| !predecessor.is_gone())
    }

    fn document(&self) -> String {
        self.0.document.clone()
    }

    /// Takes a permit for a request, if the server has one left.
    fn request_permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.0.requests).try_acquire_owned().map_err(|_| {
            let wait = Duration::from_secs(1);
            crate::refusal::overloaded("admit", "the server answers too many requests now", wait).into()
        })
    }

    /// Returns the turns of searches of the audit log, of tenants or of operators.
    fn audit_turns(&self, of_operators: bool) -> &Turns {
        &self.0.audit_turns[usize::from(of_operators)]
    }

    /// Returns the turns of tenants that verify their part of the audit log.
    fn verify_turns(&self) -> &Turns {
        &self.0.audit_turns[2]
    }

    /// Returns the turns of pulls and loads of images.
    fn image_turns(&self) -> &Turns {
        &self.0.image_turns
    }

    /// Returns the records of refused calls, of unknown or of known callers.
    fn refusals(&self, of_known: bool) -> &Refusals {
        &self.0.refusals[usize::from(of_known)]
    }

    /// Takes a slot for a request of a tenant, if the tenant has one left.
    fn tenant_slot(&self, tenant: &TenantId) -> Result<TenantSlot, Failure> {
        self.0.slots.take(tenant).ok_or_else(|| {
            let wait = Duration::from_secs(1);
            crate::refusal::exhausted("admit", "the server answers too many requests of the tenant now", wait).into()
        })
    }

    /// Takes one of a tenant's calls of plugins, if there is one left.
    fn plugin_slot(&self, tenant: &TenantId) -> Result<TenantSlot, Failure> {
        self.0.plugin_slots.take(tenant).ok_or_else(|| {
            let wait = Duration::from_secs(1);
            let message = "too many calls of plugins run now";
            crate::refusal::exhausted("call plugin", message, wait).into()
        })
    }

    /// Starts the span and the task of a connection that is no request any more.
    fn stream(&self, name: &'static str, caller: &Caller, sandbox: Option<&str>) -> (Span, TaskGuard) {
        let Services { tracer, tasks, .. } = self.services();
        let span = tracer.start(name, sandbox.map(|id| KeyValue::new(SANDBOX, id.to_owned())));
        let task = Task::new(TaskKind::Stream, name, Some(&caller.tenant));
        (span, tasks.add(Task { sandbox: sandbox.map(str::to_owned), ..task }))
    }

    /// Waits until the key of a caller is no longer valid. Streams end then.
    async fn key_ended(&self, caller: &Caller) {
        let mut checks = tokio::time::interval(self.bounds().stall_time / 4);
        checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            if !self.gate().still_accepts(caller).await {
                return;
            }
        }
    }

    /// Returns a token that is cancelled when the server stops and open connections must end.
    fn stop_token(&self) -> CancellationToken {
        self.0.stop.clone()
    }
}

/// Runs work to its end even if the client no longer waits for it.
async fn detached<T: Send + 'static, E: From<Error> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E> {
    tokio::spawn(work.with_current_context().in_current_span()).await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Internal, "answer", "the work ended early").with_source(error).into())
    })
}

/// Returns the routes, with the state.
pub fn router(app: App) -> Router {
    let (router, _) = routes_of(&app).split_for_parts();
    router
        .merge(dashboard::routes())
        .fallback(async || Failure::from(Error::new(ErrorKind::NotFound, "route", "there is no such endpoint")))
        .method_not_allowed_fallback(async || {
            let error = Error::invalid("route", "the endpoint has no such method");
            Failure(StatusCode::METHOD_NOT_ALLOWED, error)
        })
        .layer(middleware::from_fn_with_state(app.clone(), admit))
        .layer(CatchPanicLayer::custom(|_| {
            Failure::from(Error::new(ErrorKind::Internal, "answer", "the server failed")).into_response()
        }))
        .with_state(app)
}

/// Refuses a request when the server answers too many.
async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    // A busy server is neither dead nor stopping.
    if UNCOUNTED.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let permit = match app.request_permit() {
        Ok(permit) => permit,
        Err(failure) => return failure.into_response(),
    };
    slots::hold(next.run(request).await, permit)
}

/// Returns all routes. Each has its scope, here and in the document, and the time until its answer begins.
fn routes_of(app: &App) -> OpenApiRouter<App> {
    let Bounds { answer_time, work_time, transfer_time, max_life, .. } = *app.bounds();
    let quick = |scope, routes| guarded(app, scope, answer_time, routes);
    let work = |scope, routes| guarded(app, scope, work_time, routes);
    let transfer = |scope, routes| guarded(app, scope, transfer_time, routes);
    // Programs have limits of their own, which end no later.
    let run = |scope, routes| guarded(app, scope, max_life + answer_time, routes);
    OpenApiRouter::new()
        .routes(routes!(meta::health))
        .routes(routes!(meta::ready))
        .routes(routes!(meta::version))
        .routes(routes!(meta::openapi))
        .routes(quick(Scope::SandboxesRead, routes!(meta::backends)))
        .routes(quick(Scope::SandboxesRead, routes!(images::list)))
        .routes(quick(Scope::SandboxesRead, routes!(images::inspect)))
        .routes(transfer(Scope::Admin, routes!(images::pull)))
        .routes(transfer(Scope::Admin, routes!(images::load)))
        .routes(work(Scope::Admin, routes!(images::prune)))
        .routes(work(Scope::Admin, routes!(images::delete)))
        .routes(quick(Scope::Plugins, routes!(plugins::list)))
        .routes(quick(Scope::Plugins, routes!(plugins::get)))
        .routes(run(Scope::Plugins, routes!(plugins::call)))
        .routes(work(Scope::SandboxesWrite, idempotent(app, routes!(sandboxes::create))))
        .routes(quick(Scope::SandboxesRead, routes!(sandboxes::list)))
        .routes(quick(Scope::SandboxesRead, routes!(sandboxes::get)))
        .routes(work(Scope::SandboxesWrite, routes!(sandboxes::delete)))
        .routes(quick(Scope::SandboxesWrite, routes!(sandboxes::extend)))
        .routes(quick(Scope::SandboxesWrite, routes!(sandboxes::rename)))
        .routes(quick(Scope::SandboxesWrite, routes!(sandboxes::pause)))
        .routes(quick(Scope::SandboxesWrite, routes!(sandboxes::resume)))
        .routes(quick(Scope::SandboxesRead, routes!(sandboxes::stats)))
        .routes(quick(Scope::SandboxesRead, routes!(network::get)))
        .routes(quick(Scope::SandboxesWrite, routes!(network::set)))
        .routes(transfer(Scope::SnapshotsWrite, idempotent(app, routes!(snapshots::take))))
        .routes(work(Scope::SandboxesWrite, idempotent(app, routes!(snapshots::fork))))
        .routes(quick(Scope::SnapshotsRead, routes!(snapshots::list)))
        .routes(quick(Scope::SnapshotsRead, routes!(snapshots::get)))
        .routes(quick(Scope::SnapshotsRead, routes!(snapshots::download)))
        .routes(transfer(Scope::SnapshotsWrite, idempotent_upload(app, routes!(snapshots::upload))))
        .routes(quick(Scope::SnapshotsWrite, routes!(snapshots::delete)))
        .routes(work(Scope::VolumesWrite, idempotent(app, routes!(volumes::create))))
        .routes(quick(Scope::VolumesRead, routes!(volumes::list)))
        .routes(quick(Scope::VolumesRead, routes!(volumes::get)))
        .routes(work(Scope::VolumesWrite, routes!(volumes::delete)))
        .routes(quick(Scope::ExecsWrite, idempotent(app, routes!(execs::start))))
        .routes(quick(Scope::ExecsRead, routes!(execs::list)))
        .routes(quick(Scope::ExecsRead, routes!(execs::get)))
        .routes(quick(Scope::ExecsRead, routes!(execs::wait)))
        .routes(quick(Scope::ExecsWrite, routes!(execs::signal)))
        .routes(quick(Scope::ExecsWrite, routes!(execs::stdin)))
        .routes(quick(Scope::ExecsRead, routes!(output::follow)))
        .routes(quick(Scope::ExecsRead, routes!(attach::attach)))
        .routes(run(Scope::Ports, routes!(ports::proxy)))
        .routes(run(Scope::Ports, routes!(ports::proxy_root)))
        .routes(quick(Scope::Ports, routes!(ports::tunnel)))
        .routes(run(Scope::ExecsWrite, routes!(code::execute)))
        .routes(quick(Scope::ExecsWrite, idempotent(app, routes!(code::open))))
        .routes(quick(Scope::ExecsRead, routes!(code::list)))
        .routes(run(Scope::ExecsWrite, routes!(code::call)))
        .routes(quick(Scope::ExecsWrite, routes!(code::interrupt)))
        .routes(quick(Scope::ExecsWrite, routes!(code::close)))
        .routes(run(Scope::Runs, routes!(runs::run)))
        .routes(quick(Scope::FilesRead, routes!(files::read)))
        .routes(transfer(Scope::FilesWrite, routes!(files::write)))
        .routes(transfer(Scope::FilesWrite, routes!(entries::put)))
        .routes(quick(Scope::FilesWrite, routes!(files::remove)))
        .routes(quick(Scope::FilesWrite, routes!(files::rename)))
        .routes(quick(Scope::FilesRead, routes!(files::list)))
        .routes(quick(Scope::FilesRead, routes!(files::stat)))
        .routes(work(Scope::FilesRead, routes!(changes::read)))
        .routes(work(Scope::ChangesApply, routes!(changes::apply)))
        .routes(quick(Scope::FilesRead, routes!(archives::read)))
        .routes(transfer(Scope::FilesWrite, routes!(archives::write)))
        .routes(quick(Scope::FilesRead, routes!(archives::watch)))
        .routes(quick(Scope::UsageRead, routes!(usage::own)))
        .routes(quick(Scope::UsageRead, routes!(usage::quota)))
        .routes(quick(Scope::AuditRead, routes!(audit::own)))
        .routes(transfer(Scope::AuditRead, routes!(audit::verify_own)))
        .routes(quick(Scope::Admin, routes!(audit::all)))
        .routes(transfer(Scope::Admin, routes!(audit::verify)))
        .routes(quick(Scope::Admin, routes!(usage::all)))
        .routes(quick(Scope::Admin, routes!(usage::quotas)))
        .routes(quick(Scope::Admin, routes!(usage::quota_of)))
        .routes(quick(Scope::Admin, routes!(usage::set_quota)))
        .routes(quick(Scope::Admin, routes!(usage::remove_quota)))
        .routes(quick(Scope::Admin, routes!(usage::metrics)))
        .routes(quick(Scope::Admin, routes!(pools::list)))
        .routes(quick(Scope::Admin, routes!(tasks::list)))
}

/// Requires a scope of the callers of routes, and documents it. Their answers begin within `limit`.
fn guarded(app: &App, scope: Scope, limit: Duration, routes: UtoipaMethodRouter<App>) -> UtoipaMethodRouter<App> {
    let (schemas, mut paths, methods) = routes;
    openapi::require(&mut paths, scope);
    let gate = move |State(app): State<App>, request: Request, next: Next| async move {
        authentication::require(app, scope, limit, request, next).await
    };
    (schemas, paths, methods.layer(middleware::from_fn_with_state(app.clone(), gate)))
}

/// Gives repeated requests with the same key the first one's answer.
fn idempotent(app: &App, routes: UtoipaMethodRouter<App>) -> UtoipaMethodRouter<App> {
    routes.layer(middleware::from_fn_with_state(app.clone(), idempotency::once))
}

/// Gives repeated uploads with the same key the first one's answer.
fn idempotent_upload(app: &App, routes: UtoipaMethodRouter<App>) -> UtoipaMethodRouter<App> {
    routes.layer(middleware::from_fn_with_state(app.clone(), idempotency::once_uploaded))
}
