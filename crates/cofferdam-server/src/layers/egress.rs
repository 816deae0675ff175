//! The network of a sandbox in the audit log: a record of each connection and request.

use std::sync::{Arc, Weak};

use cofferdam_audit::{Log, Network, NetworkLost, SandboxRecord, Text, Timestamp};
use cofferdam_contract::{NetworkEvent, NetworkFeed, NetworkNews, NetworkPolicy, Sandbox, TenantId};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::audit::blocking;
use crate::admission::Admission;
use crate::report;

/// The most records that are written at once.
const MAX_BATCH: usize = 256;

/// A recording that is under way. If it is dropped, it ends with the last connection of the sandbox.
#[derive(Debug)]
pub struct Recording {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Recording {
    /// Begins to record. Returns `None` for a sandbox without a network policy.
    pub fn start(log: &Log, admission: &Arc<Admission>, sandbox: &Arc<dyn Sandbox>, id: &str) -> Option<Self> {
        let (feed, stop) = NetworkFeed::new(sandbox.network_events()?);
        let recorder = Recorder {
            log: log.clone(),
            admission: Arc::clone(admission),
            sandbox: Arc::downgrade(sandbox),
            id: Text::new(id),
            tenant: Text::new(sandbox.spec().tenant().as_str()),
            owner: sandbox.spec().tenant().clone(),
            has_failed: false,
        };
        Some(Self { stop, task: tokio::spawn(recorder.follow(feed)) })
    }

    /// Ends after everything that happened before is recorded.
    pub async fn end(self) {
        // A recording that has ended itself takes no message.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

struct Recorder {
    log: Log,
    admission: Arc<Admission>,
    /// Does not keep the sandbox open.
    sandbox: Weak<dyn Sandbox>,
    id: Text<128>,
    tenant: Text<128>,
    owner: TenantId,
    has_failed: bool,
}

impl Recorder {
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
        let (sandbox, tenant) = (self.id.clone(), self.tenant.clone());
        match news {
            NetworkNews::Event(event) => SandboxRecord::Event(Box::new(network(sandbox, tenant, *event))),
            NetworkNews::Lost(count) => {
                SandboxRecord::Lost(NetworkLost { sandbox, tenant, time: Timestamp::now(), count })
            }
        }
    }

    /// Writes records. If the log is mandatory and lacks any, or if the tenant may write no more, the sandbox loses its
    /// network.
    async fn write(&mut self, batch: Vec<SandboxRecord>) {
        let is_lost = batch.iter().any(|record| matches!(record, SandboxRecord::Lost(_)));
        let log = self.log.clone();
        let (reason, must_end) = match blocking(move || log.record_network(batch)).await {
            Ok(()) if is_lost => ("they came too fast".to_owned(), self.log.is_mandatory()),
            Ok(()) => match self.admission.audit(&self.owner) {
                Ok(()) => return,
                Err(error) => (error.to_string(), true),
            },
            Err(error) => (error.to_string(), self.log.is_mandatory()),
        };
        if !std::mem::replace(&mut self.has_failed, true) {
            let ends = if must_end { ", so that the sandbox loses its network" } else { "" };
            let id = &self.id;
            report::warning(&format!("the audit log cannot have all connections of the sandbox {id}{ends}: {reason}"));
        }
        if must_end && let Some(sandbox) = self.sandbox.upgrade() {
            // A sandbox that is closed already has no network.
            let _ = sandbox.set_network(NetworkPolicy::None).await;
        }
    }
}

/// Returns the record of an event. The guest chooses its texts, which are escaped and cut.
fn network(sandbox: Text<128>, tenant: Text<128>, event: NetworkEvent) -> Network {
    Network {
        sandbox,
        tenant,
        time: Timestamp::from_micros(i64::try_from(event.time_ms.saturating_mul(1000)).unwrap_or(i64::MAX)),
        host: Text::new(&event.host),
        port: event.port,
        address: event.address,
        protocol: Text::new(event.protocol),
        method: event.method.map(Text::new),
        path: event.path.map(Text::new),
        allowed: event.reason.is_none(),
        rule: event.rule.map(Text::new),
        reason: event.reason.map(Text::new),
        ended: event.ended.map(Text::new),
        sent_bytes: event.sent,
        received_bytes: event.received,
        duration_ms: event.duration_ms,
        requests: event.requests,
    }
}
