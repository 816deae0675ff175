//! Quota: reserves before a create, settles what was used at intervals, after each exec and at the end, and refuses what
//! is beyond. The usage of a run is written once, at its end. A server that is killed loses the usage since the last
//! interval.
//!
//! ```text
//! reserved --close succeeds--> released
//!     '-----close fails------> still reserved, and closed again at intervals until that succeeds
//! ```

mod accounts;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam_contract::{Error, ErrorKind, ExecRequest, Exit, NetworkPolicy, Result, Sandbox, Spec, TenantId};
use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use parking_lot::Mutex;

pub use accounts::SandboxAccounts;
pub(super) use accounts::keep_unclosed;
use accounts::{RESERVED, Reserved};

use super::{Concern, WeakSandbox};
use crate::admission::{Admission, Grant};
use crate::ids::new_id;
use crate::live::CREATED;
use crate::quota::Demand;
use crate::recorder::{Entry, Recorder};
use crate::store::{SandboxRecord, Store, Usage, now};
use crate::tasks::{Task, TaskGuard, TaskKind, TaskState, Tasks};

/// The time for a sandbox to report its usage.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// The most memory or disk of a sandbox that is charged, so that sums of usage fit in 64 bits: 16 TiB.
const MAX_CHARGED_MIB: u64 = 1 << 24;

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
    /// The accounts of live sandboxes of all backends.
    pub accounts: Arc<SandboxAccounts>,
}

impl fmt::Debug for QuotaConcern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaConcern").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// The quota of one sandbox.
#[derive(Debug)]
pub struct Held {
    account: Arc<Account>,
    /// The task of the create, until it has ended.
    create: Mutex<Option<TaskGuard>>,
}

