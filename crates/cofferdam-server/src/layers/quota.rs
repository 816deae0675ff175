//! Quota: reserves before a create, settles what was used after each exec and at the end, and refuses what is beyond.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam_contract::{Error, ExecRequest, Exit, Result, Sandbox, Spec, TenantId};
use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use parking_lot::Mutex;

use super::{Concern, WeakSandbox};
use crate::admission::{Admission, Grant};
use crate::ids::new_id;
use crate::live::CREATED;
use crate::quota::Demand;
use crate::recorder::{Entry, Recorder};
use crate::store::{SandboxRecord, Store, Usage, now};
use crate::tasks::{Task, TaskGuard, TaskKind, TaskState, Tasks};

/// The quota of all sandboxes of a backend.
pub struct QuotaConcern {
    /// The backend's name, for the records.
    pub backend: String,
    /// The reservations of all backends.
    pub admission: Arc<Admission>,
    /// The durable records of all backends.
    pub recorder: Recorder,
    /// The table of live sandboxes.
    pub store: Store,
    /// The name of this server in a database that several servers share.
    pub server: String,
    /// This process of the server.
    pub instance: String,
    /// The label whose value usage is counted by.
    pub label: Option<String>,
    /// The tasks of the server.
    pub tasks: Arc<Tasks>,
}

impl fmt::Debug for QuotaConcern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaConcern").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// The quota of one sandbox.
pub struct Held {
    tenant: TenantId,
    label: String,
    recorder: Recorder,
    memory_mib: u64,
    /// The reservation, until the sandbox has ended.
    grant: Mutex<Option<Grant>>,
    /// The task of the create, until it has ended.
    create: Mutex<Option<TaskGuard>>,
    sandbox: OnceLock<WeakSandbox>,
    record: OnceLock<String>,
    settled: Mutex<Settled>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// The usage that was charged so far.
#[derive(Debug)]
struct Settled {
    memory_until: Instant,
    cpu_seconds: f64,
    /// True if the CPU time of the sandbox could be measured.
    is_measured: bool,
    egress_bytes: u64,
}

/// An exec that is charged when it ends.
pub struct Exec {
    held_label: String,
    tenant: TenantId,
    recorder: Recorder,
    started: Instant,
    /// The processors that it can use.
    cpus: f64,
    is_over: bool,
}

impl Drop for Exec {
    fn drop(&mut self) {
        if !self.is_over {
            // The CPU time is lost with the sandbox: its processors were busy at most that long.
            let cpu_us = micros(self.started.elapsed().as_secs_f64() * self.cpus);
            let usage = Usage { execs: 1, cpu_us, ..Usage::default() };
            self.recorder.record_later(Entry::usage(&self.tenant, &self.held_label, usage));
        }
    }
}

/// Returns the processors that programs of a sandbox can use at once: those of its limit, or all of the host.
fn processors(spec: &Spec) -> f64 {
    match spec.limits().cpus {
        Some(cpus) => f64::from(cpus.as_millis()) / 1000.0,
        None => std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64),
    }
}

fn micros(seconds: f64) -> i64 {
    // A cast of a float saturates.
    (seconds.max(0.0) * 1e6) as i64
}

impl Held {
    /// Returns the usage of the reserved memory since the last time.
    fn memory_used(&self) -> i64 {
        let mut settled = self.settled.lock();
        let now = Instant::now();
        let millis = now.duration_since(settled.memory_until).as_millis();
        settled.memory_until = now;
        i64::try_from(millis.saturating_mul(u128::from(self.memory_mib))).unwrap_or(i64::MAX)
    }

    /// Returns the CPU time of the sandbox since the last time, in microseconds. Execs that run at once are counted once.
    async fn cpu_used(&self, inner: Option<&dyn Sandbox>, exit: Option<&Exit>) -> i64 {
        let measured = match inner {
            Some(inner) => inner.usage().await.ok().and_then(|usage| usage.cpu_seconds),
            None => None,
        };
        match measured {
            Some(total) => {
                let mut settled = self.settled.lock();
                let more = total - settled.cpu_seconds;
                settled.cpu_seconds = settled.cpu_seconds.max(total);
                settled.is_measured = true;
                micros(more)
            }
            // A sandbox that closes was measured before; the time of its execs is part of that.
            None if self.settled.lock().is_measured => 0,
            None => exit.map_or(0, |exit| micros(exit.usage.cpu_seconds)),
        }
    }

