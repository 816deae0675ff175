//! Timers: once, at an interval, or by a pattern of cron. They survive a restart of the host.
//!
//! ```text
//! planned --time comes--> due --> runs (by the policy for missed ones) --scheduler.fire--> planned again, or removed
//! ```
//!
//! A timer is planned again only after its delivery, so that a crash of the host repeats a run and loses none. A name
//! is unique within a plugin and tenant: a plugin that creates its timers at each start does not add any.

mod plan;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use cofferdam_contract::parse_duration;
use parking_lot::Mutex;
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::CallError;

use super::store::{Change, Records, charge, internal, random_id, tenant_of};
use super::{Caller, Deliver, Delivery, Inner, check_text, parse, payload_text, rfc3339, time};
use plan::{Missed, Run, Schedule};

pub(super) const TIMERS: Records = Records::new("timers");
/// The timers by time: milliseconds, plugin, tenant, identifier.
pub(super) const DUE: TableDefinition<(i64, &str, &str, &str), ()> = TableDefinition::new("timers-due");

const MAX_NAME: usize = 128;
/// The minimum period.
const MIN_PERIOD: Duration = Duration::from_secs(1);
/// The maximum interval between two reads of the clock, which may be set.
const MAX_PAUSE: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    at: Option<String>,
    every: Option<String>,
    cron: Option<String>,
    timezone: Option<String>,
    #[serde(default)]
    payload: Value,
    missed: Option<Missed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    id: String,
}

/// A stored timer.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Timer {
    name: String,
    schedule: Schedule,
    payload: Value,
    missed: Missed,
    next: DateTime<Utc>,
}

/// The key of a timer: plugin, tenant and identifier.
type TimerKey = (String, String, String);

/// The timers whose time has come, and the time of the first whose time has not.
type Due = (Vec<(TimerKey, Timer)>, Option<DateTime<Utc>>);

fn table_key((plugin, tenant, id): &TimerKey) -> (&str, &str, &str) {
    (plugin, tenant, id)
}

impl Create {
    fn schedule(&self) -> Result<Schedule, CallError> {
        let schedule = match (&self.at, &self.every, &self.cron) {
            (Some(at), None, None) => Schedule::At(time("at", at)?.to_utc()),
            (None, Some(every), None) => {
                let period = parse_duration(every).map_err(CallError::invalid)?;
                if period < MIN_PERIOD {
                    return Err(CallError::invalid(format!("every is at least {MIN_PERIOD:?}")));
                }
                Schedule::Every(i64::try_from(period.as_millis()).map_err(internal)?)
            }
            (None, None, Some(pattern)) => {
                let timezone = self.timezone.clone().unwrap_or_else(|| "UTC".to_owned());
                Schedule::Cron { pattern: pattern.clone(), timezone }
            }
            _ => return Err(CallError::invalid("a timer has exactly one of at, every and cron")),
        };
        match schedule {
            Schedule::Cron { .. } => Ok(schedule),
            _ if self.timezone.is_some() => Err(CallError::invalid("timezone has a meaning with cron only")),
            _ => Ok(schedule),
        }
    }
}

impl Inner {
    pub(super) fn scheduler_create(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let create: Create = parse(params)?;
        check_text("name", &create.name, MAX_NAME)?;
        payload_text(&create.payload, self.limits.payload)?;
        let schedule = create.schedule()?;
        let now = self.now();
        self.store.write(|transaction| {
            let known = timer_of_name(transaction, caller, &create.name)?;
            let missed = create.missed.unwrap_or_default();
            let mut timer = Timer { name: create.name, schedule, payload: create.payload, missed, next: now };
            if let Some((key, known)) = &known {
                timer.next = known.next;
                if timer == *known {
                    return Ok(json!({"id": key.2, "next": rfc3339(&known.next)}));
                }
            }
            timer.next = timer.schedule.first(now)?;
            let key = match known {
                Some((key, _)) => key,
                None => (caller.plugin.clone(), caller.tenant_key(), random_id()?),
            };
            self.replace_timer(transaction, &key, Some(&timer))?;
            Ok(json!({"id": key.2, "next": rfc3339(&timer.next)}))
        })
    }

    pub(super) fn scheduler_list(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let List {} = parse(params)?;
        let timers = self.store.read(|transaction| timers_of(&transaction.open_table(TIMERS)?, caller))?;
        let shown = timers
            .iter()
            .map(|((_, _, id), timer)| json!({"id": id, "name": timer.name, "next": rfc3339(&timer.next)}));
        Ok(json!({"timers": shown.collect::<Vec<_>>()}))
    }

