//! Audit records of the network of a sandbox: one for each connection and request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use cofferdam_audit::{Network, NetworkLost, Redactor, SandboxRecord, Text, Timestamp};
use cofferdam_contract::{
    Error, ErrorKind, LayeredSandbox, NetworkEvent, NetworkFeed, NetworkNews, NetworkPolicy, Result, Sandbox,
    SandboxLayer,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::audit::{self, Audit};
use crate::{Executor, Secrets};

/// The maximum number of records that are written at once.
const MAX_BATCH: usize = 256;

/// The destination of the records of a sandbox's network.
#[async_trait]
pub trait NetworkLog: Send + 'static {
    /// Writes records. `is_lost` is true if they contain a [`SandboxRecord::Lost`]. Returns false if the sandbox must lose its network.
    async fn write(&mut self, records: Vec<SandboxRecord>, is_lost: bool) -> bool;
}

#[async_trait]
impl NetworkLog for Audit {
    async fn write(&mut self, records: Vec<SandboxRecord>, is_lost: bool) -> bool {
        self.record_network(records, is_lost).await
    }
}

/// A recording of the network of a sandbox. If it is dropped, it ends with the last connection of the sandbox.
#[derive(Debug)]
pub struct NetworkRecording {
    /// True once the log took records no more, so that the sandbox has no network.
    is_cut: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl NetworkRecording {
    /// Begins to record, with the sandbox's id in the log. Returns `None` for a sandbox without a network policy. Must be
    /// called in a tokio runtime.
    ///
    /// # Errors
    /// - `Denied` for a network that the backend does not report.
    pub fn start(
        sandbox: &Arc<dyn Sandbox>,
        id: &str,
        redactor: Redactor,
        log: impl NetworkLog,
    ) -> Result<Option<Self>> {
        let Some(events) = sandbox.network_events() else {
            if sandbox.network_policy() == NetworkPolicy::None {
                return Ok(None);
            }
            let message = "the audit log needs the connections of a sandbox, and this backend does not report them";
            return Err(
                Error::new(ErrorKind::Denied, "create", message).with_remedy("use another backend, or no network")
            );
        };
        let (feed, stop) = NetworkFeed::new(events);
        let recorder = Recorder {
            log,
            sandbox: Arc::downgrade(sandbox),
            id: Text::new(id),
            tenant: Text::new(sandbox.spec().tenant().as_str()),
            redactor,
            is_cut: Arc::default(),
        };
        let is_cut = Arc::clone(&recorder.is_cut);
        Ok(Some(Self { is_cut, stop, task: tokio::spawn(recorder.follow(feed)) }))
    }

    /// Returns what knows whether the log has ended the network of the sandbox.
    pub fn cut(&self) -> NetworkCut {
        NetworkCut(Arc::clone(&self.is_cut))
    }

    /// Ends after everything that happened before is recorded.
    pub async fn end(self) {
        // A recording that has ended itself takes no message.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// The end of a sandbox's network by its log. The sandbox gets no network again.
#[derive(Debug, Clone)]
pub struct NetworkCut(Arc<AtomicBool>);

impl NetworkCut {
    /// Replaces the network policy of the sandbox, unless its network was ended.
    ///
    /// # Errors
    /// - `Denied` for another policy than none, after the end of the network.
    /// - Those of [`Sandbox::set_network`].
    pub async fn set_network(&self, sandbox: &dyn Sandbox, policy: NetworkPolicy) -> Result<()> {
        let opens = policy != NetworkPolicy::None;
        self.check(opens)?;
        sandbox.set_network(policy).await?;
        // The log may have ended the network meanwhile.
        if let Err(error) = self.check(opens) {
            sandbox.set_network(NetworkPolicy::None).await?;
            return Err(error);
        }
        Ok(())
    }

    fn check(&self, opens: bool) -> Result<()> {
        if opens && self.0.load(Ordering::SeqCst) {
            return Err(Error::new(
                ErrorKind::Denied,
                "set_network",
                "the audit log ended the network of this sandbox",
            )
            .with_remedy("create another sandbox"));
        }
        Ok(())
    }
}

/// A layer that records until the sandbox is closed.
#[derive(Debug)]
struct Recorded {
    recording: Mutex<Option<NetworkRecording>>,
    cut: NetworkCut,
}

#[async_trait]
impl SandboxLayer for Recorded {
    async fn set_network(&self, inner: &dyn Sandbox, policy: NetworkPolicy) -> Result<()> {
        self.cut.set_network(inner, policy).await
    }

    async fn close(&self, inner: &dyn Sandbox) -> Result<()> {
        let closed = inner.close().await;
        let recording = self.recording.lock().take();
        if let Some(recording) = recording {
            recording.end().await;
        }
        closed
    }
}

impl Executor {
    /// Returns a sandbox whose connections and requests are in the audit log, until it is closed. Call this for each new
    /// sandbox before the network is used, in a tokio runtime. Secrets of requests are not removed from these records.
    ///
    /// # Errors
    /// - `Denied` for a network that the backend does not report, if the log is mandatory. The sandbox is closed then.
    pub async fn record_network(&self, sandbox: Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        self.record_network_without(sandbox, Redactor::none()).await
    }

    /// Returns a sandbox like [`Self::record_network`], with secrets left out of the log.
    pub(crate) async fn record_network_without(
        &self,
        sandbox: Arc<dyn Sandbox>,
        secrets: Redactor,
    ) -> Result<Arc<dyn Sandbox>> {
        let Some(audit) = &self.0.audit else { return Ok(sandbox) };
        let started = NetworkRecording::start(&sandbox, sandbox.id().as_str(), secrets, audit.clone());
        match started.or_else(|error| audit.allow_unrecorded(error).map(|()| None)) {
            Ok(Some(recording)) => {
                let cut = recording.cut();
                Ok(Arc::new(LayeredSandbox::new(sandbox, Recorded { recording: Mutex::new(Some(recording)), cut })))
            }
            Ok(None) => Ok(sandbox),
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
    }

    /// Records a denied request of a plugin, if there is an audit log.
    pub async fn record_denial(&self, denial: cofferdam_audit::PluginDenied) {
        if let Some(audit) = &self.0.audit {
            audit.record_denial(denial).await;
        }
    }

    /// Returns the redactor of secrets for the audit log, if there is one.
    pub(crate) fn redactor(&self, secrets: &Secrets) -> Result<Redactor> {
        if self.0.audit.is_some() { audit::redactor(secrets) } else { Ok(Redactor::none()) }
    }
}

struct Recorder<L> {
    log: L,
    /// Does not keep the sandbox open.
    sandbox: Weak<dyn Sandbox>,
    id: Text<128>,
    tenant: Text<128>,
    redactor: Redactor,
    is_cut: Arc<AtomicBool>,
}

impl<L: NetworkLog> Recorder<L> {
    async fn follow(mut self, mut feed: NetworkFeed) {
        while let Some(news) = feed.next().await {
            let mut batch = vec![self.record(news)];
            while batch.len() < MAX_BATCH
                && let Some(news) = feed.try_next()
            {
                batch.push(self.record(news));
            }
            self.write(batch).await;
        }
    }

    fn record(&self, news: NetworkNews) -> SandboxRecord {
        match news {
            NetworkNews::Event(event) => self.event(*event),
            NetworkNews::Lost(count) => self.lost(count),
        }
    }

    async fn write(&mut self, batch: Vec<SandboxRecord>) {
        let is_lost = batch.iter().any(|record| matches!(record, SandboxRecord::Lost(_)));
        if !self.log.write(batch, is_lost).await
            && let Some(sandbox) = self.sandbox.upgrade()
        {
            self.is_cut.store(true, Ordering::SeqCst);
            // A sandbox that is closed already has no network.
            let _ = sandbox.set_network(NetworkPolicy::None).await;
        }
    }

    /// Returns the record of an event. The guest chooses its texts, which may contain a secret.
    fn event(&self, event: NetworkEvent) -> SandboxRecord {
        let clean = |text: &str| self.redactor.redact(text.as_bytes());
        SandboxRecord::Event(Box::new(Network {
            sandbox: self.id.clone(),
            tenant: self.tenant.clone(),
            time: Timestamp::from_micros(i64::try_from(event.time_ms.saturating_mul(1000)).unwrap_or(i64::MAX)),
            host: Text::new(clean(&event.host)),
            port: event.port,
            address: event.address,
            protocol: Text::new(event.protocol),
            method: event.method.map(|method| Text::new(clean(&method))),
            path: event.path.map(|path| Text::new(clean(&path))),
            allowed: event.reason.is_none(),
            rule: event.rule.map(Text::new),
            reason: event.reason.map(|reason| Text::new(clean(&reason))),
            ended: event.ended.map(Text::new),
            sent_bytes: event.sent,
            received_bytes: event.received,
            duration_ms: event.duration_ms,
            requests: event.requests,
        }))
    }

    fn lost(&self, count: u64) -> SandboxRecord {
        let (sandbox, tenant) = (self.id.clone(), self.tenant.clone());
        SandboxRecord::Lost(NetworkLost { sandbox, tenant, time: Timestamp::now(), count })
    }
}
