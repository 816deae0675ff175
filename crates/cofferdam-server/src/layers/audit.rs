//! Audit: records each exec before it starts and after it has ended, and the network of each sandbox.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam_audit::{
    Denial, Digest, ExecutionId, Exit as AuditedExit, Limits, Listed, Log, Outcome, Program, Redactor, Reservation,
    Subject, Text, Timestamp, Usage,
};
use cofferdam_code::NetworkRecording;
use cofferdam_contract::{
    Command, Error, ErrorKind, ExecRequest, Exit, Level, NetworkDenial, NetworkPolicy, Result, Sandbox, Spec,
};
use parking_lot::Mutex;

use super::egress::EgressLog;
use super::{Concern, WeakSandbox};
use crate::admission::Admission;
use crate::ids::new_id;
use crate::live::CREATED;
use crate::report;

/// The audit of all sandboxes of a backend.
pub struct AuditConcern {
    /// The backend's name.
    pub backend: String,
    /// The backend's level.
    pub level: Level,
    /// The log.
    pub log: Log,
    /// The quotas of audit records.
    pub admission: Arc<Admission>,
}

impl fmt::Debug for AuditConcern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditConcern").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// The audit of one sandbox.
#[derive(Debug, Default)]
pub struct Held {
    sandbox: OnceLock<Known>,
    /// The recording of its network, until it is closed.
    recording: Mutex<Option<NetworkRecording>>,
}

/// A sandbox that was created.
#[derive(Debug)]
struct Known {
    id: String,
    posture: Option<Digest>,
    sandbox: WeakSandbox,
}

impl Held {
    /// Returns what the network policy has refused so far.
    fn denials(&self) -> Vec<NetworkDenial> {
        let sandbox = self.sandbox.get().and_then(|known| Weak::upgrade(&known.sandbox));
        sandbox.map(|sandbox| sandbox.network_denials()).unwrap_or_default()
    }
}

/// An exec whose end is recorded. If it is abandoned, its record says so.
pub struct Exec {
    reservation: Option<Reservation>,
    begun: Instant,
    /// The refusals of the network policy before it began.
    denied: Vec<NetworkDenial>,
}

