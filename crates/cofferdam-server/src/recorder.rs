//! Durable records of usage: one task writes what many requests report at once, in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::TenantId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::admission::Admission;
use crate::quota::day_of;
use crate::report;
use crate::store::{Store, Usage, UsageRow};

/// Entries that wait to be written. Beyond, callers wait.
const QUEUE: usize = 4096;
/// The most entries of one transaction.
const MAX_BATCH: usize = 1024;
/// The time between two attempts to write.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Usage to record, and the record of a sandbox that has ended with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The usage.
    pub row: UsageRow,
    /// More usage of the row, which the quotas have counted already.
    pub deferred: Usage,
    /// The sandbox's record.
    pub ended: Option<String>,
}

impl Entry {
    /// Creates an entry of today.
    pub fn usage(tenant: &TenantId, label: &str, usage: Usage) -> Self {
        let day = day_of(Duration::from_secs(crate::store::now().unsigned_abs()));
        let row = UsageRow { tenant: tenant.as_str().to_owned(), day, label: label.to_owned(), usage };
        Self { row, deferred: Usage::default(), ended: None }
    }
}

type Message = (Entry, Option<oneshot::Sender<()>>);

/// Records usage. Clones share one task.
#[derive(Debug, Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Message>,
    admission: Arc<Admission>,
}

impl Recorder {
    /// Starts the task. It ends when all clones are dropped and everything is written.
    pub fn start(store: Store, admission: Arc<Admission>) -> (Self, JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender, admission }, tokio::spawn(write_all(store, receiver)))
    }

    /// Records an entry and waits until it is on the disk. Returns early if the database fails; the entry is then
    /// written when it works again.
    pub async fn record(&self, entry: Entry) {
        self.count(&entry);
        self.record_counted(entry).await;
    }

    /// Records an entry like [`Self::record`] that the quotas have counted already.
    pub async fn record_counted(&self, entry: Entry) {
        let (done, written) = oneshot::channel();
        if self.sender.send((entry, Some(done))).await.is_ok() {
            // The sender is dropped after a failed write.
            let _ = written.await;
        }
    }

    /// Records an entry without waiting for it.
    pub fn record_later(&self, entry: Entry) {
        self.count(&entry);
        if let Err(error) = self.sender.try_send((entry, None)) {
            report::warning(&format!("usage of a caller that left could not be recorded: {error}"));
        }
    }

    /// Counts usage for the quotas. [`Entry::deferred`] of a later entry records it.
    pub fn count(&self, entry: &Entry) {
        self.admission.add(&entry.row);
    }
}

async fn write_all(store: Store, mut receiver: mpsc::Receiver<Message>) {
    let (mut batch, mut waiting, mut failing) = (Batch::default(), Vec::new(), false);
    loop {
        let mut messages = Vec::new();
        if failing {
            // New entries are taken as long as there is room for them.
            let next = tokio::time::timeout(RETRY_INTERVAL, receiver.recv_many(&mut messages, MAX_BATCH)).await;
            if next == Ok(0) && batch.is_empty() {
                return;
            }
            if next == Ok(0) {
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        } else if receiver.recv_many(&mut messages, MAX_BATCH).await == 0 {
            return;
        }
        for (entry, done) in messages {
            batch.add(entry);
            waiting.extend(done);
        }
        let (rows, ended) = batch.parts();
        match store.settle(&rows, &ended).await {
            Ok(()) => {
                batch = Batch::default();
                failing = false;
                for done in waiting.drain(..) {
                    // The caller may have left.
                    let _: Result<(), ()> = done.send(());
                }
            }
            Err(error) => {
                if !failing {
                    report::warning(&format!("usage is kept in memory until the database works again: {error}"));
                }
                failing = true;
                waiting.clear();
                if receiver.is_closed() && receiver.is_empty() {
                    // The server stops, and cannot wait for the database forever.
                    report::warning(&format!("the usage of {} tenants and days was lost", rows.len()));
                    return;
                }
            }
        }
    }
}

/// Entries of one transaction, added up by tenant, day and label.
#[derive(Debug, Default)]
struct Batch {
    rows: BTreeMap<(String, i64, String), Usage>,
    ended: Vec<String>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ended.is_empty()
    }

    fn add(&mut self, Entry { row, deferred, ended }: Entry) {
        let UsageRow { tenant, day, label, usage } = row;
        let sum = self.rows.entry((tenant, day, label)).or_default();
        sum.add(&usage);
        sum.add(&deferred);
        self.ended.extend(ended);
    }

    fn parts(&self) -> (Vec<UsageRow>, Vec<String>) {
        let row = |((tenant, day, label), usage): (&(String, i64, String), &Usage)| UsageRow {
            tenant: tenant.clone(),
            day: *day,
            label: label.clone(),
            usage: *usage,
        };
        (self.rows.iter().map(row).collect(), self.ended.clone())
    }
}
