//! Start and stop of a server.
//!
//! ```text
//! settling what a killed server left --> serving --(stop)--> draining: no new sandbox, requests end
//!   --(all ended | time is over)--> closing sandboxes --> writing the last usage --> stopped
//! serving --(another process took over)--> handed over: no new connection, sandboxes end --> draining
//! ```

use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::Log;
use cofferdam_code::CodeConfig;
use cofferdam_contract::{Backend, Error, ErrorKind, Result};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{Admission, QueueBounds};
use crate::bounds::Bounds;
use crate::handover::{Control, Followed, Offer, Order, Predecessor, Ready, Shared, Successor, keep_files, offers};
use crate::identity::Gate;
use crate::ids::new_id;
use crate::images::HostImages;
use crate::layers::Around;
use crate::layers::audit::AuditConcern;
use crate::layers::metrics::MetricsConcern;
use crate::layers::quota::{QuotaConcern, SandboxAccounts, recover};
use crate::layers::traces::TracesConcern;
use crate::layers::volumes::WithVolumes;
use crate::listen::{Connections, Listener};
use crate::live::Sandboxes;
use crate::metering::AuditBytes;
use crate::metrics::Metrics;
use crate::otlp::{Exporter, OtlpConfig};
use crate::plugins::HostPlugins;
use crate::policy::Policy;
use crate::pools::HostPools;
use crate::quota::{Capacity, Quota, QuotaFile};
use crate::recorder::Recorder;
use crate::report;
use crate::rest::{App, Services, load_quotas, router};
use crate::snapshots::Snapshots;
use crate::store::{Store, now};
use crate::tasks::Tasks;
use crate::tracer::Tracer;
use crate::upkeep::{Followed as FollowedQuotas, charge, close_again, keep_up};
use crate::volumes::{Volumes, VolumesConfig};

/// The reason for the end of sandboxes of a process that stopped.
const STOPPED: &str = "it was closed when the server stopped";
/// The time between two checks for sandboxes that are left.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The time for a predecessor to close its sandboxes, whose changes are kept, after its requests have ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(150);
/// The time for the last usage to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of a server.
pub struct ServerConfig {
    /// Bounds.
    pub bounds: Bounds,
    /// The policy for tenants, with the backends.
    pub policy: Policy,
    /// The recognition of callers.
    pub gate: Gate,
    /// The state that outlives the server.
    pub store: Store,
    /// The directory of the snapshots' files, which is private to this server.
    pub snapshots: std::path::PathBuf,
    /// The directory in which the changes of copy-on-write workspaces are kept, private to the server's user. Without one,
    /// the policy must refuse such workspaces.
    pub changes: Option<std::path::PathBuf>,
    /// The images of the host. `None` lists none.
    pub images: Option<Arc<dyn HostImages>>,
    /// The plugins that tenants may call. `None` has none.
    pub plugins: Option<Arc<dyn HostPlugins>>,
    /// The volumes of tenants.
    pub volumes: VolumesConfig,
    /// The name of this server in a database that several servers share.
    pub name: String,
    /// The quota of tenants that have none of their own.
    pub quota: Quota,
    /// The room for all tenants together.
    pub capacity: Capacity,
    /// The queue for a full server.
    pub queue: QueueBounds,
    /// The label whose value usage is counted by.
    pub usage_label: Option<String>,
    /// The audit log.
    pub audit: Option<Log>,
    /// The languages and bounds of code execution. Its audit log is not used: that of the server has the execs.
    pub code: CodeConfig,
    /// The domain below which `PORT-SANDBOX` leads to a port of a sandbox.
    pub port_domain: Option<String>,
    /// The export of spans.
    pub otlp: Option<OtlpConfig>,
}

/// A server that does not listen yet.
pub struct Server {
    config: ServerConfig,
    sandboxes: Arc<Sandboxes>,
    /// The tasks of connections.
    connected: TaskTracker,
    predecessor: Option<Predecessor>,
    quotas: Option<FollowedQuotas>,
    pools: Option<Arc<dyn HostPools>>,
    control: Control,
    orders: mpsc::Receiver<Order>,
}

impl Server {
    /// Creates a server.
    ///
    /// # Errors
    /// - `InvalidInput` if the default backend is not one of the backends, or for a malformed quota.
    /// - `Denied` if other users can change the directory of volumes.
    pub fn new(config: ServerConfig) -> Result<Self> {
        let Policy { backends, default_backend, .. } = &config.policy;
        if !backends.contains_key(default_backend) {
            return Err(Error::invalid("serve", format!("the server has no backend '{default_backend}'")));
        }
        if config.policy.workspaces && config.changes.is_none() {
            return Err(Error::invalid("serve", "copy-on-write workspaces need a directory for their changes"));
        }
        config.quota.check()?;
        let (control, orders) = Control::new();
        let sandboxes = Arc::new(Sandboxes::new(config.changes.clone(), Volumes::open(config.volumes.clone())?));
        let connected = TaskTracker::new();
        Ok(Self { config, sandboxes, connected, predecessor: None, quotas: None, pools: None, control, orders })
    }