    fn egress_used(&self, inner: Option<&dyn Sandbox>) -> i64 {
        let Some(usage) = inner.and_then(Sandbox::network_usage) else { return 0 };
        let total = usage.sent_bytes.saturating_add(usage.received_bytes);
        let mut settled = self.settled.lock();
        let more = total.saturating_sub(settled.egress_bytes);
        settled.egress_bytes = settled.egress_bytes.max(total);
        i64::try_from(more).unwrap_or(i64::MAX)
    }

    fn entry(&self, usage: Usage, ends: bool) -> Entry {
        let mut entry = Entry::usage(&self.tenant, &self.label, usage);
        entry.ended = ends.then(|| self.record.get().cloned()).flatten();
        entry
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.grant.lock().take().is_some() {
            let usage = Usage { memory_mib_ms: self.memory_used(), ..Usage::default() };
            self.recorder.record_later(self.entry(usage, true));
        }
    }
}

#[async_trait]
impl Concern for QuotaConcern {
    type Held = Held;
    type Exec = Exec;

    async fn enter(&self, spec: &Spec) -> Result<Held> {
        // A sandbox without a limit could use everything; it counts as the least of them.
        let memory_mib = spec.limits().memory.map_or(0, |memory| memory.as_bytes().div_ceil(1 << 20));
        let task = Task::new(TaskKind::Create, &self.backend, Some(spec.tenant()));
        let sandbox = CREATED.try_with(|(id, _)| id.clone()).ok();
        let create = self.tasks.add(Task { state: TaskState::Queued, sandbox, ..task });
        let grant = self.admission.sandbox(spec.tenant(), Demand { memory_mib }).await?;
        create.set(TaskState::Running);
        Context::current().span().add_event("admitted", Vec::new());
        let label = self.label.as_ref().and_then(|label| spec.labels().get(label)).cloned().unwrap_or_default();
        Ok(Held {
            tenant: spec.tenant().clone(),
            label: label.chars().take(64).collect(),
            recorder: self.recorder.clone(),
            memory_mib,
            grant: Mutex::new(Some(grant)),
            create: Mutex::new(Some(create)),
            sandbox: OnceLock::new(),
            record: OnceLock::new(),
            settled: Mutex::new(Settled {
                memory_until: Instant::now(),
                cpu_seconds: 0.0,
                is_measured: false,
                egress_bytes: 0,
            }),
        })
    }

    async fn created(&self, held: &Held, created: Result<&Arc<dyn Sandbox>, &Error>) -> Result<()> {
        held.create.lock().take();
        let Ok(inner) = created else {
            held.grant.lock().take();
            return Ok(());
        };
        let _ = held.sandbox.set(Arc::downgrade(inner));
        // The record outlives the server, so that its usage is settled after a crash.
        let id = new_id("rec")?;
        // Known before it is written, so that it is removed even if the caller leaves meanwhile.
        let _ = held.record.set(id.clone());
        let now = now();
        // A run has no id for clients.
        let (sandbox, name) = CREATED.try_with(Clone::clone).unwrap_or_default();
        self.store
            .add_sandbox(&SandboxRecord {
                id,
                server: self.server.clone(),
                instance: self.instance.clone(),
                sandbox,
                name,
                tenant: held.tenant.as_str().to_owned(),
                backend: self.backend.clone(),
                label: held.label.clone(),
                memory_mib: i64::try_from(held.memory_mib).unwrap_or(i64::MAX),
                created: now,
                seen: now,
            })
            .await
    }

    async fn starting(&self, held: &Held, spec: &Spec, _: &ExecRequest) -> Result<Exec> {
        self.admission.exec(&held.tenant)?;
        Ok(Exec {
            held_label: held.label.clone(),
            tenant: held.tenant.clone(),
            recorder: self.recorder.clone(),
            started: Instant::now(),
            cpus: processors(spec),
            is_over: false,
        })
    }

