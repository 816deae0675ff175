//! The audit record of each execution: begun before the start, and committed even if the caller is cancelled.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_audit::{
    Artifact, Change, Config, Denial, Digest, ExecutionId, Exit, FileTouched, Limits, Listed, Log, Mandatory, Outcome,
    PluginDenied, Program, Redactor, Reservation, Restored, SandboxRecord, Subject, Sync, Text, Timestamp, Usage,
};
use cofferdam_contract::{Error, ErrorKind, Fault, NetworkDenial, Result, Retry, SandboxId, Spec};
use serde::{Deserialize, Serialize};

use crate::result::limit_name;
use crate::{BackendProfile, CodeRequest, CodeResult, Secrets, Touched, Warn, error};

/// The policy for flushing records to stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditSync {
    /// Leave flushing to the kernel.
    Never,
    /// Flush each record before the call continues.
    #[default]
    Each,
}

/// The configuration of the audit log: the table `[audit]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditConfig {
    /// The log's own directory.
    pub directory: PathBuf,
    /// True if code must not run without an audit record. If false, a missing record only causes one warning. Default:
    /// true.
    #[serde(default = "mandatory")]
    pub mandatory: bool,
    /// The policy for flushing records to stable storage. Default: `each`.
    #[serde(default)]
    pub sync: AuditSync,
    /// The file of a key that signs each record. Default: records are not signed.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// Size of a segment in bytes. Default: the default of the audit log.
    #[serde(default)]
    pub segment_bytes: Option<u64>,
    /// Number of closed segments to keep. Default: all.
    #[serde(default)]
    pub keep_segments: Option<u32>,
    /// Maximum size in bytes of an artifact with the code and result of an execution. Default: no artifacts are stored.
    #[serde(default)]
    pub artifact_bytes: Option<u64>,
}

fn mandatory() -> bool {
    true
}

impl AuditConfig {
    /// Returns the configuration of the log.
    pub fn log(&self) -> Config {
        let base = Config::new(&self.directory);
        Config {
            sync: match self.sync {
                AuditSync::Never => Sync::Never,
                AuditSync::Each => Sync::Each,
            },
            segment_bytes: self.segment_bytes.unwrap_or(base.segment_bytes),
            keep_segments: self.keep_segments,
            key: self.key.clone(),
            mandatory: if self.mandatory { Mandatory::Yes } else { Mandatory::No },
            artifact_bytes: self.artifact_bytes,
            ..base
        }
    }
}

/// An open audit log.
#[derive(Clone)]
pub struct Audit {
    log: Log,
    missing: Arc<Missing>,
}

/// The handling of records that cannot be written.
struct Missing {
    mandatory: bool,
    warn: Warn,
    warned: AtomicBool,
    warned_of_network: AtomicBool,
}

impl Missing {
    /// Returns the error if the log is mandatory. Else warns once.
    fn allow(&self, error: Error) -> Result<()> {
        if self.mandatory {
            return Err(error);
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            self.warn.emit(&format!("code runs without an audit record: {}", error.message()));
        }
        Ok(())
    }

    /// Warns about an outcome that was not written, where no caller can receive the error.
    fn report(&self, error: Error) {
        // Only returns the error if the log is mandatory.
        let Err(error) = self.allow(error) else { return };
        self.warn.emit(&format!("the audit log lacks the outcome of an execution: {}", error.message()));
    }
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Audit")
    }
}

impl Audit {
    /// Returns the error of what the log cannot have, if the log is mandatory. Else warns once.
    pub fn allow_unrecorded(&self, error: Error) -> Result<()> {
        self.missing.allow(error)
    }

    /// Opens the log. Returns `None` if it cannot be opened and is not mandatory.
    pub fn open(config: &AuditConfig, warn: Warn) -> Result<Option<Self>> {
        let missing = Missing {
            mandatory: config.mandatory,
            warn,
            warned: AtomicBool::new(false),
            warned_of_network: AtomicBool::new(false),
        };
        match Log::open(config.log()) {
            Ok(log) => Ok(Some(Self { log, missing: Arc::new(missing) })),
            Err(problem) => missing.allow(refused("open the audit log", problem)).map(|()| None),
        }
    }