    /// Returns a function that returns true while a client is connected or a sandbox lives.
    pub fn is_busy(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let (sandboxes, connected) = (Arc::clone(&self.sandboxes), self.connected.clone());
        move || !connected.is_empty() || !sandboxes.is_empty()
    }

    /// Reads the quotas of tenants that have none of their own, the quotas of all tenants together and the prices by a
    /// function, now and again at intervals. If it fails later, the old ones remain.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn with_quotas(self, read: impl Fn() -> Result<QuotaFile> + Send + Sync + 'static) -> Result<Self> {
        Ok(Self { quotas: Some(FollowedQuotas::new(Arc::new(read))?), ..self })
    }

    /// Takes over from another process, which keeps its sandboxes until they end.
    #[must_use]
    pub fn after(self, predecessor: Option<Predecessor>) -> Self {
        Self { predecessor, ..self }
    }

    /// Shows the state of the host's pools to operators.
    #[must_use]
    pub fn with_pools(self, pools: Arc<dyn HostPools>) -> Self {
        Self { pools: Some(pools), ..self }
    }

    /// Returns a handle that hands over.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Serves until `stop` is cancelled, then drains, closes all sandboxes and returns. Plugins end in any case.
    ///
    /// # Errors
    /// - `Unavailable` if the database fails at the start, or if the predecessor ends before the handover.
    pub async fn serve(self, listeners: Vec<Listener>, stop: CancellationToken) -> Result<()> {
        let hosted = self.config.plugins.clone();
        let served = self.serve_until(listeners, stop).await;
        // Also if the server could not start.
        if let Some(hosted) = hosted {
            hosted.close().await;
        }
        served
    }

    async fn serve_until(self, listeners: Vec<Listener>, stop: CancellationToken) -> Result<()> {
        let Self { config, sandboxes, connected, predecessor, quotas, pools, control, mut orders } = self;
        let (predecessor, instance) = (predecessor.map(Arc::new), new_id("in")?);
        let ServerConfig {
            bounds,
            mut policy,
            gate,
            store,
            snapshots,
            changes: _,
            images,
            plugins,
            volumes: _,
            name,
            quota,
            capacity,
            queue,
            usage_label,
            audit,
            mut code,
            port_domain,
            otlp,
        } = config;
        code.audit = None;
        let admission = Admission::new(quota, capacity, queue);
        if let Some(quotas) = &quotas {
            admission.set_default(quotas.current());
        }
        let audit_bytes = Arc::new(AuditBytes::new(Arc::clone(&admission)));
        if let Some(log) = &audit {
            let audit_bytes = Arc::clone(&audit_bytes);
            log.set_meter(move |tenant, bytes| audit_bytes.count(tenant, bytes));
        }
        let lives = |instance: &str| predecessor.as_ref().is_some_and(|other| other.instance() == instance);
        let left = recover(&store, &name, lives).await?;
        if left > 0 {
            report::warning(&format!("settled {left} sandboxes of a server that was killed"));
        }
        admission.set_quotas(load_quotas(&store).await?);
        store.usage_of_tenants(admission.today()).await?.iter().for_each(|row| admission.add(row));
        let (recorder, recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let (metrics, tasks) = (Arc::new(Metrics::default()), Arc::new(Tasks::default()));
        let accounts = Arc::new(SandboxAccounts::default());
        pools.iter().for_each(|pools| metrics.add_pools(Arc::clone(pools)));
        let exporter = otlp.map(|otlp| Exporter::start(&otlp, &instance, Arc::clone(&metrics))).transpose()?;
        let tracer = exporter.as_ref().map(Exporter::tracer).unwrap_or_default();
        for (backend, served) in &mut policy.backends {
            let quota = QuotaConcern {
                backend: backend.clone(),
                admission: Arc::clone(&admission),
                recorder: recorder.clone(),
                store: store.clone(),
                server: name.clone(),
                instance: instance.clone(),
                label: usage_label.clone(),
                tasks: Arc::clone(&tasks),
                accounts: Arc::clone(&accounts),
            };
            let inner = Arc::clone(&served.backend);
            served.backend = layered(inner, backend, quota, audit.clone(), &metrics, &tracer);
        }
        let (files, server) = (bounds.snapshot, name.clone());
        let is_shared = predecessor.is_some();
        let snapshots =
            Snapshots::open(snapshots, server, store.clone(), Arc::clone(&admission), files, is_shared).await?;
        let offers = offers(&listeners)?;

        let tick = bounds.tick;
        let kill = CancellationToken::new();
        let services = Services {
            admission: Arc::clone(&admission),
            metrics,
            audit,
            store: Some(store.clone()),
            snapshots: Some(Arc::clone(&snapshots)),
            images,
            plugins,
            pools,
            predecessor: predecessor.clone(),
            tracer,
            tasks: Arc::clone(&tasks),
        };
        let app = App::new(bounds.clone(), policy, code, Arc::clone(&sandboxes), gate, services, kill.clone());
        let router = router(app);
        let accepting = stop.child_token();
        let public =
            Connections::new(bounds.clone(), router.clone(), port_domain, connected, accepting.clone(), kill.clone());
        let shared = Shared { store: store.clone(), admission: Arc::clone(&admission), snapshots };
        let following = match &predecessor {
            Some(predecessor) => {
                let predecessor = Arc::clone(predecessor);
                let followed = Followed { predecessor, server: name, shared: shared.clone() };
                Some(tasks.spawn("follow the process before", followed.take_over().await?))
            }
            None => None,
        };
        let expiry = tasks.spawn("close expired sandboxes", Arc::clone(&sandboxes).close_expired(tick));
        let serving = tasks.spawn("admit waiting creates", Arc::clone(&admission).serve_waiting());
        let lost = store.clone();
        let upkeep = tasks.spawn("update quotas and records", keep_up(store, admission, instance.clone(), quotas));
        let closing = tasks.spawn("close sandboxes again", close_again(Arc::clone(&accounts)));
        let settling = tasks
            .spawn("charge live sandboxes", charge(Arc::clone(&accounts), Arc::clone(&audit_bytes), recorder.clone()));
        let accept = |listener: Listener| tasks.spawn("accept connections", public.clone().accept(listener));
        let accepts: Vec<_> = listeners.into_iter().map(accept).collect();
        control.is_serving();
        let successor = next_successor(&mut orders, predecessor.as_deref(), &instance, offers.as_deref(), &stop).await;
        // Further orders are refused.
        drop(orders);
        if let (Some(_), Some(offers)) = (&successor, &offers) {
            keep_files(offers);
            accepting.cancel();
            sandboxes.refuse_further();
        }
        for task in accepts {
            // A panic there is printed by the runtime.
            let _ = task.await;
        }
        drop(offers);
        let answering = CancellationToken::new();
        let private =
            Connections::new(bounds.clone(), router, None, TaskTracker::new(), answering.clone(), kill.clone());
        if let Some((successor, ready)) = successor {
            ready.go(&successor).await;
            tokio::select! {
                () = private.serve_successor(&successor) => {}
                () = shared.follow_successor() => {}
                () = no_work(&public, &sandboxes) => {}
                () = tokio::time::sleep(bounds.handover_time) => {}
                () = stop.cancelled() => {}
            }
            successor.refuse_connections().await;
            control.keep(successor);
        }
        answering.cancel();
        sandboxes.refuse_new();
        let drain_time = bounds.drain_time;
        let stop_predecessor = async {
            if let Some(predecessor) = &predecessor {
                predecessor.stop(drain_time + CLOSE_TIMEOUT + FLUSH_TIMEOUT).await;
            }
        };
        let stop_own = async {
            drain([&public, &private], drain_time, &kill).await;
            expiry.abort();
            upkeep.abort();
            settling.abort();
            serving.abort();
            let lose = lost.lose_sandboxes(&instance, now(), STOPPED);
            match tokio::time::timeout(FLUSH_TIMEOUT, lose).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => report::warning(&error.to_string()),
                Err(_) => report::warning("the database does not answer"),
            }
            sandboxes.stop().await;
            if tokio::time::timeout(FLUSH_TIMEOUT, accounts.close_again()).await.is_err() {
                report::warning("some sandboxes could not be closed");
            }
            closing.abort();
            drop(accounts);
            // The recorder ends when the last backend has gone with the connections.
            drop((sandboxes, public, private));
            audit_bytes.flush(&recorder).await;
            drop(recorder);
            if tokio::time::timeout(FLUSH_TIMEOUT, recording).await.is_err() {
                report::warning("some usage could not be recorded");
            }
        };
        tokio::join!(stop_own, stop_predecessor);
        following.inspect(tokio::task::JoinHandle::abort);
        if let Some(exporter) = exporter {
            exporter.stop().await;
        }
        Ok(())
    }
}