/// The account of a sandbox that lives.
pub struct Account {
    tenant: TenantId,
    label: String,
    recorder: Recorder,
    demand: Demand,
    /// The reservation, until the sandbox has ended.
    grant: Mutex<Option<Grant>>,
    sandbox: OnceLock<WeakSandbox>,
    record: OnceLock<String>,
    settled: Mutex<Settled>,
    /// Usage that is counted and not yet recorded.
    deferred: Mutex<Usage>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// The usage that was charged so far.
#[derive(Debug)]
struct Settled {
    reserved_until: Instant,
    cpu_seconds: f64,
    /// The time of the last measurement of the CPU time of the sandbox.
    measured: Option<Instant>,
    egress_bytes: u64,
}

/// An exec that is charged when it ends.
pub struct Exec {
    account: Arc<Account>,
    started: Instant,
    /// The processors that it can use.
    cpus: f64,
    is_over: bool,
}

impl Drop for Exec {
    fn drop(&mut self) {
        if !self.is_over {
            let account = &self.account;
            let lives = account.sandbox.get().is_some_and(|sandbox| sandbox.strong_count() > 0);
            let cpu_us = match account.settled.lock().measured {
                // The next measurement of the sandbox has the CPU time.
                Some(_) if lives => 0,
                // The CPU time is lost with the sandbox: its processors were busy at most since the last measurement.
                measured => {
                    let since = measured.map_or(self.started, |measured| measured.max(self.started));
                    micros(since.elapsed().as_secs_f64() * self.cpus)
                }
            };
            let usage = Usage { execs: 1, cpu_us, ..Usage::default() };
            account.recorder.record_later(account.entry(usage, false));
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

impl Account {
    /// Charges the sandbox for what it has used since the last time, unless it has ended.
    async fn settle(&self) {
        let Some(inner) = self.sandbox.get().and_then(WeakSandbox::upgrade) else { return };
        // A sandbox that does not answer is measured later.
        let cpu_us = tokio::time::timeout(USAGE_TIMEOUT, self.cpu_used(Some(&*inner), None)).await.unwrap_or(0);
        let reserved = {
            let grant = self.grant.lock();
            if grant.is_some() { self.reserved() } else { Usage::default() }
        };
        let usage = Usage { cpu_us, egress_bytes: self.egress_used(Some(&*inner)), ..reserved };
        self.record(usage).await;
    }

    /// Counts usage, and returns when it is on the disk. That of a run is written when the run ends, at the latest at
    /// the next interval: no client knows of a run before its end.
    async fn charge(&self, usage: Usage) {
        if self.record.get().is_none() {
            self.recorder.count(&Entry::usage(&self.tenant, &self.label, usage));
            self.deferred.lock().add(&usage);
        } else {
            self.record(usage).await;
        }
    }

    /// Records usage, and returns when it is on the disk.
    async fn record(&self, usage: Usage) {
        let entry = self.entry(usage, false);
        if (entry.row.usage, entry.deferred) != Default::default() {
            self.recorder.record(entry).await;
        }
    }

    /// Returns the usage of the reserved memory and disk since the last time.
    fn reserved(&self) -> Usage {
        let mut settled = self.settled.lock();
        let now = Instant::now();
        let millis = now.duration_since(settled.reserved_until).as_millis();
        settled.reserved_until = now;
        let times = |mib: u64| {
            let charged = u128::from(mib.min(MAX_CHARGED_MIB));
            i64::try_from(millis.saturating_mul(charged)).unwrap_or(i64::MAX)
        };
        let Demand { memory_mib, disk_mib } = self.demand;
        Usage { memory_mib_ms: times(memory_mib), disk_mib_ms: times(disk_mib), ..Usage::default() }
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
                settled.measured = Some(Instant::now());
                micros(more)
            }
            // A sandbox that closes was measured before; the time of its execs is part of that.
            None if self.settled.lock().measured.is_some() => 0,
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

    /// Charges the sandbox, which is gone, for the last time, and ends its reservation.
    async fn release(&self) {
        let grant = self.grant.lock().take();
        if let Some(grant) = grant {
            self.recorder.record(self.entry(self.reserved(), true)).await;
            drop(grant);
        }
    }

    fn entry(&self, usage: Usage, ends: bool) -> Entry {
        let mut entry = Entry::usage(&self.tenant, &self.label, usage);
        entry.deferred = std::mem::take(&mut *self.deferred.lock());
        entry.ended = ends.then(|| self.record.get().cloned()).flatten();
        entry
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let account = &self.account;
        let grant = account.grant.lock().take();
        if grant.is_some() {
            account.recorder.record_later(account.entry(account.reserved(), true));
        }
    }
}

impl QuotaConcern {
    fn reserved(&self, held: &Arc<Held>) -> Reserved {
        Reserved { accounts: Arc::clone(&self.accounts), backend: self.backend.clone(), held: Arc::clone(held) }
    }
}

#[async_trait]
impl Concern for QuotaConcern {
    type Held = Held;
    type Exec = Exec;

    fn separates_start(&self, spec: &Spec) -> bool {
        // A network that is not counted must be refused before a program uses it.
        *spec.network() != NetworkPolicy::None && self.admission.counts_egress(spec.tenant())
    }

    async fn enter(&self, spec: &Spec) -> Result<Held> {
        self.admission.check_limits(spec.tenant(), spec.limits())?;
        let [memory_mib, disk_mib] = [spec.limits().memory, spec.limits().disk]
            .map(|size| size.map_or(0, |size| size.as_bytes().div_ceil(1 << 20)));
        let demand = Demand { memory_mib, disk_mib };
        let task = Task::new(TaskKind::Create, &self.backend, Some(spec.tenant()));
        let sandbox = CREATED.try_with(|(id, _)| id.clone()).ok();
        let create = self.tasks.add(Task { state: TaskState::Queued, sandbox, ..task });
        let grant = self.admission.sandbox(spec.tenant(), demand).await?;
        create.set(TaskState::Running);
        Context::current().span().add_event("admitted", Vec::new());
        let label = self.label.as_ref().and_then(|label| spec.labels().get(label)).cloned().unwrap_or_default();
        let settled = Settled { reserved_until: Instant::now(), cpu_seconds: 0.0, measured: None, egress_bytes: 0 };
        let account = Arc::new(Account {
            tenant: spec.tenant().clone(),
            label: label.chars().take(64).collect(),
            recorder: self.recorder.clone(),
            demand,
            grant: Mutex::new(Some(grant)),
            sandbox: OnceLock::new(),
            record: OnceLock::new(),
            settled: Mutex::new(settled),
            deferred: Mutex::default(),
        });
        Ok(Held { account, create: Mutex::new(Some(create)) })
    }

    fn creating<T: Send>(
        &self,
        held: &Arc<Held>,
        create: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send {
        RESERVED.scope(self.reserved(held), create)
    }

    async fn created(&self, held: &Held, created: Result<&Arc<dyn Sandbox>, &Error>) -> Result<()> {
        held.create.lock().take();
        let account = &held.account;
        let Ok(inner) = created else {
            if !self.accounts.keeps(held) {
                account.grant.lock().take();
            }
            return Ok(());
        };
        let _ = account.sandbox.set(Arc::downgrade(inner));
        let is_counted = *inner.spec().network() == NetworkPolicy::None || inner.network_usage().is_some();
        if !is_counted && self.admission.counts_egress(&account.tenant) {
            let message = "a quota limits the bytes of the network, and this backend does not count them";
            return Err(Error::new(ErrorKind::Denied, "create", message)
                .with_context("backend", self.backend.clone())
                .with_remedy("use another backend, or no network"));
        }
        self.accounts.add(account);
        let counted = Usage { sandboxes: 1, ..Usage::default() };
        let Ok((sandbox, name)) = CREATED.try_with(Clone::clone) else {
            // A run has no id for clients, so that they do not ask for it after a crash.
            account.charge(counted).await;
            return Ok(());
        };
        // The record outlives the server, so that the sandbox is known after a crash.
        let id = new_id("rec")?;
        // Known before it is written, so that it is removed even if the caller leaves meanwhile.
        let _ = account.record.set(id.clone());
        let now = now();
        let record = SandboxRecord {
            id,
            server: self.server.clone(),
            instance: self.instance.clone(),
            sandbox,
            name,
            tenant: account.tenant.as_str().to_owned(),
            backend: self.backend.clone(),
            label: account.label.clone(),
            memory_mib: i64::try_from(account.demand.memory_mib).unwrap_or(i64::MAX),
            disk_mib: i64::try_from(account.demand.disk_mib).unwrap_or(i64::MAX),
            created: now,
            seen: now,
        };
        let counted = account.entry(counted, false).row;
        self.store.add_sandbox(&record, &counted).await?;
        self.admission.add(&counted);
        Ok(())
    }

    async fn starting(&self, held: &Held, spec: &Spec, _: &ExecRequest) -> Result<Exec> {
        self.admission.exec(&held.account.tenant)?;
        let (account, started) = (Arc::clone(&held.account), Instant::now());
        Ok(Exec { account, started, cpus: processors(spec), is_over: false })
    }

    async fn ended(&self, held: &Held, mut exec: Exec, outcome: &Result<Exit>) {
        exec.is_over = true;
        let account = &held.account;
        let inner = account.sandbox.get().and_then(WeakSandbox::upgrade);
        let exit = outcome.as_ref().ok();
        let usage = Usage {
            execs: i64::from(exit.is_some()),
            cpu_us: account.cpu_used(inner.as_deref(), exit).await,
            egress_bytes: account.egress_used(inner.as_deref()),
            output_bytes: exit.map_or(0, |exit| i64::try_from(exit.usage.output_bytes).unwrap_or(i64::MAX)),
            ..Usage::default()
        };
        account.charge(usage).await;
    }

    async fn closing(&self, held: &Held, inner: &dyn Sandbox) {
        let account = &held.account;
        // Usage of programs after the last exec.
        let usage = Usage {
            cpu_us: account.cpu_used(Some(inner), None).await,
            egress_bytes: account.egress_used(Some(inner)),
            ..Usage::default()
        };
        account.charge(usage).await;
    }

    async fn closed(&self, held: &Held) {
        held.account.release().await;
    }

    fn close_failed(&self, held: &Arc<Held>, error: &Error) {
        // The caller of the close has the sandbox.
        if let Some(sandbox) = held.account.sandbox.get().and_then(WeakSandbox::upgrade) {
            self.reserved(held).keep(sandbox, error);
        }
    }
}

/// The reason for the end of sandboxes of a killed process.
const KILLED: &str = "it was lost when the server's process was killed";

/// Removes the records of sandboxes that killed processes of a server left in the database. The sandboxes were counted
/// when they were created, and their usage at intervals. Their programs ended with them, or the backends remove them.
/// Those of the processes that `lives` accepts remain.
///
/// # Errors
/// - `Unavailable` if the database fails.
pub async fn recover(store: &Store, server: &str, lives: impl Fn(&str) -> bool) -> Result<usize> {
    let mut left = store.sandboxes(server).await?;
    left.retain(|record| !lives(&record.instance));
    let instances: BTreeSet<_> = left.iter().map(|record| record.instance.clone()).collect();
    for instance in instances {
        store.lose_sandboxes(&instance, now(), KILLED).await?;
    }
    let ended: Vec<_> = left.into_iter().map(|record| record.id).collect();
    store.settle(&[], &ended).await?;
    Ok(ended.len())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::admission::QueueBounds;
    use crate::quota::{Capacity, Quota, QuotaFile, Total};
    use cofferdam_contract::{Cpus, Limits};

    /// Promise (Server): A server that is killed loses the usage of one interval at most, and nothing is charged twice.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_killed_server_loses_one_interval_of_usage() {
        use crate::layers::Around;
        use cofferdam_contract::{Backend as _, ByteSize};
        use cofferdam_simulated::{Program, SimulatedBackend, Step};
        let (_directory, store) = crate::store::tests::fresh().await;
        let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
        let (recorder, _recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let accounts = Arc::new(SandboxAccounts::default());
        let concern = concern(&admission, recorder, &store, &accounts);
        let backend = Around::new(Arc::new(SimulatedBackend::default()), Arc::new(concern));
        let limits = Limits { memory: Some(ByteSize::from_mebibytes(100)), ..Limits::default() };
        let begun = Instant::now();
        let create = backend.create(Spec::builder().limits(limits).build().unwrap());
        let sandbox = CREATED.scope(("sb-1".to_owned(), None), create).await.unwrap();
        let request = Program::new(vec![Step::Spin { processes: 2 }]).request().build().unwrap();
        let exec = sandbox.start(request).await.unwrap();
        let sum = async || {
            let rows = store.usage(None, 0, i64::MAX / 2).await.unwrap();
            rows.iter().fold(Usage::default(), |mut sum, row| {
                sum.add(&row.usage);
                sum
            })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        accounts.settle().await;
        let charged = sum().await;
        let (least, max) = (100 * 300, 100 * i64::try_from(begun.elapsed().as_millis()).unwrap());
        assert!((least..=max).contains(&charged.memory_mib_ms), "{charged:?}");
        assert!(charged.cpu_us > 200_000, "{charged:?}");
        assert_eq!(charged.sandboxes, 1, "a live sandbox is counted");
        // A killed server closes nothing. Its successor charges nothing again.
        assert_eq!(recover(&store, "test", |_| false).await.unwrap(), 1);
        assert_eq!(sum().await, charged);
        // The live one continues, and everything is charged once.
        accounts.settle().await;
        drop(exec);
        sandbox.close().await.unwrap();
        accounts.settle().await;
        let (all, lived) = (sum().await, begun.elapsed());
        assert_eq!(all.sandboxes, 1, "it is counted once");
        assert!(all.memory_mib_ms <= 100 * i64::try_from(lived.as_millis()).unwrap() + 100, "{all:?} {lived:?}");
        assert!(all.cpu_us <= 3 * micros(lived.as_secs_f64()), "{all:?} {lived:?}");
    }

    /// Promise (Server): The usage of a run counts at once, and is on the disk before the run is answered.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_run_is_recorded_once_before_its_answer() {
        use crate::layers::Around;
        use cofferdam_contract::Backend as _;
        use cofferdam_simulated::{Program, SimulatedBackend};
        let (_directory, store) = crate::store::tests::fresh().await;
        let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
        let (recorder, _recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let concern = concern(&admission, recorder, &store, &Arc::default());
        let backend = Around::new(Arc::new(SimulatedBackend::default()), Arc::new(concern));
        let sandbox = backend.create(Spec::default()).await.unwrap();
        sandbox.exec(Program::new(Vec::new()).request().build().unwrap()).await.unwrap();
        let (_, _, _, used) = admission.state_of(Spec::default().tenant());
        assert_eq!((used.sandboxes, used.execs), (1, 1), "the quotas count it");
        assert_eq!(store.usage(None, 0, i64::MAX / 2).await.unwrap(), [], "nothing is written before the end");
        assert_eq!(store.sandboxes("test").await.unwrap(), []);
        sandbox.close().await.unwrap();
        let rows = store.usage(None, 0, i64::MAX / 2).await.unwrap();
        assert_eq!(rows.iter().map(|row| (row.usage.sandboxes, row.usage.execs)).collect::<Vec<_>>(), [(1, 1)]);
        let (_, _, _, used) = admission.state_of(Spec::default().tenant());
        assert_eq!((used.sandboxes, used.execs), (1, 1), "nothing is counted twice");
    }

    /// Promise (Server): A sandbox without a limit that a quota of its tenant or of all tenants counts is refused.
    #[tokio::test]
    async fn a_quota_refuses_a_sandbox_without_its_limit() {
        use cofferdam_contract::{ByteSize, ErrorKind};
        let (_directory, store) = crate::store::tests::fresh().await;
        let size = Some(ByteSize::from_mebibytes(4096));
        let no_memory = Limits { memory: None, ..Limits::default() };
        let no_disk = Limits { disk: None, ..Limits::default() };
        for (quota, memory, total, [refused, entered], remedy) in [
            (Quota { memory: size, ..Quota::default() }, None, None, [&no_memory, &no_disk], "set the limit memory"),
            (Quota { disk: size, ..Quota::default() }, None, None, [&no_disk, &no_memory], "set the limit disk"),
            (Quota::default(), size, None, [&no_memory, &no_disk], "set the limit memory"),
            (Quota::default(), None, size, [&no_disk, &no_memory], "set the limit disk"),
        ] {
            let capacity = Capacity { memory, ..Capacity::default() };
            let admission = Admission::new(quota, capacity, QueueBounds::default());
            let total = Total { disk: total, ..Total::default() };
            admission.set_default(&QuotaFile { quota, total, prices: None });
            let (recorder, _recording) = Recorder::start(store.clone(), Arc::clone(&admission));
            let concern = concern(&admission, recorder, &store, &Arc::default());
            let enter =
                async |limits: &Limits| concern.enter(&Spec::builder().limits(limits.clone()).build().unwrap()).await;
            let error = enter(refused).await.unwrap_err();
            assert_eq!((error.kind(), error.remedy()), (ErrorKind::Denied, Some(remedy)));
            enter(entered).await.unwrap();
        }
    }

    /// Promise (Server): The charges of a sandbox fit in 64 bits, whatever its limits are.
    #[tokio::test]
    async fn charges_of_huge_limits_are_bounded() {
        use cofferdam_contract::ByteSize;
        let (_directory, store) = crate::store::tests::fresh().await;
        let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
        let (recorder, _recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let concern = concern(&admission, recorder, &store, &Arc::default());
        let huge = Some(ByteSize::from_bytes(u64::MAX));
        let limits = Limits { memory: huge, disk: huge, ..Limits::default() };
        let spec = Spec::builder().limits(limits).build().unwrap();
        let begun = Instant::now();
        let held = concern.enter(&spec).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(held);
        let (_, _, _, used) = admission.state_of(spec.tenant());
        let max = i64::try_from(begun.elapsed().as_millis()).unwrap() << 24;
        assert!((1..=max).contains(&used.memory_mib_ms), "{used:?}");
        assert_eq!(used.memory_mib_ms, used.disk_mib_ms);
    }

    /// Returns the quota of a simulated backend.
    pub fn concern(
        admission: &Arc<Admission>,
        recorder: Recorder,
        store: &Store,
        accounts: &Arc<SandboxAccounts>,
    ) -> QuotaConcern {
        QuotaConcern {
            backend: "simulated".to_owned(),
            admission: Arc::clone(admission),
            recorder,
            store: store.clone(),
            server: "test".to_owned(),
            instance: "test-1".to_owned(),
            label: None,
            tasks: Arc::default(),
            accounts: Arc::clone(accounts),
        }
    }

    /// Promise (Server): An exec whose usage is lost is charged for all processors of its sandbox.
    #[tokio::test]
    async fn an_abandoned_exec_is_charged_for_all_its_processors() {
        use cofferdam_contract::Backend as _;
        use cofferdam_simulated::SimulatedBackend;
        let (_directory, store) = crate::store::tests::fresh().await;
        let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
        let (recorder, _recording) = Recorder::start(store.clone(), Arc::clone(&admission));
        let concern = concern(&admission, recorder, &store, &Arc::default());
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
        // The CPU time of a sandbox that lives is measured, so that nothing is estimated.
        let sandbox = SimulatedBackend::default().create(spec.clone()).await.unwrap();
        concern.created(&held, Ok(&sandbox)).await.unwrap();
        held.account.settled.lock().measured = Some(Instant::now());
        let exec = concern.starting(&held, &spec, &request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(exec);
        let (_, _, _, measured) = admission.state_of(spec.tenant());
        assert_eq!((measured.cpu_us, measured.execs), (used.cpu_us, 2));
        assert!(processors(&Spec::default()) >= 1.0);
    }
}