    /// Records that code is about to run.
    pub async fn begin(
        &self,
        id: &str,
        profile: &BackendProfile,
        spec: &Spec,
        request: &CodeRequest,
        program: Program,
        version: Option<&str>,
    ) -> Result<Entry> {
        let limits = spec.limits();
        let subject = Subject {
            id: ExecutionId::new(id).map_err(|problem| refused("execute", problem))?,
            tenant: Some(Text::new(spec.tenant().as_str())),
            start: Timestamp::now(),
            backend: Text::new(&profile.backend),
            level: Text::new(profile.level.as_str()),
            runtime: Some(&request.language).filter(|name| !name.is_empty()).map(Text::new),
            version: version.map(Text::new),
            program,
            limits: Limits {
                wall_us: Some(micros(request.timeout.unwrap_or(limits.wall_time))),
                cpu_us: limits.cpu_time.map(micros),
                memory_bytes: limits.memory.map(|size| size.as_bytes()),
                disk_bytes: limits.disk.map(|size| size.as_bytes()),
                processes: limits.pids.map(u64::from),
                output_bytes: request.max_output.map(|size| size.as_bytes()),
            },
        };
        let redactor = redactor(&request.secrets)?;
        let (log, missing, code) = (self.log.clone(), Arc::clone(&self.missing), request.code.clone());
        // The entry is created on the thread that reserves the record, so that the record is committed even if no task
        // awaits it.
        let reserve =
            move || log.reserve(subject).map(|reservation| Entry(Some(Open { reservation, redactor, code, missing })));
        let reserved = tokio::task::spawn_blocking(reserve).await.map_err(|_| error::task("audit"))?;
        let entry = reserved
            .map_err(|problem| refused("execute", problem).with_context("because", "the audit log is mandatory"))?;
        if let Some(problem) = entry.0.as_ref().and_then(|open| open.reservation.problem()) {
            self.missing.allow(unwritable("execute", problem))?;
        }
        Ok(entry)
    }

    /// Records a denied request of a plugin. A failure is reported once; the request stays denied.
    pub async fn record_denial(&self, denial: PluginDenied) {
        let log = self.log.clone();
        let work = Guaranteed(Some(move || log.record_network(vec![SandboxRecord::PluginDenied(Box::new(denial))])));
        let written = tokio::task::spawn_blocking(move || work.work()).await;
        if let Ok(Some(Err(problem))) = written
            && !self.missing.warned_of_network.swap(true, Ordering::Relaxed)
        {
            self.missing.warn.emit(&format!("the audit log lacks denied requests of plugins: {problem}"));
        }
    }

    /// Records connections and requests of a sandbox, of which some may have been lost before. Returns false if the log is
    /// mandatory and lacks any.
    pub async fn record_network(&self, records: Vec<SandboxRecord>, lost: bool) -> bool {
        let log = self.log.clone();
        let work = Guaranteed(Some(move || log.record_network(records)));
        let written = tokio::task::spawn_blocking(move || work.work()).await;
        let why = match written {
            Ok(Some(Ok(()))) if !lost => return true,
            Ok(Some(Ok(()))) => "they came too fast".to_owned(),
            Ok(Some(Err(problem))) => problem.to_string(),
            _ => "this process ends".to_owned(),
        };
        if !self.missing.warned_of_network.swap(true, Ordering::Relaxed) {
            let cut = if self.missing.mandatory { ", so that sandbox loses its network" } else { "" };
            self.missing.warn.emit(&format!("the audit log lacks connections of a sandbox{cut}: {why}"));
        }
        !self.missing.mandatory
    }
}

/// Returns the redactor of secrets. Refuses secrets that are too short to be redacted.
pub(crate) fn redactor(secrets: &Secrets) -> Result<Redactor> {
    if secrets.is_empty() {
        return Ok(Redactor::none());
    }
    Redactor::new(secrets.iter().map(|(name, secret)| (name, secret.reveal().as_bytes())))
        .map_err(|problem| Error::invalid("execute", format!("a secret cannot be redacted in artifacts: {problem}")))
}

struct Open {
    reservation: Reservation,
    redactor: Redactor,
    code: String,
    missing: Arc<Missing>,
}

/// Work that is guaranteed to run, even if the runtime shuts down before its thread starts.
struct Guaranteed<T, F: FnOnce() -> T>(Option<F>);

impl<T, F: FnOnce() -> T> Guaranteed<T, F> {
    fn work(mut self) -> Option<T> {
        self.0.take().map(|work| work())
    }
}

