//! A connection to the host.
//!
//! ```text
//! new --initialize--> ready --shutdown--> ended
//! ```
//!
//! The main thread reads messages. Requests of the host wait in a queue for one of at most 16 workers. Without threads,
//! the main thread runs them itself, and a method that waits reads the messages that arrive meanwhile.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::context::{Call, Context, Host};
use crate::wire::{self, Broken, MAX_BODY};
use crate::{Error, ErrorKind, Plugin, Result, stdio};

const THREADS: bool = !cfg!(target_family = "wasm");
const MAX_WORKERS: usize = 16;
/// The maximum number of requests of one side without an answer.
const MAX_REQUESTS: usize = 256;
const MAX_BATCH: usize = 100;
/// The maximum length of an identifier in bytes.
const MAX_ID: usize = 128;
const MAX_INTEGER_ID: u64 = (1 << 53) - 1;
/// The maximum number of items beyond the last acknowledged count.
const STREAM_CREDIT: u64 = 64;
/// The exit status after a broken frame.
const STATUS_BROKEN: i32 = 65;

/// Runs a plugin until the host ends it.
pub fn run(plugin: Plugin) -> ! {
    let (input, output) = stdio::take().unwrap_or_else(|error| {
        eprintln!("cannot take the descriptors of the protocol: {error}");
        process::exit(1);
    });
    let session = Arc::new(Session {
        plugin,
        input: Mutex::new(Box::new(BufReader::new(input))),
        output: Mutex::new(Box::new(output)),
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
        queued: Condvar::new(),
    });
    loop {
        if !THREADS {
            session.work();
        }
        session.read_message();
    }
}

struct Session {
    plugin: Plugin,
    input: Mutex<Box<dyn BufRead + Send>>,
    output: Mutex<Box<dyn Write + Send>>,
    state: Mutex<State>,
    /// Signals answers, cancellations and acknowledgements.
    changed: Condvar,
    /// Signals jobs to idle workers.
    queued: Condvar,
}

#[derive(Default)]
struct State {
    phase: Phase,
    config: Value,
    max_body: Option<usize>,
    last_id: u64,
    /// Requests of the host without an answer, by identifier.
    running: HashMap<String, Arc<Call>>,
    queue: VecDeque<Job>,
    workers: usize,
    idle: usize,
    /// Requests of this side, with the identifier of their call and the answer.
    pending: HashMap<u64, (Value, Option<Result<Value>>)>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    New,
    Ready,
    Ended,
}

struct Job {
    call: Arc<Call>,
    method: String,
    params: Value,
}

/// Locks a mutex. A panic of a method cannot leave the data of this module inconsistent.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receiving.
impl Session {
    /// Reads and handles a message. Ends the process at the end of the input.
    fn read_message(self: &Arc<Self>) {
        let message = wire::read(&mut *lock(&self.input));
        let handled = match message {
            Ok(Some(message)) => self.receive(message),
            Ok(None) => process::exit(0),
            Err(broken) => Err(broken),
        };
        if let Err(Broken(verdict)) = handled {
            eprintln!("the host broke the protocol: {verdict}");
            process::exit(STATUS_BROKEN);
        }
    }

    fn receive(self: &Arc<Self>, message: Value) -> Result<(), Broken> {
        let Value::Array(batch) = message else { return self.handle(message) };
        if batch.is_empty() || batch.len() > MAX_BATCH {
            return Err(Broken("bad-message"));
        }
        batch.into_iter().try_for_each(|message| self.handle(message))
    }

    fn handle(self: &Arc<Self>, mut message: Value) -> Result<(), Broken> {
        if message["jsonrpc"] != "2.0" || !message.is_object() {
            return Err(Broken("bad-message"));
        }
        let params = message["params"].take();
        let Some(method) = message["method"].as_str() else { return self.settle(&mut message) };
        if message.get("id").is_none() {
            self.notified(method, &params);
            return Ok(());
        }
        let method = method.to_owned();
        let call = self.begin(&message)?;
        match method.as_str() {
            "ping" => self.answer(&call, Ok(Value::Null)),
            "initialize" => self.answer(&call, self.initialize(&params)),
            _ => self.enqueue(Job { call, method, params }),
        }
        Ok(())
    }