    async fn ended(&self, held: &Held, mut exec: Exec, outcome: &Result<Exit>) {
        exec.is_over = true;
        let inner = held.sandbox.get().and_then(WeakSandbox::upgrade);
        let exit = outcome.as_ref().ok();
        let usage = Usage {
            execs: i64::from(exit.is_some()),
            cpu_us: held.cpu_used(inner.as_deref(), exit).await,
            egress_bytes: held.egress_used(inner.as_deref()),
            output_bytes: exit.map_or(0, |exit| i64::try_from(exit.usage.output_bytes).unwrap_or(i64::MAX)),
            ..Usage::default()
        };
        if usage != Usage::default() {
            self.recorder.record(held.entry(usage, false)).await;
        }
    }

    async fn closing(&self, held: &Held, inner: &dyn Sandbox) {
        // What programs used after the last exec.
        let usage = Usage {
            cpu_us: held.cpu_used(Some(inner), None).await,
            egress_bytes: held.egress_used(Some(inner)),
            ..Usage::default()
        };
        if usage != Usage::default() {
            self.recorder.record(held.entry(usage, false)).await;
        }
    }

    async fn closed(&self, held: &Held) {
        let grant = held.grant.lock().take();
        if let Some(grant) = grant {
            let usage = Usage { sandboxes: 1, memory_mib_ms: held.memory_used(), ..Usage::default() };
            self.recorder.record(held.entry(usage, true)).await;
            drop(grant);
        }
    }
}

/// The reason for the end of sandboxes of a killed process.
const KILLED: &str = "it was lost when the server's process was killed";

/// Settles the usage of sandboxes that killed processes of a server left in the database. Their programs ended with them,
/// or the backends remove them. Those of the processes that `lives` accepts remain.
///
/// # Errors
/// - `Unavailable` if the database fails.
pub async fn recover(store: &Store, server: &str, lives: impl Fn(&str) -> bool) -> Result<usize> {
    let mut left = store.sandboxes(server).await?;
    left.retain(|record| !lives(&record.instance));
    let count = left.len();
    let instances: BTreeSet<_> = left.iter().map(|record| record.instance.clone()).collect();
    for instance in instances {
        store.lose_sandboxes(&instance, now(), KILLED).await?;
    }
    for record in left {
        let lived = Duration::from_secs(record.seen.saturating_sub(record.created).unsigned_abs());
        let millis = i64::try_from(lived.as_millis()).unwrap_or(i64::MAX);
        let usage = Usage { sandboxes: 1, memory_mib_ms: record.memory_mib.saturating_mul(millis), ..Usage::default() };
        let tenant = TenantId::new(record.tenant.clone())?;
        store.settle_lost(&Entry::usage(&tenant, &record.label, usage).row, &record.id).await?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::QueueBounds;
    use crate::quota::{Capacity, Quota};
    use cofferdam_contract::{Cpus, Limits};

    /// Promise (Server): An exec whose usage is lost is charged for all processors of its sandbox.
    #[tokio::test]
    async fn an_abandoned_exec_is_charged_for_all_its_processors() {
        let (_directory, store) = crate::store::tests::fresh().await;
        let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
        let (recorder, _recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let concern = QuotaConcern {
            backend: "simulated".to_owned(),
            admission: Arc::clone(&admission),
            recorder,
            store,
            server: "test".to_owned(),
            instance: "test-1".to_owned(),
            label: None,
            tasks: Arc::default(),
        };
        let limits = Limits { cpus: Some(Cpus::from_millis(8000)), ..Limits::default() };
        let spec = Spec::builder().limits(limits).build().unwrap();
        let request = ExecRequest::shell("true").build().unwrap();
        let held = concern.enter(&spec).await.unwrap();
        let begun = Instant::now();
        let exec = concern.starting(&held, &spec, &request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(exec);
        let (_, _, _, used) = admission.state_of(spec.tenant());
        let longest = micros(begun.elapsed().as_secs_f64() * 8.0);
        assert!((400_000..=longest).contains(&used.cpu_us), "{used:?}");
        assert!(processors(&Spec::default()) >= 1.0);
    }
}