impl<T, F: FnOnce() -> T> Drop for Guaranteed<T, F> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// Writes on a blocking thread, even if no task awaits the result.
async fn write<F>(missing: Arc<Missing>, work: F) -> Result<()>
where
    F: FnOnce() -> cofferdam_audit::Result<()> + Send + 'static,
{
    let work = Guaranteed(Some(work));
    match tokio::task::spawn_blocking(move || work.work()).await {
        Ok(Some(Ok(()))) => Ok(()),
        Ok(Some(Err(problem))) => missing.allow(refused("audit", problem)),
        _ => missing.allow(error::task("audit")),
    }
}

/// A sandbox that was created from the state of another one.
#[derive(Debug)]
pub struct RestoredSandbox {
    pub sandbox: SandboxId,
    pub from: Option<SandboxId>,
    pub programs: bool,
    pub posture: String,
    pub duration: Duration,
}

/// The open record of an execution. If it is dropped, the record ends as cancelled.
pub struct Entry(Option<Open>);

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entry")
    }
}

impl Entry {
    /// Records that the execution was never started. The reason must not contain any part of the code.
    pub async fn never_started(mut self, reason: String) -> Result<()> {
        let Some(open) = self.0.take() else { return Ok(()) };
        write(Arc::clone(&open.missing), move || open.reservation.cancel(&reason)).await
    }

    /// Records the outcome, and stores code and result if artifacts are enabled. `output` is the number of output
    /// bytes, for results without usage.
    pub async fn ended(mut self, result: &CodeResult, output: Option<u64>) -> Result<()> {
        let Some(open) = self.0.take() else { return Ok(()) };
        let outcome = outcome(result, output, &open.redactor);
        let result = result.clone();
        write(Arc::clone(&open.missing), move || commit(open, outcome, Some(&result))).await
    }

    /// Records that a sandbox was created from the state of another one.
    pub async fn restored(mut self, restored: RestoredSandbox) -> Result<()> {
        let Some(open) = self.0.take() else { return Ok(()) };
        let outcome = Outcome {
            duration_us: micros(restored.duration),
            posture: restored.posture.parse::<Digest>().ok(),
            sandbox: Some(Text::new(restored.sandbox.as_str())),
            restored: Some(Restored {
                from: restored.from.map(|from| Text::new(from.as_str())),
                programs: restored.programs,
            }),
            ..unknown(Exit { code: Some(0), ..Exit::default() })
        };
        write(Arc::clone(&open.missing), move || commit(open, outcome, None)).await
    }

    /// Records that the sandbox failed. Only the kind of the error is recorded, because its message may contain
    /// anything.
    pub async fn failed(mut self, kind: ErrorKind) {
        let Some(open) = self.0.take() else { return };
        let outcome = unknown(Exit { failed: Some(Text::new(kind.as_str())), ..Exit::default() });
        let missing = Arc::clone(&open.missing);
        // The caller returns the error of the sandbox.
        if let Err(error) = write(Arc::clone(&missing), move || commit(open, outcome, None)).await {
            missing.report(error);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(open) = self.0.take() else { return };
        let outcome = unknown(Exit { cancelled: true, ..Exit::default() });
        let missing = Arc::clone(&open.missing);
        let work = Guaranteed(Some(move || {
            if let Err(problem) = commit(open, outcome, None) {
                missing.report(refused("audit", problem));
            }
        }));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(move || work.work()));
        }
    }
}

fn commit(mut open: Open, mut outcome: Outcome, result: Option<&CodeResult>) -> cofferdam_audit::Result<()> {
    outcome.artifact = store(&open, result);
    open.reservation.commit(outcome).map(drop)
}

/// Stores code and result. The log records an artifact that cannot be stored as lost.
fn store(open: &Open, result: Option<&CodeResult>) -> Option<Artifact> {
    let lost = |problem: cofferdam_audit::Error| Artifact::Lost { reason: Text::new(problem.to_string()) };
    let mut writer = match open.reservation.artifact(&open.redactor) {
        Ok(writer) => writer?,
        Err(problem) => return Some(lost(problem)),
    };
    let mut write = || {
        writer.section("code")?;
        writer.add(open.code.as_bytes())?;
        let Some(result) = result else { return Ok(()) };
        writer.section("stdout")?;
        writer.add(result.stdout.bytes())?;
        writer.section("stderr")?;
        writer.add(result.stderr.bytes())?;
        writer.section("results")?;
        writer.add_json(&serde_json::to_value(&result.results).unwrap_or_default())
    };
    Some(write().and_then(|()| writer.finish()).unwrap_or_else(lost))
}

