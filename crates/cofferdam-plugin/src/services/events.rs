//! Events: publish and subscribe, at least once within the host.
//!
//! ```text
//! publish --> the queue of each plugin with a pattern that matches --worker--> events.deliver, repeated on failure
//! ```
//!
//! A plugin has one queue and one delivery at a time, so it receives its events in the order of their publication. A full
//! queue refuses the event for all, so that none is lost unnoticed. Queues are in memory: they end with the host.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::pattern::{is_event_name, is_event_pattern, matches_event};
use crate::{CallError, ErrorKind};

use super::store::random_id;
use super::{Caller, Deliver, Delivery, ServiceLimits, parse, payload_text};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Publish {
    name: String,
    #[serde(default)]
    payload: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subscribe {
    pattern: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unsubscribe {
    subscription: String,
}

/// A published event. Its payload is text, whose size is known.
struct Event {
    id: String,
    name: String,
    payload: String,
    publisher: String,
}

struct Subscription {
    pattern: String,
    tenant: Option<String>,
}

/// An event that waits for a subscription.
#[derive(Clone)]
struct Waiting {
    number: u64,
    event: Arc<Event>,
    subscription: String,
    pattern: String,
    tenant: Option<String>,
}

/// The subscriptions and the queue of a plugin.
#[derive(Default)]
struct Subscriber {
    subscriptions: BTreeMap<String, Subscription>,
    queue: VecDeque<Waiting>,
    bytes: usize,
    added: Arc<Notify>,
    worker: Option<AbortHandle>,
}

#[derive(Default)]
struct State {
    subscribers: HashMap<String, Subscriber>,
    deliver: Option<Arc<dyn Deliver>>,
    refuses: bool,
    numbers: u64,
    dead_letters: u64,
}

/// The events of a host.
pub(super) struct Events {
    limits: ServiceLimits,
    state: Mutex<State>,
    removed: Notify,
}

impl Subscriber {
    fn matching(&self, name: &str) -> impl Iterator<Item = (&String, &Subscription)> {
        self.subscriptions.iter().filter(move |(_, subscription)| matches_event(&subscription.pattern, name))
    }

    fn retain(&mut self, keep: impl Fn(&Waiting) -> bool) {
        self.queue.retain(keep);
        self.bytes = self.queue.iter().map(|waiting| waiting.event.payload.len()).sum();
    }
}

impl Events {
    pub(super) fn new(limits: ServiceLimits) -> Self {
        Self { limits, state: Mutex::default(), removed: Notify::new() }
    }

    /// Starts the deliveries, also of what was published before.
    pub(super) fn start(self: &Arc<Self>, deliver: Arc<dyn Deliver>) {
        let mut state = self.state.lock();
        state.deliver = Some(Arc::clone(&deliver));
        for (plugin, subscriber) in &mut state.subscribers {
            self.start_worker(plugin, subscriber, &deliver);
        }
    }

    fn start_worker(self: &Arc<Self>, plugin: &str, subscriber: &mut Subscriber, deliver: &Arc<dyn Deliver>) {
        if subscriber.worker.is_none() {
            let (events, added, deliver) = (Arc::clone(self), Arc::clone(&subscriber.added), Arc::clone(deliver));
            let task = tokio::spawn(events.work(plugin.to_owned(), added, deliver));
            subscriber.worker = Some(task.abort_handle());
        }
    }

    pub(super) fn publish(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Publish { name, payload } = parse(params)?;
        if !is_event_name(&name) {
            return Err(CallError::invalid("name is no name of an event, such as weather.changed"));
        }
        let payload = payload_text(&payload, self.limits.payload)?;
        let event = Arc::new(Event { id: random_id()?, name, payload, publisher: caller.plugin.clone() });
        let mut state = self.state.lock();
        if state.refuses {
            return Err(stopping());
        }
        self.check_space(&state, &event)?;
        let subscribers = state.enqueue(&event);
        Ok(json!({"id": event.id, "subscribers": subscribers}))
    }

    /// Refuses an event if one of its queues is full.
    fn check_space(&self, state: &State, event: &Event) -> Result<(), CallError> {
        for (plugin, subscriber) in &state.subscribers {
            let added = subscriber.matching(&event.name).count();
            let has_space = subscriber.queue.len() + added <= self.limits.event_queue
                && subscriber.bytes + added * event.payload.len() <= self.limits.event_queue_bytes;
            if added > 0 && !has_space {
                let message = format!("the event queue of the plugin {plugin} is full; publish again later");
                return Err(CallError::new(ErrorKind::Limit, message).with("retryable", true));
            }
        }
        Ok(())
    }

    pub(super) fn subscribe(self: &Arc<Self>, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Subscribe { pattern } = parse(params)?;
        if !is_event_pattern(&pattern) {
            return Err(CallError::invalid("pattern is no pattern of events, such as weather.* or weather.**"));
        }
        let id = random_id()?;
        let mut state = self.state.lock();
        if state.refuses {
            return Err(stopping());
        }
        let deliver = state.deliver.clone();
        let subscriber = state.subscribers.entry(caller.plugin.clone()).or_default();
        let is_same = |known: &Subscription| known.pattern == pattern && known.tenant == caller.tenant;
        if let Some((id, _)) = subscriber.subscriptions.iter().find(|(_, known)| is_same(known)) {
            return Ok(json!({"subscription": id}));
        }
        if subscriber.subscriptions.len() >= self.limits.subscriptions {
            let message = format!("a plugin has at most {} subscriptions", self.limits.subscriptions);
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        subscriber.subscriptions.insert(id.clone(), Subscription { pattern, tenant: caller.tenant.clone() });
        if let Some(deliver) = deliver {
            self.start_worker(&caller.plugin, subscriber, &deliver);
        }
        Ok(json!({"subscription": id}))
    }

    pub(super) fn unsubscribe(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Unsubscribe { subscription } = parse(params)?;
        let mut state = self.state.lock();
        let missing = || CallError::not_found("the subscription does not exist");
        let subscriber = state.subscribers.get_mut(&caller.plugin).ok_or_else(missing)?;
        let known = subscriber.subscriptions.get(&subscription);
        known.filter(|known| known.tenant == caller.tenant).ok_or_else(missing)?;
        subscriber.subscriptions.remove(&subscription);
        subscriber.retain(|waiting| waiting.subscription != subscription);
        self.removed.notify_waiters();
        Ok(Value::Null)
    }

    /// Removes a plugin with its queue.
    pub(super) fn forget(&self, plugin: &str) {
        let subscriber = self.state.lock().subscribers.remove(plugin);
        if let Some(worker) = subscriber.and_then(|subscriber| subscriber.worker) {
            worker.abort();
        }
        self.removed.notify_waiters();
    }

    /// Delivers the events of a plugin, one after the other.
    async fn work(self: Arc<Self>, plugin: String, added: Arc<Notify>, deliver: Arc<dyn Deliver>) {
        loop {
            let front = self.state.lock().front(&plugin);
            let Some(waiting) = front else {
                added.notified().await;
                continue;
            };
            let request = |attempt| waiting.delivery(&plugin, attempt);
            let was_delivered = self.limits.retry.deliver(&deliver, request).await;
            self.state.lock().remove(&plugin, waiting.number, was_delivered);
            self.removed.notify_waiters();
        }
    }

    /// Refuses new events.
    pub(super) fn refuse(&self) {
        self.state.lock().refuses = true;
    }

    /// Waits until no event waits.
    pub(super) async fn idle(&self) {
        loop {
            let removed = self.removed.notified();
            tokio::pin!(removed);
            removed.as_mut().enable();
            if self.state.lock().count() == 0 {
                return;
            }
            removed.await;
        }
    }

    /// Stops the workers. Returns the number of events that still wait and of those given up.
    pub(super) fn stop(&self) -> (usize, u64) {
        let mut state = self.state.lock();
        state.refuses = true;
        for worker in state.subscribers.values_mut().filter_map(|subscriber| subscriber.worker.take()) {
            worker.abort();
        }
        (state.count(), state.dead_letters)
    }
}

impl State {
    /// Adds an event to its queues. Returns the number of subscriptions.
    fn enqueue(&mut self, event: &Arc<Event>) -> usize {
        let mut added = 0;
        for subscriber in self.subscribers.values_mut() {
            let waiting: Vec<Waiting> = subscriber
                .matching(&event.name)
                .zip(self.numbers + 1..)
                .map(|((id, subscription), number)| Waiting {
                    number,
                    event: Arc::clone(event),
                    subscription: id.clone(),
                    pattern: subscription.pattern.clone(),
                    tenant: subscription.tenant.clone(),
                })
                .collect();
            self.numbers += waiting.len() as u64;
            added += waiting.len();
            subscriber.bytes += waiting.len() * event.payload.len();
            subscriber.queue.extend(waiting);
            subscriber.added.notify_one();
        }
        added
    }

    fn front(&self, plugin: &str) -> Option<Waiting> {
        self.subscribers.get(plugin)?.queue.front().cloned()
    }

    /// Removes a delivered event, unless its subscription ended meanwhile.
    fn remove(&mut self, plugin: &str, number: u64, was_delivered: bool) {
        self.dead_letters += u64::from(!was_delivered);
        if let Some(subscriber) = self.subscribers.get_mut(plugin) {
            subscriber.retain(|waiting| waiting.number != number);
        }
    }

    fn count(&self) -> usize {
        self.subscribers.values().map(|subscriber| subscriber.queue.len()).sum()
    }
}

impl Waiting {
    fn delivery(&self, plugin: &str, attempt: u32) -> Delivery {
        let event = &self.event;
        let payload: Value = serde_json::from_str(&event.payload).unwrap_or_default();
        let params = json!({
            "id": event.id, "name": event.name, "payload": payload, "publisher": event.publisher,
            "attempt": attempt, "subscription": self.pattern,
        });
        Delivery { plugin: plugin.to_owned(), tenant: self.tenant.clone(), method: "events.deliver", params }
    }
}

fn stopping() -> CallError {
    CallError::new(ErrorKind::Unavailable, "the host is shutting down").with("reason", "shutting-down")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{Fixture, Plugins, caller};
    use super::super::{Drained, Services};
    use super::*;

    async fn publish(services: &Services, payload: impl Into<Value>) -> Result<Value, CallError> {
        let params = json!({"name": "weather.changed", "payload": payload.into()});
        services.call(&caller("publisher", None), "events.publish", params).await
    }

    #[tokio::test]
    async fn an_event_reaches_each_subscription_that_matches() {
        let fixture = Fixture::new();
        let plugins = Arc::new(Plugins::default());
        fixture.services().start(Arc::clone(&plugins) as _);
        for (plugin, tenant, pattern) in
            [("a", None, "weather.*"), ("a", Some("t"), "**"), ("b", None, "clock.*"), ("c", None, "weather.changed")]
        {
            fixture.ok(&caller(plugin, tenant), "events.subscribe", json!({"pattern": pattern})).await;
        }
        let published = publish(fixture.services(), 7).await.unwrap();
        assert_eq!(published["subscribers"], 3);
        let mut delivered = plugins.wait(3).await;
        delivered.sort_by_key(|delivery| (delivery.plugin.clone(), delivery.params["subscription"].to_string()));
        let seen: Vec<_> =
            delivered.iter().map(|delivery| (delivery.plugin.as_str(), delivery.tenant.as_deref())).collect();
        assert_eq!(seen, [("a", Some("t")), ("a", None), ("c", None)]);
        let expected = json!({
            "id": published["id"], "name": "weather.changed", "payload": 7, "publisher": "publisher", "attempt": 1,
            "subscription": "weather.changed",
        });
        assert_eq!((delivered[2].method, &delivered[2].params), ("events.deliver", &expected));
    }

    #[tokio::test]
    async fn failures_are_repeated_in_order_and_given_up_at_last() {
        let fixture = Fixture::new();
        let plugins = Arc::new(Plugins::default());
        *plugins.failures.lock() = 4;
        fixture.services().start(Arc::clone(&plugins) as _);
        fixture.ok(&caller("a", None), "events.subscribe", json!({"pattern": "**"})).await;
        for payload in 0..3 {
            publish(fixture.services(), payload).await.unwrap();
        }
        let delivered = plugins.wait(6).await;
        let seen: Vec<_> = delivered
            .iter()
            .map(|delivery| {
                (delivery.params["payload"].as_u64().unwrap(), delivery.params["attempt"].as_u64().unwrap())
            })
            .collect();
        // Three attempts are the limit of the tests.
        assert_eq!(seen, [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)]);
        let drained = fixture.services().drain(Duration::from_secs(60)).await;
        assert_eq!(drained, Drained { dead_letters: 1, ..Drained::default() });
    }

    #[tokio::test]
    async fn a_full_queue_refuses_the_event_for_all() {
        let fixture = Fixture::with(|config| {
            config.limits.event_queue = 2;
            config.limits.event_queue_bytes = 100;
        });
        fixture.ok(&caller("a", None), "events.subscribe", json!({"pattern": "weather.**"})).await;
        fixture.ok(&caller("b", None), "events.subscribe", json!({"pattern": "**"})).await;
        let services = fixture.services();
        assert_eq!(publish(services, "x".repeat(99)).await.unwrap_err().kind, ErrorKind::Limit);
        publish(services, 1).await.unwrap();
        publish(services, 2).await.unwrap();
        assert_eq!(publish(services, 3).await.unwrap_err().kind, ErrorKind::Limit);
        // What was published before the start is delivered, and the refused event to no plugin.
        let plugins = Arc::new(Plugins::default());
        services.start(Arc::clone(&plugins) as _);
        let drained = services.drain(Duration::from_secs(60)).await;
        assert_eq!(drained, Drained::default());
        assert_eq!(plugins.delivered.lock().len(), 4);
    }

    #[tokio::test]
    async fn drain_delivers_queued_events_and_reports_the_rest() {
        let fixture = Fixture::new();
        let plugins = Arc::new(Plugins::default());
        *plugins.hangs.lock() = true;
        let services = fixture.services();
        services.start(Arc::clone(&plugins) as _);
        fixture.ok(&caller("a", None), "events.subscribe", json!({"pattern": "**"})).await;
        for payload in 0..2 {
            publish(services, payload).await.unwrap();
        }
        plugins.wait(1).await;
        let drained = services.drain(Duration::from_millis(1)).await;
        assert_eq!(drained.events, 2);
        assert_eq!(publish(services, 3).await.unwrap_err().kind, ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn a_subscription_is_kept_until_it_ends() {
        let fixture = Fixture::with(|config| config.limits.subscriptions = 2);
        let a = caller("a", None);
        let services = fixture.services();
        let first = fixture.ok(&a, "events.subscribe", json!({"pattern": "**"})).await;
        // A plugin that restarts subscribes again.
        assert_eq!(fixture.ok(&a, "events.subscribe", json!({"pattern": "**"})).await, first);
        fixture.ok(&a, "events.subscribe", json!({"pattern": "x"})).await;
        assert_eq!(fixture.err(&a, "events.subscribe", json!({"pattern": "y"})).await.kind, ErrorKind::Limit);
        assert_eq!(
            fixture.err(&caller("b", None), "events.unsubscribe", first.clone()).await.kind,
            ErrorKind::NotFound
        );
        let other_tenant = caller("a", Some("t"));
        assert_eq!(fixture.err(&other_tenant, "events.unsubscribe", first.clone()).await.kind, ErrorKind::NotFound);
        publish(services, 1).await.unwrap();
        fixture.ok(&a, "events.unsubscribe", first.clone()).await;
        assert_eq!(services.events.state.lock().count(), 0, "an event of an ended subscription waits");
        assert_eq!(publish(services, 1).await.unwrap()["subscribers"], 0);
        assert_eq!(fixture.err(&a, "events.unsubscribe", first).await.kind, ErrorKind::NotFound);
        fixture.ok(&a, "events.subscribe", json!({"pattern": "**"})).await;
        services.forget("a");
        assert_eq!(publish(services, 1).await.unwrap()["subscribers"], 0);
        assert_eq!(services.drain(Duration::from_secs(60)).await, Drained::default());
    }

    #[tokio::test]
    async fn invalid_names_and_large_payloads_are_refused() {
        let fixture = Fixture::with(|config| config.limits.payload = 10);
        let a = caller("a", None);
        assert_eq!(fixture.err(&a, "events.publish", json!({"name": "a.*"})).await.kind, ErrorKind::InvalidParams);
        assert_eq!(fixture.err(&a, "events.subscribe", json!({"pattern": "a**"})).await.kind, ErrorKind::InvalidParams);
        let large = json!({"name": "a", "payload": "123456789"});
        assert_eq!(fixture.err(&a, "events.publish", large).await.kind, ErrorKind::Limit);
        fixture.ok(&a, "events.publish", json!({"name": "a"})).await;
    }
}