    /// Registers a request of the host.
    fn begin(&self, message: &Value) -> Result<Arc<Call>, Broken> {
        let id = &message["id"];
        let valid =
            id.as_u64().is_some_and(|id| id <= MAX_INTEGER_ID) || id.as_str().is_some_and(|id| id.len() <= MAX_ID);
        let mut state = lock(&self.state);
        if !valid || state.running.contains_key(&id.to_string()) {
            return Err(Broken("bad-message"));
        }
        if state.running.len() >= MAX_REQUESTS {
            return Err(Broken("flood"));
        }
        let correlation_id = message["correlationId"].as_str().map_or_else(|| state.correlation_id(), str::to_owned);
        let call = Arc::new(Call::new(id.clone(), correlation_id));
        state.running.insert(id.to_string(), Arc::clone(&call));
        Ok(call)
    }

    fn initialize(&self, params: &Value) -> Result<Value> {
        let mut state = lock(&self.state);
        if state.phase != Phase::New {
            return Err(Error::new(ErrorKind::InvalidRequest, "the plugin is initialized already"));
        }
        if params["protocolVersion"] != 1 {
            return Err(Error::invalid(format!("the SDK speaks protocol 1, the host {}", params["protocolVersion"])));
        }
        state.phase = Phase::Ready;
        state.config = params["config"].clone();
        state.max_body = params["maxMessage"].as_u64().and_then(|max| usize::try_from(max).ok());
        let sdk = json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")});
        Ok(json!({"protocolVersion": 1, "sdk": sdk, "methods": self.plugin.method_names()}))
    }

    /// Handles a response.
    fn settle(&self, message: &mut Value) -> Result<(), Broken> {
        let result = match message.get("error") {
            Some(error) => Err(Error::from_wire(error).ok_or(Broken("bad-message"))?),
            None => Ok(message["result"].take()),
        };
        let mut state = lock(&self.state);
        let pending = message["id"].as_u64().and_then(|id| state.pending.get_mut(&id));
        let Some((_, answer @ None)) = pending else { return Err(Broken("unknown-id")) };
        *answer = Some(result);
        self.changed.notify_all();
        Ok(())
    }

    fn notified(&self, method: &str, params: &Value) {
        if method == "exit" {
            // After the frame that another thread writes.
            let _output = lock(&self.output);
            process::exit(0);
        }
        let Some(call) = lock(&self.state).running.get(&params["id"].to_string()).cloned() else { return };
        match method {
            "$/cancelRequest" => self.cancel(&call),
            "$/streamAck" => {
                let count = params["count"].as_u64().unwrap_or(0).min(call.sent.load(Ordering::SeqCst));
                let _state = lock(&self.state);
                call.acknowledged.fetch_max(count, Ordering::SeqCst);
                self.changed.notify_all();
            }
            _ => {}
        }
    }

    /// Cancels a call and the requests that it waits for.
    fn cancel(&self, call: &Call) {
        let state = lock(&self.state);
        call.cancelled.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        let open = state.pending.iter().filter(|(_, (owner, answer))| *owner == call.id && answer.is_none());
        let ids: Vec<u64> = open.map(|(id, _)| *id).collect();
        drop(state);
        for id in ids {
            let _ = self.notify(call, "$/cancelRequest", json!({"id": id}));
        }
    }
}

/// Running.
impl Session {
    fn enqueue(self: &Arc<Self>, job: Job) {
        let mut state = lock(&self.state);
        state.queue.push_back(job);
        self.queued.notify_one();
        if !THREADS || state.idle >= state.queue.len() || state.workers >= MAX_WORKERS {
            return;
        }
        let session = Arc::clone(self);
        // Without another thread, the running workers take the job.
        if std::thread::Builder::new().spawn(move || session.work()).is_ok() {
            state.workers += 1;
        } else if state.workers == 0 {
            eprintln!("cannot create a thread for a request");
            process::exit(1);
        }
    }

    /// Runs the jobs of the queue. Without threads, returns when it is empty.
    fn work(self: &Arc<Self>) {
        while let Some((phase, job)) = self.next_job() {
            let result = self.execute(phase, &job.call, &job.method, job.params);
            self.answer(&job.call, result);
            if job.method == "shutdown" && phase == Phase::Ready {
                lock(&self.state).phase = Phase::Ended;
            }
        }
    }