fn unknown(exit: Exit) -> Outcome {
    Outcome {
        exit,
        duration_us: 0,
        usage: Usage::default(),
        posture: None,
        files: None,
        denials: Listed::default(),
        artifact: None,
        sandbox: None,
        restored: None,
    }
}

fn outcome(result: &CodeResult, output: Option<u64>, redactor: &Redactor) -> Outcome {
    let exit = result.exit();
    let touched = result.files.changes.iter().map(|change| FileTouched {
        // The guest chooses the name, which may contain a secret.
        name: Text::new(redactor.redact(change.name.as_bytes())),
        change: match change.change {
            Touched::Created => Change::Created,
            Touched::Changed => Change::Changed,
            Touched::Removed => Change::Removed,
        },
        bytes: change.size,
        sha256: change.sha256.as_ref().and_then(|hash| hash.parse::<Digest>().ok()),
    });
    let mut files: Listed<_, { cofferdam_audit::MAX_FILES }> = touched.collect();
    files.add_unnamed(result.files.total.saturating_sub(result.files.changes.len() as u64));
    // If the workspace was not scanned, an empty list is not a count of zero.
    let files = Some(files).filter(|files| files.count() > 0 || result.files.complete);
    let refused = |limit| Denial { by: Text::new("limit"), what: Text::new(limit_name(limit)), times: 1 };
    let denied = |denial: &NetworkDenial| Denial {
        by: Text::new("network"),
        what: Text::new(redactor.redact(denial.what.as_bytes())),
        times: denial.times,
    };
    let usage = result.usage;
    Outcome {
        exit: Exit {
            code: exit.signal.is_none().then_some(exit.code).filter(|_| !exit.timed_out),
            signal: exit.signal,
            killed_by: exit.killed_by.map(|limit| Text::new(limit_name(limit))),
            timed_out: exit.timed_out,
            cancelled: exit.cancelled,
            truncated: exit.truncated,
            failed: None,
        },
        duration_us: micros(exit.duration),
        usage: Usage {
            cpu_us: usage.map(|usage| micros(Duration::try_from_secs_f64(usage.cpu_seconds).unwrap_or_default())),
            peak_memory_bytes: usage.and_then(|usage| usage.peak_memory_bytes),
            output_bytes: usage.map(|usage| usage.output_bytes).or(output),
        },
        posture: result.meta.posture.parse::<Digest>().ok(),
        files,
        denials: result
            .limits_hit
            .iter()
            .copied()
            .map(refused)
            .chain(result.network_denials.iter().map(denied))
            .collect(),
        artifact: None,
        sandbox: Some(Text::new(result.meta.sandbox.as_str())),
        restored: None,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn refused(operation: &'static str, problem: cofferdam_audit::Error) -> Error {
    unwritable(operation, &problem)
}

fn unwritable(operation: &'static str, problem: &cofferdam_audit::Error) -> Error {
    let retry = if problem.is_transient() { Retry::MayHelp } else { Retry::Never };
    Error::new(ErrorKind::Unavailable, operation, format!("the audit log cannot be written: {problem}"))
        .with_fault(Fault::Host)
        .with_retry(retry)
        .with_remedy("correct the cause in the message; the table [audit] of the configuration sets the directory of the log and whether it is mandatory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{ByteSize, Exit, Level, LimitKind, Limits, TenantId};

    #[test]
    fn limits_that_refused_something_are_denials() {
        let exit = Exit {
            code: 0,
            signal: None,
            timed_out: false,
            cancelled: false,
            truncated: false,
            killed_by: None,
            limits_hit: vec![LimitKind::Memory, LimitKind::Disk],
            duration: Duration::ZERO,
            usage: cofferdam_contract::Usage::default(),
        };
        let meta = crate::Meta {
            backend: String::new(),
            level: Level::Process,
            sandbox: SandboxId::new("s"),
            tenant: TenantId::default(),
            runtime: crate::Runtime { interpreter: String::new(), version: None },
            limits: Limits::default(),
            timeout: Duration::ZERO,
            max_output: ByteSize::from_bytes(0),
            posture: String::new(),
            weaker: Vec::new(),
        };
        let result = crate::executor::result(exit, bytes::Bytes::new(), bytes::Bytes::new(), meta);
        let denials = outcome(&result, None, &Redactor::none()).denials;
        let named: Vec<_> = denials.named().iter().map(|denial| (denial.by.as_str(), denial.what.as_str())).collect();
        assert_eq!(named, [("limit", "memory"), ("limit", "disk")]);
    }
}