impl Drop for Exec {
    fn drop(&mut self) {
        if let Some(mut reservation) = self.reservation.take() {
            let exit = AuditedExit { cancelled: true, ..AuditedExit::default() };
            let outcome = unknown(exit, self.begun.elapsed(), None);
            // Without a runtime, the thread that drops it does the work.
            let work = move || drop(reservation.commit(outcome));
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn_blocking(work)),
                Err(_) => work(),
            }
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn unknown(exit: AuditedExit, time: Duration, sandbox: Option<&Known>) -> Outcome {
    Outcome {
        exit,
        duration_us: micros(time),
        usage: Usage::default(),
        posture: sandbox.and_then(|known| known.posture),
        files: None,
        denials: Listed::default(),
        artifact: None,
        sandbox: sandbox.map(|known| Text::new(&known.id)),
        restored: None,
    }
}

fn denial(denial: &NetworkDenial) -> Denial {
    Denial { by: Text::new("network"), what: Text::new(&denial.what), times: denial.times }
}

fn program(command: &Command) -> Program {
    match command {
        Command::Argv(argv) => Program::command(argv),
        Command::Shell(line) => Program::command(["/bin/sh", "-c", line]),
        Command::Script(script) => Program::code(&script.contents),
    }
}

/// Runs work of the log on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> cofferdam_audit::Result<T> + Send + 'static,
) -> Result<T> {
    let failed = |problem: String| {
        Error::new(ErrorKind::Unavailable, "audit", format!("the audit log failed: {problem}"))
            .with_remedy("the operator must repair the log or its disk; cofferdam audit verify examines it")
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|problem| failed(problem.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

impl AuditConcern {
    fn subject(&self, spec: &Spec, request: &ExecRequest) -> Result<Subject> {
        let limits = spec.limits();
        Ok(Subject {
            id: ExecutionId::new(new_id("exec")?).map_err(|error| Error::invalid("audit", error.to_string()))?,
            tenant: Some(Text::new(spec.tenant().as_str())),
            start: Timestamp::now(),
            backend: Text::new(&self.backend),
            level: Text::new(self.level.as_str()),
            runtime: match request.command() {
                Command::Script(script) => script.interpreter.first().map(Text::new),
                Command::Argv(_) | Command::Shell(_) => None,
            },
            version: None,
            program: program(request.command()),
            limits: Limits {
                wall_us: Some(micros(request.timeout().unwrap_or(limits.wall_time))),
                cpu_us: limits.cpu_time.map(micros),
                memory_bytes: limits.memory.map(|size| size.as_bytes()),
                disk_bytes: limits.disk.map(|size| size.as_bytes()),
                processes: limits.pids.map(u64::from),
                output_bytes: Some(request.max_output().as_bytes()),
            },
        })
    }
}

#[async_trait]
impl Concern for AuditConcern {
    type Held = Held;
    type Exec = Exec;

    async fn enter(&self, _: &Spec) -> Result<Held> {
        Ok(Held::default())
    }

    fn separates_start(&self, spec: &Spec) -> bool {
        // The network of a program that runs already would have connections without a record.
        *spec.network() != NetworkPolicy::None
    }

    async fn created(&self, held: &Held, created: Result<&Arc<dyn Sandbox>, &Error>) -> Result<()> {
        if let Ok(sandbox) = created {
            let posture = serde_json::to_vec(sandbox.posture()).ok().map(Digest::of);
            // Clients know a sandbox of the server by the server's id.
            let id = CREATED.try_with(|(id, _)| id.clone()).unwrap_or_else(|_| sandbox.id().as_str().to_owned());
            let (log, admission) = (self.log.clone(), Arc::clone(&self.admission));
            let tenant = sandbox.spec().tenant().clone();
            let egress = EgressLog { log, admission, tenant, id: id.clone(), has_failed: false };
            *held.recording.lock() = NetworkRecording::start(sandbox, &id, Redactor::none(), egress)?;
            let _ = held.sandbox.set(Known { id, posture, sandbox: Arc::downgrade(sandbox) });
        }
        Ok(())
    }

    async fn starting(&self, held: &Held, spec: &Spec, request: &ExecRequest) -> Result<Exec> {
        let (log, subject, denied) = (self.log.clone(), self.subject(spec, request)?, held.denials());
        // The value is made on the thread of the log, so that its end is recorded even if no task awaits it.
        blocking(move || Ok(Exec { reservation: Some(log.reserve(subject)?), begun: Instant::now(), denied })).await
    }

    async fn ended(&self, held: &Held, mut exec: Exec, outcome: &Result<Exit>) {
        let Some(mut reservation) = exec.reservation.take() else { return };
        let audited = match outcome {
            Ok(exit) => AuditedExit {
                code: (exit.signal.is_none() && !exit.timed_out).then_some(exit.code),
                signal: exit.signal,
                killed_by: exit.killed_by.map(|kind| Text::new(kind.as_str())),
                timed_out: exit.timed_out,
                cancelled: exit.cancelled,
                truncated: exit.truncated,
                failed: None,
            },
            // The tenant can read this line. The source and the context of an error may name files of the host.
            Err(error) => AuditedExit { failed: Some(Text::new(error.message())), ..AuditedExit::default() },
        };
        let mut record = unknown(audited, exec.begun.elapsed(), held.sandbox.get());
        record.denials = NetworkDenial::since(held.denials(), &exec.denied).iter().map(denial).collect();
        if let Ok(exit) = outcome {
            record.usage = Usage {
                cpu_us: Some(micros(Duration::try_from_secs_f64(exit.usage.cpu_seconds).unwrap_or_default())),
                peak_memory_bytes: exit.usage.peak_memory_bytes,
                output_bytes: Some(exit.usage.output_bytes),
            };
        }
        if let Err(error) = blocking(move || reservation.commit(record).map(drop)).await {
            // The begin record stays open, which `verify` reports.
            report::warning(&error.to_string());
        }
    }

    async fn set_network(&self, held: &Held, inner: &dyn Sandbox, policy: NetworkPolicy) -> Result<()> {
        let cut = held.recording.lock().as_ref().map(NetworkRecording::cut);
        match cut {
            Some(cut) => cut.set_network(inner, policy).await,
            None => inner.set_network(policy).await,
        }
    }

    async fn closing(&self, _: &Held, _: &dyn Sandbox) {}

    async fn closed(&self, held: &Held) {
        let recording = held.recording.lock().take();
        if let Some(recording) = recording {
            recording.end().await;
        }
    }
}