    fn next_job(&self) -> Option<(Phase, Job)> {
        let mut state = lock(&self.state);
        loop {
            let phase = state.phase;
            match state.queue.pop_front() {
                Some(job) => return Some((phase, job)),
                None if !THREADS => return None,
                None => {}
            }
            state.idle += 1;
            state = self.queued.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    fn execute(self: &Arc<Self>, phase: Phase, call: &Arc<Call>, method: &str, params: Value) -> Result<Value> {
        if phase != Phase::Ready {
            return Err(Error::new(ErrorKind::InvalidRequest, format!("the plugin is not ready for {method}")));
        }
        let context = |fields| Context::new(Arc::new(Connection(Arc::clone(self))), Arc::clone(call), fields);
        if call.is_cancelled() {
            return context(Default::default()).check_cancelled().map(|()| Value::Null);
        }
        catch_unwind(AssertUnwindSafe(|| self.plugin.dispatch(method, params, context)))
            .unwrap_or_else(|panic| Err(Error::failed(panic_message(&*panic)).with("type", "panic")))
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("the method panicked")
}

/// Sending.
impl Session {
    fn answer(&self, call: &Call, result: Result<Value>) {
        let mut answer = json!({"jsonrpc": "2.0", "id": call.id, "correlationId": call.correlation_id});
        let error = match result {
            Ok(result) => {
                answer["result"] = result;
                None
            }
            Err(error) => Some(error),
        };
        let max_body = self.max_body();
        let body = match error {
            None => wire::encode(&answer, max_body),
            Some(error) => Err(error),
        };
        let body = body.or_else(|error| {
            answer.as_object_mut().map(|answer| answer.remove("result"));
            answer["error"] = error.to_wire();
            wire::encode(&answer, max_body)
        });
        let body = body.or_else(|error| {
            answer["error"] = error.to_wire();
            wire::encode(&answer, max_body)
        });
        // The host may use the identifier again as soon as it has the answer.
        lock(&self.state).running.remove(&call.id.to_string());
        if let Ok(body) = body {
            self.send(&body);
        }
    }

    fn send(&self, body: &[u8]) {
        let ended = lock(&self.state).phase == Phase::Ended;
        if !ended && wire::write(&mut *lock(&self.output), body).is_err() {
            // The host is gone.
            process::exit(0);
        }
    }

    fn max_body(&self) -> usize {
        lock(&self.state).max_body.unwrap_or(MAX_BODY).min(MAX_BODY)
    }

    fn notify(&self, call: &Call, method: &str, params: Value) -> Result<()> {
        let message = json!({
            "jsonrpc": "2.0", "method": method, "params": params, "correlationId": call.correlation_id,
        });
        self.send(&wire::encode(&message, self.max_body())?);
        Ok(())
    }

    /// Waits until `ready` returns a value. Without threads, reads messages meanwhile.
    fn wait<T>(self: &Arc<Self>, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut state = lock(&self.state);
        loop {
            if let Some(value) = ready(&mut state) {
                return value;
            }
            if THREADS {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else {
                drop(state);
                self.read_message();
                state = lock(&self.state);
            }
        }
    }
}

impl State {
    /// Creates an identifier for a request of the host that has none.
    fn correlation_id(&mut self) -> String {
        self.last_id += 1;
        let random = RandomState::new().build_hasher().finish();
        format!("{random:x}-{}", self.last_id)
    }
}

/// The host, as the methods see it.
struct Connection(Arc<Session>);

impl Host for Connection {
    fn request(&self, call: &Call, method: &str, params: Value) -> Result<Value> {
        let Self(session) = self;
        let id = session.wait(|state| {
            let free = state.pending.len() < MAX_REQUESTS;
            free.then(|| {
                state.last_id += 1;
                state.pending.insert(state.last_id, (call.id.clone(), None));
                state.last_id
            })
        });
        let message = json!({
            "jsonrpc": "2.0", "id": id, "method": method, "params": params, "correlationId": call.correlation_id,
        });
        match wire::encode(&message, session.max_body()) {
            Ok(body) => session.send(&body),
            Err(error) => {
                lock(&session.state).pending.remove(&id);
                session.changed.notify_all();
                return Err(error);
            }
        }
        let answer = session.wait(|state| {
            let answered = state.pending.get(&id).is_none_or(|(_, answer)| answer.is_some());
            answered.then(|| state.pending.remove(&id))
        });
        session.changed.notify_all();
        answer.and_then(|(_, answer)| answer).unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "no answer")))
    }

    fn notify(&self, call: &Call, method: &str, params: Value) -> Result<()> {
        self.0.notify(call, method, params)
    }

    fn wait_for_credit(&self, call: &Call) {
        let open = || call.sent.load(Ordering::SeqCst) - call.acknowledged.load(Ordering::SeqCst);
        self.0.wait(|_| (call.is_cancelled() || open() < STREAM_CREDIT).then_some(()));
    }

    fn config(&self) -> Value {
        lock(&self.0.state).config.clone()
    }
}