    pub(super) fn scheduler_cancel(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Cancel { id } = parse(params)?;
        let key = (caller.plugin.clone(), caller.tenant_key(), id);
        let cancelled = self.store.write(|transaction| self.replace_timer(transaction, &key, None))?;
        Ok(json!({"cancelled": cancelled}))
    }

    /// Sets or removes a timer with its index and usage. Returns true if it existed.
    fn replace_timer(
        &self,
        transaction: &WriteTransaction,
        key: &TimerKey,
        timer: Option<&Timer>,
    ) -> Result<bool, CallError> {
        let (plugin, tenant, id) = table_key(key);
        let mut timers = transaction.open_table(TIMERS)?;
        let mut due = transaction.open_table(DUE)?;
        let text = timer.map(serde_json::to_vec).transpose()?;
        let before = match &text {
            Some(text) => timers.insert(table_key(key), text.as_slice())?,
            None => timers.remove(table_key(key))?,
        };
        let before = before.map(|old| old.value().to_vec());
        if let Some(old) = &before {
            let old: Timer = serde_json::from_slice(old)?;
            due.remove((old.next.timestamp_millis(), plugin, tenant, id))?;
        }
        if let Some(timer) = timer {
            due.insert((timer.next.timestamp_millis(), plugin, tenant, id), ())?;
        }
        let size = |text: &Vec<u8>| text.len() as u64;
        let change = Change { before: before.as_ref().map(size), after: text.as_ref().map(size) };
        charge(transaction, ("timers", plugin, tenant), self.limits.timers, change)?;
        Ok(before.is_some())
    }

    /// Plans a timer for its next time, or removes it without one. Returns false if it was cancelled or replaced.
    fn plan_next(&self, key: &TimerKey, of: &Timer, next: Option<DateTime<Utc>>) -> Result<bool, CallError> {
        self.store.write(|transaction| {
            let found = transaction.open_table(TIMERS)?.get(table_key(key))?.map(|found| found.value().to_vec());
            let is_same =
                found.is_some_and(|found| serde_json::from_slice::<Timer>(&found).is_ok_and(|now| now == *of));
            if is_same {
                let timer = next.map(|next| Timer { next, ..of.clone() });
                self.replace_timer(transaction, key, timer.as_ref())?;
            }
            Ok(is_same)
        })
    }

    /// Returns the timers whose time has come and which `wanted` selects, and the time of the first that has not come.
    fn due_timers(&self, mut wanted: impl FnMut(&TimerKey) -> bool) -> Result<Due, CallError> {
        let now = self.now();
        self.store.read(|transaction| {
            let (due, timers) = (transaction.open_table(DUE)?, transaction.open_table(TIMERS)?);
            let mut found = Vec::new();
            for item in due.range::<(i64, &str, &str, &str)>(..)? {
                let item = item?;
                let (next, plugin, tenant, id) = item.0.value();
                if next > now.timestamp_millis() {
                    return Ok((found, DateTime::from_timestamp_millis(next)));
                }
                let key = (plugin.to_owned(), tenant.to_owned(), id.to_owned());
                if wanted(&key)
                    && let Some(timer) = timers.get(table_key(&key))?
                {
                    found.push((key, serde_json::from_slice(timer.value())?));
                }
            }
            Ok((found, None))
        })
    }
}

