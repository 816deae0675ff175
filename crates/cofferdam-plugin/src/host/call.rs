//! One call of a plugin's method.
//!
//! ```text
//! input schema -> ready process -> frames -> answer -> output schema
//!                     ^               |
//!                     |               +-- timeout, cancellation: $/cancelRequest, grace, SIGTERM, SIGKILL
//!                     +-- idempotent --- the process ended
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Inner;
use super::context::{Context, random_id};
use super::instance::{Ended, Instance, Running};
use super::load::Loaded;
use super::log::Severity;
use super::requests::CallGuard;
use super::trace::Span;
use crate::wire::{CallError, ErrorKind, Request, Step, StreamItem};

/// The number of times that an idempotent call is made again after its process ended.
const MAX_RETRIES: u32 = 2;
/// The maximum length of the identifier of a request.
const MAX_REQUEST_ID: usize = 128;
/// The time between two readings of a plugin's CPU time.
const CPU_INTERVAL: Duration = Duration::from_millis(50);

/// Options of a call.
#[derive(Debug, Clone, Default)]
pub struct CallOptions {
    /// The context.
    pub context: Context,
    /// The maximum time, if that is shorter than the manifest's.
    pub timeout: Option<Duration>,
    /// True if the caller takes progress and stream items.
    pub stream: bool,
}

/// A running call. Dropping it cancels it.
pub struct Call {
    items: Option<mpsc::Receiver<StreamItem>>,
    result: oneshot::Receiver<Result<Value, CallError>>,
    id: String,
}

impl Call {
    /// Returns the correlation identifier.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits for the next progress or stream item. Returns `None` when there will be no more.
    pub async fn next(&mut self) -> Option<StreamItem> {
        self.items.as_mut()?.recv().await
    }

    /// Waits for the result. Items that were not taken are discarded.
    pub async fn result(mut self) -> Result<Value, CallError> {
        self.items = None;
        let lost = |_| CallError::new(ErrorKind::Internal, "the host failed on this call");
        (&mut self.result).await.map_err(lost)?
    }
}

/// A call with everything that it needs.
struct CallRequest {
    plugin: String,
    method: String,
    input: Value,
    options: CallOptions,
    deadline: Instant,
    /// The time until which the manifest lets the call run. The caller's own deadline may come earlier.
    own_deadline: Instant,
    items: Option<mpsc::Sender<StreamItem>>,
}

