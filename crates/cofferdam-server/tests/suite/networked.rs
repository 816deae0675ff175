//! A backend with a network, which it only reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, BackendLayer, DirEntry, ExecHandle, ExecRequest, FileReader, NetworkDenial, NetworkEvent, NetworkPolicy,
    NetworkUsage, Posture, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec,
};
use cofferdam_simulated::SimulatedBackend;
use serde_json::json;
use tokio::sync::broadcast;

/// The bytes that each sandbox of [`Networked`] has sent, and received, and its connections.
pub const BYTES: u64 = 1000;
pub const CONNECTIONS: u64 = 3;

/// A backend whose sandboxes have used the network. Each exec connects to `allowed.example` and is refused
/// `denied.example`, and each close ends a connection to `late.example`.
#[derive(Debug)]
pub struct Networked(pub SimulatedBackend);

#[async_trait]
impl BackendLayer for Networked {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        NetworkedSandbox::create(&self.0, spec, true).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.0.restore(snapshot, spec).await
    }
}

/// A backend with a network that it neither counts nor reports.
#[derive(Debug)]
pub struct Uncounted(pub SimulatedBackend);

#[async_trait]
impl BackendLayer for Uncounted {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        NetworkedSandbox::create(&self.0, spec, false).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.0.restore(snapshot, spec).await
    }
}

#[derive(Debug)]
struct NetworkedSandbox {
    inner: Arc<dyn Sandbox>,
    spec: Spec,
    is_counted: bool,
    events: broadcast::Sender<NetworkEvent>,
    denied: AtomicU64,
    policy: Mutex<NetworkPolicy>,
}

impl NetworkedSandbox {
    async fn create(backend: &SimulatedBackend, spec: Spec, is_counted: bool) -> Result<Arc<dyn Sandbox>> {
        let inner = backend.create(spec.to_builder().network(NetworkPolicy::None).build()?).await?;
        Ok(Self::around(inner, spec, is_counted))
    }

    fn around(inner: Arc<dyn Sandbox>, spec: Spec, is_counted: bool) -> Arc<dyn Sandbox> {
        let events = broadcast::channel(64).0;
        let policy = Mutex::new(spec.network().clone());
        Arc::new(Self { inner, spec, is_counted, policy, events, denied: AtomicU64::new(0) })
    }

    fn report(&self, host: &str, reason: Option<&str>) {
        let event = json!({ "time_ms": 1000, "host": host, "port": 443, "protocol": "tls", "reason": reason,
            "sent": 5, "received": 7, "duration_ms": 1 });
        if self.network_policy() == NetworkPolicy::None {
            return;
        }
        // Without a receiver, the event is lost.
        let _ = self.events.send(serde_json::from_value(event).unwrap());
    }
}

#[async_trait]
impl Sandbox for NetworkedSandbox {
    fn id(&self) -> &SandboxId {
        self.inner.id()
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        self.inner.posture()
    }

    fn network_usage(&self) -> Option<NetworkUsage> {
        let usage = NetworkUsage {
            connections: CONNECTIONS,
            refused: self.denied.load(Ordering::SeqCst),
            sent_bytes: BYTES,
            received_bytes: BYTES,
            ..NetworkUsage::default()
        };
        self.is_counted.then_some(usage)
    }

    fn network_denials(&self) -> Vec<NetworkDenial> {
        let times = self.denied.load(Ordering::SeqCst);
        vec![NetworkDenial { what: "denied.example".to_owned(), why: "no rule".to_owned(), times }]
    }

    fn network_events(&self) -> Option<broadcast::Receiver<NetworkEvent>> {
        self.is_counted.then(|| self.events.subscribe())
    }

    fn network_policy(&self) -> NetworkPolicy {
        self.policy.lock().unwrap().clone()
    }

    async fn set_network(&self, policy: NetworkPolicy) -> Result<()> {
        *self.policy.lock().unwrap() = policy;
        Ok(())
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        self.report("allowed.example", None);
        self.report("denied.example", Some("no rule"));
        self.denied.fetch_add(1, Ordering::SeqCst);
        self.inner.start(request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.inner.read_file(path).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.inner.write_file(path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.inner.list_dir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.inner.remove(path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.inner.snapshot().await
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let spec = self.spec.to_builder().network(self.network_policy()).build()?;
        Ok(Self::around(self.inner.fork().await?, spec, self.is_counted))
    }

    async fn pause(&self) -> Result<()> {
        self.inner.pause().await
    }

    async fn resume(&self) -> Result<()> {
        self.inner.resume().await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.inner.usage().await
    }

    async fn close(&self) -> Result<()> {
        self.report("late.example", None);
        self.inner.close().await
    }
}