fn timers_of(
    timers: &impl ReadableTable<(&'static str, &'static str, &'static str), &'static [u8]>,
    caller: &Caller,
) -> Result<Vec<(TimerKey, Timer)>, CallError> {
    let tenant = caller.tenant_key();
    let mut found = Vec::new();
    for item in timers.range((caller.plugin.as_str(), tenant.as_str(), "")..)? {
        let (key, timer) = item?;
        let (plugin, of, id) = key.value();
        if plugin != caller.plugin || of != tenant {
            break;
        }
        found.push(((plugin.to_owned(), of.to_owned(), id.to_owned()), serde_json::from_slice(timer.value())?));
    }
    Ok(found)
}

fn timer_of_name(
    transaction: &WriteTransaction,
    caller: &Caller,
    name: &str,
) -> Result<Option<(TimerKey, Timer)>, CallError> {
    let timers = timers_of(&transaction.open_table(TIMERS)?, caller)?;
    Ok(timers.into_iter().find(|(_, timer)| timer.name == name))
}

/// The part of the scheduler that delivers.
pub(super) struct Scheduler {
    inner: Arc<Inner>,
    running: Mutex<Running>,
    woken: Notify,
}

/// The timers that are being delivered.
#[derive(Default)]
struct Running {
    firings: HashMap<TimerKey, Firing>,
    is_stopped: bool,
}

struct Firing {
    task: JoinHandle<()>,
    is_done: bool,
}

impl Scheduler {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, running: Mutex::default(), woken: Notify::new() }
    }

    /// Looks at the timers again.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Starts the deliveries of timers when their time comes, until it is stopped.
    pub(super) async fn run(self: Arc<Self>, deliver: Arc<dyn Deliver>) {
        while !self.running.lock().is_stopped {
            let this = Arc::clone(&self);
            let due = tokio::task::spawn_blocking(move || this.select_due()).await.map_err(internal);
            let pause = match due.flatten() {
                Ok((due, next)) => {
                    for (key, timer) in due {
                        self.start(key, timer, &deliver);
                    }
                    next.map_or(MAX_PAUSE, |next| (next - self.inner.now()).to_std().unwrap_or_default()).min(MAX_PAUSE)
                }
                // The database cannot be read: try again later.
                Err(_) => MAX_PAUSE,
            };
            let _ = tokio::time::timeout(pause, self.woken.notified()).await;
        }
    }

    /// Selects timers to deliver: none that runs already, and a maximum number for each plugin.
    fn select_due(&self) -> Result<Due, CallError> {
        let mut by_plugin: HashMap<String, usize> = HashMap::new();
        let running: HashSet<TimerKey> = {
            let mut running = self.running.lock();
            running.firings.retain(|_, firing| !firing.task.is_finished());
            running.firings.iter().filter(|(_, firing)| !firing.is_done).map(|(key, _)| key.clone()).collect()
        };
        for (plugin, _, _) in &running {
            *by_plugin.entry(plugin.clone()).or_default() += 1;
        }
        self.inner.due_timers(|key| {
            let count = by_plugin.entry(key.0.clone()).or_default();
            let is_wanted = !running.contains(key) && *count < self.inner.limits.firings;
            *count += usize::from(is_wanted);
            is_wanted
        })
    }

    fn start(self: &Arc<Self>, key: TimerKey, timer: Timer, deliver: &Arc<dyn Deliver>) {
        let mut running = self.running.lock();
        if running.is_stopped {
            return;
        }
        let (this, deliver, of) = (Arc::clone(self), Arc::clone(deliver), key.clone());
        let task = tokio::spawn(async move {
            this.fire(&of, timer, &deliver).await;
            if let Some(firing) = this.running.lock().firings.get_mut(&of) {
                firing.is_done = true;
            }
            this.wake();
        });
        running.firings.insert(key, Firing { task, is_done: false });
    }

    /// Delivers the runs of a timer that are due, and plans it again.
    async fn fire(self: &Arc<Self>, key: &TimerKey, timer: Timer, deliver: &Arc<dyn Deliver>) {
        if self.try_fire(key, timer, deliver).await.is_err() {
            // The timer is still due: without a pause it would be delivered again and again.
            tokio::time::sleep(MAX_PAUSE).await;
        }
    }

    async fn try_fire(
        self: &Arc<Self>,
        key: &TimerKey,
        mut timer: Timer,
        deliver: &Arc<dyn Deliver>,
    ) -> Result<(), CallError> {
        let now = self.inner.now();
        let next = timer.schedule.after(timer.next, now)?;
        let runs = timer.schedule.runs(timer.next, now, timer.missed)?;
        if runs.is_empty() {
            self.plan(key, &timer, next).await?;
        }
        let following = runs.iter().skip(1).map(|run| Some(run.scheduled)).chain([next]);
        for (run, next) in runs.iter().zip(following) {
            let request = |_| delivery(key, &timer, run);
            self.inner.limits.retry.deliver(deliver, request).await;
            match (self.plan(key, &timer, next).await?, next) {
                (true, Some(next)) => timer.next = next,
                _ => break,
            }
        }
        Ok(())
    }

    async fn plan(
        self: &Arc<Self>,
        key: &TimerKey,
        timer: &Timer,
        next: Option<DateTime<Utc>>,
    ) -> Result<bool, CallError> {
        let (inner, key, timer) = (Arc::clone(&self.inner), key.clone(), timer.clone());
        tokio::task::spawn_blocking(move || inner.plan_next(&key, &timer, next)).await.map_err(internal)?
    }

    /// Starts no further delivery. Returns those that run.
    pub(super) fn stop(&self) -> Vec<JoinHandle<()>> {
        let mut running = self.running.lock();
        running.is_stopped = true;
        self.wake();
        running.firings.drain().map(|(_, firing)| firing.task).collect()
    }

    /// Stops, and waits until all deliveries have ended. Returns the number of those that were cut off at the deadline:
    /// their timers run again after the next start.
    pub(super) async fn finish(&self, deadline: Instant) -> usize {
        let mut cut_off = 0;
        for mut task in self.stop() {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
                cut_off += usize::from(task.await.is_err());
            }
        }
        cut_off
    }
}