impl Inner {
    /// Starts a call.
    pub fn call(self: &Arc<Self>, plugin: &str, method: &str, input: Value, mut options: CallOptions) -> Call {
        // The plugin returns the identifier, which the protocol bounds.
        if options.context.request_id.is_empty() || options.context.request_id.len() > MAX_REQUEST_ID {
            options.context.request_id = random_id();
        }
        let id = options.context.request_id.clone();
        let (items, receiver) = if options.stream {
            let (sender, receiver) = mpsc::channel(1);
            (Some(sender), Some(receiver))
        } else {
            (None, None)
        };
        let (mut reply, result) = oneshot::channel();
        let call_request = CallRequest {
            plugin: plugin.to_owned(),
            method: method.to_owned(),
            input,
            options,
            deadline: Instant::now(),
            own_deadline: Instant::now(),
            items,
        };
        let host = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = host.drive(call_request, &mut reply).await;
            let _ = reply.send(outcome);
        });
        Call { items: receiver, result, id }
    }

    async fn drive(
        &self,
        mut call_request: CallRequest,
        reply: &mut oneshot::Sender<Result<Value, CallError>>,
    ) -> Result<Value, CallError> {
        let begun = Instant::now();
        let loaded = self.find(&call_request.plugin)?;
        loaded.check_input(&call_request.method, &call_request.input)?;
        let limit = loaded.timeout(&call_request.method);
        call_request.own_deadline = begun + limit;
        let limit = call_request.options.timeout.map_or(limit, |own| own.min(limit));
        call_request.deadline = begun + limit;
        let correlation = call_request.options.context.request_id.clone();
        loaded.log.write(Severity::Debug, "call.started", Some(&correlation), json!({"method": call_request.method}));
        let span = self.config.traces.as_ref().map(|sink| {
            let span = Span::call(call_request.options.context.traceparent.as_deref());
            call_request.options.context.traceparent = Some(span.traceparent());
            (sink, span)
        });
        let outcome = self.attempts(&loaded, &mut call_request, limit, reply).await;
        let outcome = outcome.and_then(|output| loaded.check_output(&call_request.method, &output).map(|()| output));
        let tracked = loaded.calls.take_tracked(Some(&correlation));
        Arc::clone(&loaded.files).remove(tracked).await;
        let error = outcome.as_ref().err();
        if let Some((sink, span)) = span {
            let attributes = [
                ("plugin", &*call_request.plugin),
                ("rpc.method", &call_request.method),
                ("correlation_id", &correlation),
            ];
            span.end(sink, &format!("plugin.call {}.{}", call_request.plugin, call_request.method), &attributes, error);
        }
        self.metrics.call(&call_request.plugin, &call_request.method, error.map(|error| error.kind), begun.elapsed());
        let fields = json!({
            "method": call_request.method,
            "seconds": begun.elapsed().as_secs_f64(),
            "error": error.map(CallError::to_json),
            "traceparent": call_request.options.context.traceparent,
        });
        let severity = if error.is_some() { Severity::Warn } else { Severity::Info };
        loaded.log.write(severity, "call.ended", Some(&correlation), fields);
        outcome
    }

    async fn attempts(
        &self,
        loaded: &Loaded,
        call_request: &mut CallRequest,
        limit: Duration,
        reply: &mut oneshot::Sender<Result<Value, CallError>>,
    ) -> Result<Value, CallError> {
        let is_idempotent = loaded.manifest.methods.get(&call_request.method).is_some_and(|method| method.idempotent);
        let mut attempt = 0;
        loop {
            let running = tokio::select! {
                ready = loaded.supervisor().ready(call_request.deadline) => ready?,
                () = reply.closed() => return Err(cancelled()),
            };
            let mut delivered = false;
            let ended = match one_attempt(loaded, running, call_request, limit, reply, &mut delivered).await {
                Ok(outcome) => return outcome,
                Err(ended) => ended,
            };
            let again = is_idempotent && !delivered && attempt < MAX_RETRIES && Instant::now() < call_request.deadline;
            if !again {
                return Err(ended.to_error());
            }
            attempt += 1;
            let fields = json!({"method": call_request.method, "attempt": attempt, "reason": ended.reason});
            let correlation = &call_request.options.context.request_id;
            loaded.log.write(Severity::Warn, "call.retried", Some(correlation), fields);
        }
    }
}

fn cancelled() -> CallError {
    CallError::new(ErrorKind::Cancelled, "the call was cancelled")
}

/// The reason to stop a call, and whether it is the plugin's own limit that was reached.
struct Interruption {
    error: CallError,
    is_own: bool,
}

/// Makes the call in one process. Fails if the process ends first. `delivered` becomes true with the first stream item.
async fn one_attempt(
    loaded: &Loaded,
    running: Running,
    call_request: &mut CallRequest,
    limit: Duration,
    reply: &mut oneshot::Sender<Result<Value, CallError>>,
    delivered: &mut bool,
) -> Result<Result<Value, CallError>, Ended> {
    if Instant::now() >= call_request.deadline {
        return Ok(Err(late(limit)));
    }
    let instance = Arc::clone(running.instance());
    let context = &call_request.options.context;
    let call = loaded.calls.add(context);
    let left = call_request.deadline.saturating_duration_since(Instant::now());
    let mut params = json!({"method": call_request.method, "context": context.to_json(left)});
    params["input"] = call_request.input.clone();
    // The calls of a tenant share the room for items.
    let caller = call_request.options.stream.then(|| context.tenant.as_deref().unwrap_or_default());
    let sending = instance.peer.request("call", &params, &context.request_id, caller);
    let is_own_deadline = call_request.deadline >= call_request.own_deadline;
    let interruption = interruption(loaded, &instance, (call_request.deadline, is_own_deadline), limit, reply);
    tokio::pin!(interruption);
    let sent = tokio::select! {
        biased;
        sent = sending => sent,
        stopped = &mut interruption => {
            if stopped.is_own {
                // A plugin that does not read its input answers no cancellation either.
                let what = format!("it did not read its call of '{}': {}", call_request.method, stopped.error.message);
                instance.terminate(what, loaded.grace);
            }
            return Ok(Err(stopped.error));
        }
    };
    let mut request = match sent {
        Ok(request) => request,
        Err(error) if error.kind == ErrorKind::Unavailable => {
            instance.kill("it closed its input".to_owned());
            return ended(&instance, &mut interruption).await;
        }
        Err(error) => return Ok(Err(error)),
    };
    loop {
        let step = tokio::select! {
            step = request.step() => step,
            stopped = &mut interruption => {
                return Ok(Err(stop(loaded, (running, call), request, call_request, stopped).await));
            }
        };
        match step {
            Step::Answer(answer) => return Ok(answer),
            Step::Cut => return Ok(Err(stop(loaded, (running, call), request, call_request, too_slow()).await)),
            Step::Ended => return ended(&instance, &mut interruption).await,
            Step::Item(item) => {
                *delivered |= matches!(item, StreamItem::Item(_));
                let Some(items) = &call_request.items else { continue };
                tokio::select! {
                    sent = items.send(item) => if sent.is_err() { call_request.items = None },
                    () = request.cut() => {
                        return Ok(Err(stop(loaded, (running, call), request, call_request, too_slow()).await));
                    }
                    stopped = &mut interruption => {
                        return Ok(Err(stop(loaded, (running, call), request, call_request, stopped).await));
                    }
                }
            }
        }
    }
}