/// Waits for a process that is ready to take over, or until the server stops.
async fn next_successor(
    orders: &mut mpsc::Receiver<Order>,
    predecessor: Option<&Predecessor>,
    instance: &str,
    offers: Option<&[Offer]>,
    stop: &CancellationToken,
) -> Option<(Successor, Ready)> {
    let next = async {
        loop {
            // The server has a control itself until it is dropped.
            let Some(order) = orders.recv().await else { std::future::pending().await };
            let Some(offers) = offers else {
                let message = "the private socket of a server is not handed over";
                order.refuse(Error::unsupported("hand over", message).with_remedy("use --listen or --socket"));
                continue;
            };
            if predecessor.is_some_and(|predecessor| !predecessor.is_settled()) {
                let message = "the process before this one still has sandboxes, or is being settled";
                order.refuse(Error::new(ErrorKind::Conflict, "hand over", message).with_remedy("try again later"));
            } else if let Some(successor) = order.offer(instance, offers).await {
                return successor;
            }
        }
    };
    tokio::select! {
        successor = next => Some(successor),
        () = stop.cancelled() => None,
    }
}

/// Waits until nothing is left to do for a server that accepts nothing.
async fn no_work(connections: &Connections, sandboxes: &Sandboxes) {
    connections.ended().await;
    while !sandboxes.is_empty() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Lets requests end for a time, and then ends all connections.
async fn drain(connections: [&Connections; 2], limit: Duration, kill: &CancellationToken) {
    let [public, private] = connections;
    let ended = async || tokio::join!(public.ended(), private.ended());
    let drained = tokio::time::timeout(limit, ended()).await;
    kill.cancel();
    if drained.is_err() {
        ended().await;
    }
}

/// Puts the layers around a backend: traces, then quota, then audit, then metrics, then volumes, then the backend.
fn layered(
    inner: Arc<dyn Backend>,
    name: &str,
    quota: QuotaConcern,
    audit: Option<Log>,
    metrics: &Arc<Metrics>,
    tracer: &Tracer,
) -> Arc<dyn Backend> {
    let level = inner.level();
    let inner = Arc::new(WithVolumes(inner));
    let concern = MetricsConcern { backend: name.to_owned(), metrics: Arc::clone(metrics) };
    let mut backend: Arc<dyn Backend> = Arc::new(Around::new(inner, Arc::new(concern)));
    if let Some(log) = audit {
        let admission = Arc::clone(&quota.admission);
        let concern = AuditConcern { backend: name.to_owned(), level, log, admission };
        backend = Arc::new(Around::new(backend, Arc::new(concern)));
    }
    let tasks = Arc::clone(&quota.tasks);
    let traces = TracesConcern { backend: name.to_owned(), tracer: tracer.clone(), tasks };
    Arc::new(Around::new(Arc::new(Around::new(backend, Arc::new(quota))), Arc::new(traces)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_conformance::{Options, Outcome, Target, run};
    use cofferdam_simulated::{SimulatedBackend, SimulatedPrograms};

    /// Promise (Server): A backend passes the conformance suite through all layers of the server, and every reservation
    /// ends with its sandbox.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_layers_keep_the_contract() {
        let (directory, store) = crate::store::tests::fresh().await;
        let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
        let (recorder, recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let quota = QuotaConcern {
            backend: "simulated".to_owned(),
            admission: Arc::clone(&admission),
            recorder,
            store: store.clone(),
            server: "test".to_owned(),
            instance: "test-1".to_owned(),
            label: None,
            tasks: Arc::default(),
            accounts: Arc::default(),
        };
        let mut config = cofferdam_audit::Config::new(directory.path().join("audit"));
        config.sync = cofferdam_audit::Sync::Never;
        let log = Log::open(config).unwrap();
        let inner = Arc::new(SimulatedBackend::default());
        let metrics = Arc::new(Metrics::default());
        let backend = layered(Arc::clone(&inner) as _, "simulated", quota, Some(log), &metrics, &Tracer::default());
        let report = run(&Target::new(backend, SimulatedPrograms), &Options::default()).await;
        assert!(report.is_success(), "{report}");
        let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
        assert!(passed >= 80, "only {passed} cases could be run: {report}");
        drop(report);
        tokio::time::timeout(Duration::from_secs(20), recording).await.expect("every sandbox has ended").unwrap();
        assert!(inner.living().is_empty(), "{:?}", inner.living());
        assert_eq!(store.sandboxes("test").await.unwrap(), []);
        let all = store.usage(None, 0, i64::MAX / 2).await.unwrap();
        assert!(all.iter().map(|row| row.usage.execs).sum::<i64>() > 80, "{all:?}");
        for row in all {
            let tenant = cofferdam_contract::TenantId::new(row.tenant).unwrap();
            assert_eq!(admission.state_of(&tenant).1, 0, "{tenant:?} has reservations");
        }
        assert!(metrics.text(0).contains("cofferdam_sandboxes{backend=\"simulated\"} 0\n"));
    }
}