fn delivery(key: &TimerKey, timer: &Timer, run: &Run) -> Delivery {
    let params = json!({
        "id": key.2, "name": timer.name, "payload": timer.payload, "scheduled": rfc3339(&run.scheduled),
        "missed": run.missed,
    });
    Delivery { plugin: key.0.clone(), tenant: tenant_of(&key.1), method: "scheduler.fire", params }
}

#[cfg(test)]
mod tests {
    use super::super::Drained;
    use super::super::testing::{Fixture, Plugins, caller};
    use super::*;
    use crate::ErrorKind;

    async fn create(fixture: &Fixture, caller: &Caller, params: Value) -> Value {
        fixture.ok(caller, "scheduler.create", params).await
    }

    #[tokio::test]
    async fn timers_survive_a_restart_and_follow_their_policy_for_missed_runs() {
        let mut fixture = Fixture::new();
        let a = caller("a", Some("t"));
        for (name, missed) in [("skip", "skip"), ("once", "once"), ("all", "all")] {
            let timer = json!({"name": name, "every": "1h", "missed": missed, "payload": {"n": name}});
            let created = create(&fixture, &a, timer).await;
            assert_eq!(created["next"], "2026-01-01T01:00:00Z");
        }
        create(&fixture, &a, json!({"name": "at", "at": "2026-01-01T02:00:00+01:00"})).await;
        fixture.advance_seconds(3 * 3600 + 1800);
        fixture.reopen();
        let plugins = Arc::new(Plugins::default());
        fixture.services().start(Arc::clone(&plugins) as _);
        let mut delivered = plugins.wait(5).await;
        let drained = fixture.services().drain(Duration::from_secs(60)).await;
        assert_eq!(drained, Drained::default());
        assert_eq!(plugins.delivered.lock().len(), 5);
        delivered
            .sort_by_key(|delivery| (delivery.params["name"].to_string(), delivery.params["scheduled"].to_string()));
        let seen: Vec<_> = delivered
            .iter()
            .map(|delivery| {
                let text = |key: &str| delivery.params[key].as_str().unwrap().to_owned();
                (text("name"), text("scheduled"), delivery.params["missed"].as_u64().unwrap())
            })
            .collect();
        let expected = [("all", 1, 0), ("all", 2, 0), ("all", 3, 0), ("at", 1, 0), ("once", 3, 2)];
        assert_eq!(
            seen,
            expected.map(|(name, hour, missed)| (name.into(), format!("2026-01-01T0{hour}:00:00Z"), missed))
        );
        assert!(delivered.iter().all(|d| d.method == "scheduler.fire" && d.tenant.as_deref() == Some("t")));
        fixture.reopen();
        let listed = fixture.ok(&a, "scheduler.list", json!({})).await;
        let timers = listed["timers"].as_array().unwrap();
        assert_eq!(timers.len(), 3);
        assert!(timers.iter().all(|timer| timer["next"] == "2026-01-01T04:00:00Z"), "{timers:?}");
    }

    #[tokio::test]
    async fn a_timer_of_the_same_name_is_replaced_and_an_equal_one_kept() {
        let fixture = Fixture::new();
        let a = caller("a", None);
        let first = create(&fixture, &a, json!({"name": "x", "every": "1h"})).await;
        fixture.advance_seconds(1800);
        assert_eq!(create(&fixture, &a, json!({"name": "x", "every": "60m"})).await, first);
        let changed = create(&fixture, &a, json!({"name": "x", "every": "2h"})).await;
        assert_eq!(changed, json!({"id": first["id"], "next": "2026-01-01T02:30:00Z"}));
        let other = create(&fixture, &caller("b", None), json!({"name": "x", "every": "1h"})).await;
        assert_ne!(other["id"], first["id"]);
        let cancel = json!({"id": first["id"]});
        let cancel_of =
            async |caller: &Caller| fixture.ok(caller, "scheduler.cancel", cancel.clone()).await["cancelled"].clone();
        assert_eq!(cancel_of(&caller("b", None)).await, false);
        assert_eq!(cancel_of(&a).await, true);
        assert_eq!(cancel_of(&a).await, false);
    }