fn too_slow() -> Interruption {
    let error = CallError::new(ErrorKind::Limit, "the caller takes the items of the stream too slowly");
    Interruption { error, is_own: false }
}

fn late(limit: Duration) -> CallError {
    CallError::new(ErrorKind::Timeout, format!("the call took longer than {} s", limit.as_secs_f64()))
}

/// Waits for the end of a process, but no longer than the call may take.
async fn ended(
    instance: &Instance,
    interruption: impl Future<Output = Interruption>,
) -> Result<Result<Value, CallError>, Ended> {
    tokio::select! {
        ended = instance.ended() => Err(ended),
        stopped = interruption => Ok(Err(stopped.error)),
    }
}

/// Waits for the reason to stop a call: its timeout, its CPU time, or a caller that has gone.
async fn interruption(
    loaded: &Loaded,
    instance: &Instance,
    (deadline, is_own): (Instant, bool),
    limit: Duration,
    reply: &mut oneshot::Sender<Result<Value, CallError>>,
) -> Interruption {
    tokio::select! {
        () = sleep_until(deadline) => Interruption { error: late(limit), is_own },
        () = cpu_time(loaded, instance) => {
            Interruption { error: CallError::new(ErrorKind::Limit, "the call used up its CPU time"), is_own: true }
        }
        () = reply.closed() => Interruption { error: cancelled(), is_own: false },
    }
}

/// Waits until the plugin has used more CPU time than a call may. Calls that run at the same time count together.
async fn cpu_time(loaded: &Loaded, instance: &Instance) {
    let Some(limit) = loaded.manifest.sandbox.limits.cpu_time else { return std::future::pending().await };
    let begin = instance.cpu_seconds().await;
    loop {
        tokio::time::sleep(CPU_INTERVAL).await;
        if let (Some(begin), Some(now)) = (begin, instance.cpu_seconds().await)
            && now - begin > limit.as_secs_f64()
        {
            return;
        }
    }
}

/// Cancels a call. Ends the process if it does not answer within the grace period after the plugin's own limit. A caller
/// with a shorter limit does not wait for that.
async fn stop(
    loaded: &Loaded,
    guards: (Running, CallGuard),
    mut request: Request,
    call_request: &CallRequest,
    stopped: Interruption,
) -> CallError {
    let Interruption { error, is_own } = stopped;
    let correlation = call_request.options.context.request_id.clone();
    let (log, grace, method) = (loaded.log.clone(), loaded.grace, call_request.method.clone());
    let until = if is_own { Instant::now() } else { call_request.own_deadline } + grace;
    let reason = error.message.clone();
    let stopping = async move {
        let (running, _call) = guards;
        let answered = async {
            request.cancel(&correlation).await;
            while let Step::Item(_) | Step::Cut = request.step().await {}
        };
        let in_time = timeout_at(until, answered).await.is_ok();
        let fields = json!({"method": method, "reason": reason, "answered": in_time});
        log.write(Severity::Warn, "call.stopped", Some(&correlation), fields);
        if !in_time {
            let what = format!("its call of '{method}' did not end after cancellation: {reason}");
            running.instance().terminate(what, grace);
        }
        in_time
    };
    if !is_own {
        tokio::spawn(stopping);
        return error;
    }
    if stopping.await { error } else { error.with("ended", true) }
}
