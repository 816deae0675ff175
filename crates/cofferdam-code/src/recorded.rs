//! Audit records of the network of a sandbox: one for each connection and request.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_audit::{Network, NetworkLost, Redactor, SandboxRecord, Text, Timestamp};
use cofferdam_contract::{
    LayeredSandbox, NetworkEvent, NetworkFeed, NetworkNews, NetworkPolicy, Result, Sandbox, SandboxLayer,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::audit::{self, Audit};
use crate::{Executor, Secrets};

/// The maximum number of records that are written at once.
const MAX_BATCH: usize = 256;

/// A layer that records until the sandbox is closed.
#[derive(Debug)]
pub(crate) struct Recorded(Mutex<Option<Recording>>);

/// A recording that is under way.
#[derive(Debug)]
struct Recording {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[async_trait]
impl SandboxLayer for Recorded {
    async fn close(&self, inner: &dyn Sandbox) -> Result<()> {
        let closed = inner.close().await;
        let recording = self.0.lock().take();
        if let Some(Recording { stop, task }) = recording {
            let _ = stop.send(());
            let _ = task.await;
        }
        closed
    }
}

impl Recorded {
    /// Begins to record. Returns `None` for a sandbox without a network.
    pub(crate) fn start(audit: &Audit, sandbox: &Arc<dyn Sandbox>, redactor: Redactor) -> Option<Self> {
        let events = sandbox.network_events()?;
        let (feed, stop) = NetworkFeed::new(events);
        let recorder = Recorder {
            audit: audit.clone(),
            sandbox: Arc::downgrade(sandbox),
            id: Text::new(sandbox.id().as_str()),
            tenant: Text::new(sandbox.spec().tenant().as_str()),
            redactor,
        };
        Some(Self(Mutex::new(Some(Recording { stop, task: tokio::spawn(recorder.follow(feed)) }))))
    }
}

impl Executor {
    /// Returns a sandbox whose connections and requests are in the audit log, until it is closed. Call this for each new
    /// sandbox before the network is used, in a tokio runtime. Secrets of requests are not removed from these records.
    pub fn record_network(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        self.record_network_without(sandbox, Redactor::none())
    }

    /// Returns a sandbox like [`Self::recorded`], with secrets left out of the log.
    pub(crate) fn record_network_without(&self, sandbox: Arc<dyn Sandbox>, secrets: Redactor) -> Arc<dyn Sandbox> {
        let layer = self.0.audit.as_ref().and_then(|audit| Recorded::start(audit, &sandbox, secrets));
        match layer {
            Some(layer) => Arc::new(LayeredSandbox::new(sandbox, layer)),
            None => sandbox,
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

struct Recorder {
    audit: Audit,
    /// Does not keep the sandbox open.
    sandbox: std::sync::Weak<dyn Sandbox>,
    id: Text<128>,
    tenant: Text<128>,
    redactor: Redactor,
}

impl Recorder {
    async fn follow(self, mut feed: NetworkFeed) {
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

    /// Writes records. If the log is mandatory and lacks any, the sandbox loses its network.
    async fn write(&self, batch: Vec<SandboxRecord>) {
        let lost = batch.iter().any(|record| matches!(record, SandboxRecord::Lost(_)));
        if !self.audit.record_network(batch, lost).await
            && let Some(sandbox) = self.sandbox.upgrade()
        {
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