    #[tokio::test]
    async fn a_failed_run_is_repeated_and_a_run_that_was_cut_off_runs_again() {
        let mut fixture = Fixture::new();
        let a = caller("a", None);
        create(&fixture, &a, json!({"name": "x", "at": "2026-01-01T00:00:00Z"})).await;
        let plugins = Arc::new(Plugins::default());
        *plugins.hangs.lock() = true;
        fixture.services().start(Arc::clone(&plugins) as _);
        plugins.wait(1).await;
        let drained = fixture.services().drain(Duration::from_millis(1)).await;
        assert_eq!(drained.timers, 1);
        fixture.reopen();
        let plugins = Arc::new(Plugins::default());
        *plugins.failures.lock() = 2;
        fixture.services().start(Arc::clone(&plugins) as _);
        assert_eq!(plugins.wait(3).await.len(), 3);
        fixture.services().drain(Duration::from_secs(60)).await;
        assert_eq!(fixture.ok(&a, "scheduler.list", json!({})).await["timers"], json!([]));
    }

    #[tokio::test]
    async fn a_timer_that_was_cancelled_during_its_run_is_not_planned_again() {
        let fixture = Fixture::new();
        let a = caller("a", None);
        let id = create(&fixture, &a, json!({"name": "x", "every": "1h"})).await["id"].clone();
        let inner = &fixture.services().inner;
        let timers = inner.store.read(|transaction| timers_of(&transaction.open_table(TIMERS)?, &a)).unwrap();
        let (key, timer) = &timers[0];
        assert!(inner.plan_next(key, timer, Some(timer.next)).unwrap());
        fixture.ok(&a, "scheduler.cancel", json!({"id": id})).await;
        assert!(!inner.plan_next(key, timer, Some(timer.next)).unwrap());
        assert_eq!(fixture.ok(&a, "scheduler.list", json!({})).await["timers"], json!([]));
    }

    #[tokio::test]
    async fn timers_that_hang_delay_no_other_plugin() {
        let fixture = Fixture::with(|config| config.limits.firings = 2);
        let plugins = Arc::new(Plugins::default());
        *plugins.hangs.lock() = true;
        fixture.services().start(Arc::clone(&plugins) as _);
        for name in ["1", "2", "3"] {
            create(&fixture, &caller("a", None), json!({"name": name, "at": "2026-01-01T00:00:00Z"})).await;
        }
        plugins.wait(2).await;
        create(&fixture, &caller("b", None), json!({"name": "x", "at": "2026-01-01T00:00:00Z"})).await;
        let delivered: Vec<_> = plugins.wait(3).await.into_iter().map(|delivery| delivery.plugin).collect();
        assert_eq!(delivered, ["a", "a", "b"]);
    }

    #[tokio::test]
    async fn timers_are_bounded() {
        let fixture = Fixture::with(|config| config.limits.timers.count = 1);
        let a = caller("a", None);
        for bad in [
            json!({"name": "x"}),
            json!({"name": "", "every": "1s"}),
            json!({"name": "x", "every": "999ms"}),
            json!({"name": "x", "every": "1s", "cron": "* * * * *"}),
            json!({"name": "x", "every": "1s", "timezone": "UTC"}),
            json!({"name": "x", "at": "tomorrow"}),
            json!({"name": "x", "at": "2025-01-01T00:00:00Z"}),
            json!({"name": "x", "cron": "* * * * *", "timezone": "Mars/Olympus"}),
            json!({"name": "x", "every": "1s", "missed": "some"}),
        ] {
            assert_eq!(fixture.err(&a, "scheduler.create", bad.clone()).await.kind, ErrorKind::InvalidParams, "{bad}");
        }
        create(&fixture, &a, json!({"name": "x", "cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"})).await;
        let error = fixture.err(&a, "scheduler.create", json!({"name": "y", "every": "1s"})).await;
        assert_eq!(error.kind, ErrorKind::Limit);
    }
}
