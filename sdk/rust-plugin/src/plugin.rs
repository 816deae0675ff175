//! The methods and handlers of a plugin.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::{CallContext, Context};
use crate::{Error, ErrorKind, Result};

type Method = Box<dyn Fn(Value, &Context) -> Result<Value> + Send + Sync>;
type EventHandler = Box<dyn Fn(&Event, &Context) -> Result<()> + Send + Sync>;
type TimerHandler = Box<dyn Fn(&Timer, &Context) -> Result<()> + Send + Sync>;
type ShutdownHandler = Box<dyn Fn(&Context) -> Result<()> + Send + Sync>;

/// An event.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// The identifier, which repeated deliveries share.
    pub id: String,
    /// The name.
    pub name: String,
    /// The payload.
    #[serde(default)]
    pub payload: Value,
    /// The plugin that published the event.
    #[serde(default)]
    pub publisher: String,
    /// The number of this delivery, from 1.
    #[serde(default)]
    pub attempt: u64,
    /// The pattern of the subscription.
    #[serde(default)]
    pub subscription: String,
}

/// A timer that fired.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Timer {
    /// The identifier.
    pub id: String,
    /// The name.
    pub name: String,
    /// The payload.
    #[serde(default)]
    pub payload: Value,
    /// The time for which it was scheduled, as in RFC 3339.
    #[serde(default)]
    pub scheduled: String,
    /// The number of times that were missed.
    #[serde(default)]
    pub missed: u64,
}

#[derive(Deserialize)]
struct CallParams {
    method: String,
    #[serde(default)]
    input: Value,
    context: Option<CallContext>,
}

/// A plugin.
#[derive(Default)]
#[must_use = "a plugin does nothing before `run`"]
pub struct Plugin {
    methods: BTreeMap<String, Method>,
    events: Vec<(String, EventHandler)>,
    timers: BTreeMap<String, TimerHandler>,
    shutdown: Vec<ShutdownHandler>,
}

impl Plugin {
    /// Creates a plugin without methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a method. An input that does not fit its type is an error of the kind [`ErrorKind::InvalidParams`].
    pub fn method<I, O, F>(mut self, name: &str, method: F) -> Self
    where
        I: DeserializeOwned,
        O: Serialize,
        F: Fn(I, &Context) -> Result<O> + Send + Sync + 'static,
    {
        let method = move |input: Value, context: &Context| {
            let input = serde_json::from_value(input).map_err(|error| Error::invalid(error.to_string()))?;
            Ok(serde_json::to_value(method(input, context)?)?)
        };
        self.methods.insert(name.to_owned(), Box::new(method));
        self
    }

    /// Registers a handler of events. In a pattern, `*` is one part of a name, and `**` at the end any number of parts.
    pub fn on_event<F>(mut self, pattern: &str, handler: F) -> Self
    where
        F: Fn(&Event, &Context) -> Result<()> + Send + Sync + 'static,
    {
        self.events.push((pattern.to_owned(), Box::new(handler)));
        self
    }

    /// Registers the handler of the timers with a name.
    pub fn on_timer<F>(mut self, name: &str, handler: F) -> Self
    where
        F: Fn(&Timer, &Context) -> Result<()> + Send + Sync + 'static,
    {
        self.timers.insert(name.to_owned(), Box::new(handler));
        self
    }

    /// Registers a handler that runs before the plugin ends.
    pub fn on_shutdown<F>(mut self, handler: F) -> Self
    where
        F: Fn(&Context) -> Result<()> + Send + Sync + 'static,
    {
        self.shutdown.push(Box::new(handler));
        self
    }

    /// Runs the plugin on standard input and output, until the host ends it.
    pub fn run(self) -> ! {
        crate::session::run(self)
    }

    /// Returns the names of the methods.
    pub(crate) fn method_names(&self) -> Vec<&str> {
        self.methods.keys().map(String::as_str).collect()
    }

    /// Runs a request of the host. `context` creates its context.
    pub(crate) fn dispatch(
        &self,
        method: &str,
        params: Value,
        context: impl FnOnce(CallContext) -> Context,
    ) -> Result<Value> {
        match method {
            "call" => {
                let call: CallParams = parse(params)?;
                let unknown = || not_found(ErrorKind::MethodNotFound, "method", &call.method);
                let method = self.methods.get(&call.method).ok_or_else(unknown)?;
                method(call.input, &context(call.context.unwrap_or_default()))
            }
            "events.deliver" => self.deliver(&parse(params)?, &context(CallContext::default())),
            "scheduler.fire" => {
                let timer: Timer = parse(params)?;
                let unknown = || not_found(ErrorKind::NotFound, "handler for the timer", &timer.name);
                let handler = self.timers.get(&timer.name).ok_or_else(unknown)?;
                handler(&timer, &context(CallContext::default())).map(|()| Value::Null)
            }
            "shutdown" => {
                let context = context(CallContext::default());
                self.shutdown.iter().try_for_each(|handler| handler(&context)).map(|()| Value::Null)
            }
            _ => Err(not_found(ErrorKind::MethodNotFound, "request", method)),
        }
    }

    /// Runs the handlers of an event: those of its subscription, else those that match its name.
    fn deliver(&self, event: &Event, context: &Context) -> Result<Value> {
        let exact = self.events.iter().any(|(pattern, _)| *pattern == event.subscription);
        let is_match =
            |pattern: &str| if exact { pattern == event.subscription } else { matches(pattern, &event.name) };
        let mut found = self.events.iter().filter(|(pattern, _)| is_match(pattern)).peekable();
        if found.peek().is_none() {
            return Err(not_found(ErrorKind::NotFound, "handler for the event", &event.name));
        }
        found.try_for_each(|(_, handler)| handler(event, context)).map(|()| Value::Null)
    }
}

fn parse<T: DeserializeOwned>(params: Value) -> Result<T> {
    serde_json::from_value(params).map_err(|error| Error::invalid(error.to_string()))
}

fn not_found(kind: ErrorKind, what: &str, name: &str) -> Error {
    Error::new(kind, format!("the plugin has no {what} {name}"))
}

/// Returns true if a pattern matches the name of an event.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let names: Vec<&str> = name.split('.').collect();
    let mut parts: Vec<&str> = pattern.split('.').collect();
    let open = parts.last() == Some(&"**");
    if open {
        parts.pop();
    }
    let has_length = if open { names.len() > parts.len() } else { names.len() == parts.len() };
    has_length && parts.iter().zip(&names).all(|(part, name)| *part == "*" || part == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_by_parts() {
        for (pattern, name) in [("a.b", "a.b"), ("a.*", "a.b"), ("a.**", "a.b.c"), ("**", "a"), ("*.b", "a.b")] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a.b", "a.c"), ("a.*", "a"), ("a.*", "a.b.c"), ("a.**", "a"), ("a", "ab")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
