//! Execution of code: static analysis, audit record, start, collection of output, comparison of the workspace.
//!
//! ```text
//! begin: bounds -> audit record -> static analysis -> exec request
//! prepare: version of the interpreter -> scan of the workspace
//! start: Sandbox::start
//! finish: results from the guest -> second scan -> audit record -> CodeResult
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_audit::Program;
use cofferdam_contract::{
    Access, Backend, ByteSize, Capabilities, Capability, Chunk, Command, Completed, Error, ErrorKind, ExecHandle,
    ExecRequest, Exit, Level, NetworkDenial, OutputEvent, Result, Sandbox, SandboxPath, Script, Spec, Stdin,
    after_close,
};

use crate::audit::{Audit, Entry};
use crate::bootstrap::{self, Parameters};
use crate::execution::OutputPrefix;
use crate::files::{self, OwnFile, OwnFiles, Scan};
use crate::result::{posture_digest, random_id, weaker};
use crate::runtime::{self, Versions};
use crate::screening::{self, Verdict};
use crate::{
    CodeConfig, CodeRequest, CodeResult, Contents, Language, Meta, Results, Screened, Secrets, SessionState, Want,
    error, rich,
};

/// Timeout for reading results from the sandbox.
const RESULTS_TIMEOUT: Duration = Duration::from_secs(5);

/// The origin of a sandbox: its backend, isolation level and capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendProfile {
    /// The backend's name.
    pub backend: String,
    /// Its isolation level.
    pub level: Level,
    /// Its optional features.
    pub capabilities: Capabilities,
}

impl BackendProfile {
    /// Describes the sandboxes of a backend.
    pub fn of(backend: &dyn Backend) -> Self {
        Self { backend: backend.name().to_owned(), level: backend.level(), capabilities: backend.capabilities() }
    }
}

/// A callback for output as it arrives.
pub type OnOutput<'a> = &'a (dyn Fn(&Chunk) + Send + Sync);
/// A callback for output as it arrives, and for lost output.
pub(crate) type OnEvent<'a> = &'a (dyn Fn(&OutputEvent) + Send + Sync);

/// The output limit of an exec whose output is bounded by its reader.
pub(crate) const MAX_OUTPUT: ByteSize = ByteSize::from_bytes(1 << 50);
/// The output buffer of an exec whose complete output is wanted. Output beyond it is lost from the beginning, if it is
/// written faster than it is read.
const FULL_OUTPUT_BUFFER: ByteSize = ByteSize::from_mebibytes(64);

/// An executor of code within the bounds of its configuration. Clones share its state.
#[derive(Debug, Clone)]
pub struct Executor(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: CodeConfig,
    pub(crate) audit: Option<Audit>,
    pub(crate) versions: Versions,
    pub(crate) own_files: Arc<OwnFiles>,
}

impl Executor {
    /// Creates an executor and opens the audit log, if one is configured.
    pub fn new(config: CodeConfig) -> Result<Self> {
        config.validate()?;
        let audit = config.audit.as_ref().map(|audit| Audit::open(audit, config.warn.clone())).transpose()?.flatten();
        Ok(Self(Arc::new(Inner { config, audit, versions: Versions::default(), own_files: Arc::default() })))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &CodeConfig {
        &self.0.config
    }

    /// Runs code in an existing sandbox.
    ///
    /// # Behavior
    /// - A failure of the code, including a timeout, is a result and not an error.
    /// - Dropping the future kills the code and ends its audit record.
    ///
    /// # Errors Fails before anything is started if
    /// - the language is not allowed, or the static analysis rejects the code (`Denied`),
    /// - the interpreter is missing (`NotFound`),
    /// - the request exceeds the configured bounds, or
    /// - a mandatory audit log cannot be written (`Unavailable`).
    pub async fn execute(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        request: CodeRequest,
    ) -> Result<CodeResult> {
        self.execute_live(profile, sandbox, request, &|_| {}).await
    }

    /// Runs code like [`Self::execute`], and calls `on_output` for output as it arrives.
    pub async fn execute_live(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        request: CodeRequest,
        on_output: OnOutput<'_>,
    ) -> Result<CodeResult> {
        let on_event = |event: &OutputEvent| {
            if let OutputEvent::Chunk(chunk) = event {
                on_output(chunk);
            }
        };
        let call = self.begin(profile, sandbox.spec(), request).await?;
        self.run_call(sandbox, call, &on_event).await
    }

    /// Runs code like [`Self::execute`], and calls `on_event` for all of its output. The result keeps output only up to
    /// the usual bound.
    pub(crate) async fn execute_to_the_end(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        request: CodeRequest,
        on_event: OnEvent<'_>,
    ) -> Result<CodeResult> {
        let mut call = self.begin(profile, sandbox.spec(), request).await?;
        match call.exec.to_builder().max_output(MAX_OUTPUT).output_buffer(FULL_OUTPUT_BUFFER).build() {
            Ok(exec) => call.exec = exec,
            Err(error) => return Err(call.not_started(error).await),
        }
        self.run_call(sandbox, call, on_event).await
    }

    async fn run_call(&self, sandbox: &dyn Sandbox, mut call: Call, on_event: OnEvent<'_>) -> Result<CodeResult> {
        if let Err(error) = call.prepare(sandbox).await {
            return Err(call.not_started(error).await);
        }
        let handle = match sandbox.start(call.exec.clone()).await {
            Ok(handle) => handle,
            Err(error) => return Err(call.not_started(error).await),
        };
        match collect(handle, call.max_output, on_event).await {
            Ok(completed) => call.finish(sandbox, completed).await,
            Err(error) => Err(call.failed(error).await),
        }
    }

    /// Creates a sandbox, runs code in it and closes it.
    pub async fn run(&self, backend: &dyn Backend, spec: Spec, request: CodeRequest) -> Result<CodeResult> {
        let redactor = self.redactor(&request.secrets)?;
        let sandbox = self.record_network_without(backend.create(spec).await?, redactor).await?;
        let result = self.execute(&BackendProfile::of(backend), &*sandbox, request).await;
        after_close(result, sandbox.close().await)
    }

    /// Returns the version of a language's interpreter in a sandbox. The sandbox is asked once per backend and root
    /// file system. Call this before untrusted code has run in the sandbox.
    ///
    /// # Errors
    /// - `NotFound` if the interpreter is missing.
    /// - `Unavailable` if it is too old.
    pub async fn detect(
        &self,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
        language: &str,
    ) -> Result<Option<String>> {
        let known = self.0.config.languages.by_name(language)?;
        let version = self.0.versions.ask(profile, sandbox, language, known).await?;
        Ok(version.map(|version| version.to_string()))
    }

    /// Performs all steps before the start: bounds, audit record, static analysis.
    pub(crate) async fn begin(&self, profile: &BackendProfile, spec: &Spec, mut request: CodeRequest) -> Result<Call> {
        let Inner { config, .. } = &*self.0;
        let language = config.languages.by_name(&request.language)?.clone();
        config.bounds.code(&request.code)?;
        let timeout = config.bounds.timeout(request.timeout, spec.limits().wall_time)?;
        let max_output = config.bounds.output(request.max_output)?;
        (request.timeout, request.max_output) = (Some(timeout), Some(max_output));
        let version = self.0.versions.known(profile, spec, &request.language).map(|version| version.to_string());
        let id = random_id()?;
        let program = Program::code(request.code.as_bytes());
        let mut entry = self.entry(&id, profile, spec, &request, program, version.as_deref()).await?;
        let screened = self.screen(&mut entry, &language, &request.code).await?;
        let channel = match request.results {
            Want::Yes if language.results() != Results::None => Channel::choose(profile, spec, &self.0.own_files)?,
            _ => None,
        };
        let exec = exec_request(&language, &request, channel.as_ref(), config.bounds.max_results)?;
        Ok(Call {
            executor: self.clone(),
            profile: profile.clone(),
            id,
            name: request.language,
            language,
            version,
            files: request.files,
            contents: request.contents,
            exec,
            entry,
            screened,
            channel,
            before: None,
            denied: Vec::new(),
            timeout,
            max_output,
        })
    }

    /// Analyzes code like [`Self::begin`]. Applies no bounds and writes no audit record.
    pub(crate) async fn analyze(&self, language: &str, code: &str) -> Result<Option<Screened>> {
        let known = self.0.config.languages.by_name(language)?;
        self.screen(&mut None, known, code).await
    }

    /// Performs the steps of [`Self::begin`] for a command that is not code: there is no static analysis, and the only
    /// result is its exit. Values of variables in `secrets` are removed from artifacts.
    pub(crate) async fn begin_command(
        &self,
        profile: &BackendProfile,
        spec: &Spec,
        exec: ExecRequest,
        secrets: Secrets,
    ) -> Result<Call> {
        let words: Vec<&[u8]> = match exec.command() {
            Command::Argv(argv) => argv.iter().map(String::as_bytes).collect(),
            Command::Shell(line) => vec![line.as_bytes()],
            Command::Script(script) => vec![&script.contents],
        };
        let timeout = exec.timeout().unwrap_or(spec.limits().wall_time);
        let mut request = CodeRequest::new("", command_text(exec.command())).timeout(timeout);
        (request.max_output, request.secrets) = (Some(exec.max_output()), secrets);
        let id = random_id()?;
        let entry = self.entry(&id, profile, spec, &request, Program::command(words), None).await?;
        Ok(Call {
            executor: self.clone(),
            profile: profile.clone(),
            id,
            name: String::new(),
            language: Language::default(),
            version: None,
            files: Want::No,
            contents: Contents::Leave,
            timeout,
            max_output: exec.max_output(),
            exec,
            entry,
            screened: None,
            channel: None,
            before: None,
            denied: Vec::new(),
        })
    }

    pub(crate) async fn entry(
        &self,
        id: &str,
        profile: &BackendProfile,
        spec: &Spec,
        request: &CodeRequest,
        program: Program,
        version: Option<&str>,
    ) -> Result<Option<Entry>> {
        match &self.0.audit {
            Some(audit) => audit.begin(id, profile, spec, request, program, version).await.map(Some),
            None => Ok(None),
        }
    }

    /// Analyzes code. Rejected code ends its audit record.
    pub(crate) async fn screen(
        &self,
        entry: &mut Option<Entry>,
        language: &Language,
        code: &str,
    ) -> Result<Option<Screened>> {
        match screening::screen(&self.0.config.screening, language.results(), code).await? {
            Verdict::Runs(screened) => Ok(screened),
            Verdict::Refused { error, reason } => {
                if let Some(entry) = entry.take() {
                    entry.never_started(reason).await?;
                }
                Err(error)
            }
        }
    }
}

/// Code that is ready to start. If it is dropped, its audit record ends as cancelled.
pub(crate) struct Call {
    executor: Executor,
    profile: BackendProfile,
    id: String,
    name: String,
    language: Language,
    version: Option<String>,
    files: Want,
    contents: Contents,
    pub(crate) exec: ExecRequest,
    entry: Option<Entry>,
    pub(crate) screened: Option<Screened>,
    channel: Option<Channel>,
    before: Option<Scan>,
    /// The denials of the sandbox's network before the start.
    pub(crate) denied: Vec<NetworkDenial>,
    timeout: Duration,
    max_output: ByteSize,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("id", &self.id).field("language", &self.name).finish_non_exhaustive()
    }
}

impl Call {
    /// Returns true if the result lists changed files, which [`Self::prepare`] requires.
    pub(crate) fn lists_files(&self) -> bool {
        self.files == Want::Yes
    }

    /// Queries the sandbox before the start: the interpreter's version, if the interpreter does not report it itself,
    /// and the contents of the workspace. Without this call, a result lists no files.
    pub(crate) async fn prepare(&mut self, sandbox: &dyn Sandbox) -> Result<()> {
        let inner = &self.executor.0;
        self.denied = sandbox.network_denials();
        let self_reported = self.language.results() != Results::None && self.language.least_version.is_none();
        if self.version.is_none() && !self_reported {
            let version = inner.versions.ask(&self.profile, sandbox, &self.name, &self.language).await?;
            self.version = version.map(|version| version.to_string());
        }
        if self.lists_files() {
            self.before = Some(files::scan(sandbox, &inner.config.bounds, &inner.own_files).await);
        }
        Ok(())
    }

    /// Records that the code could not be started. Returns the error for the caller.
    pub(crate) async fn not_started(mut self, error: Error) -> Error {
        if let Some(entry) = self.entry.take()
            && let Err(problem) = entry.never_started(format!("not started: {}", error.kind().as_str())).await
        {
            return problem;
        }
        match self.name.is_empty() {
            true => error,
            false => error::not_started(error, &self.name, self.language.program()),
        }
    }

    /// Records that the sandbox failed during the execution. Returns the error for the caller.
    pub(crate) async fn failed(mut self, error: Error) -> Error {
        if let Some(entry) = self.entry.take() {
            entry.failed(error.kind()).await;
        }
        error
    }

    /// Collects the results after the exec has ended.
    pub(crate) async fn finish(mut self, sandbox: &dyn Sandbox, completed: Completed) -> Result<CodeResult> {
        let config = &self.executor.0.config;
        let Completed { exit, stdout, stderr } = completed;
        let taken = match &self.channel {
            Some(channel) => channel.take(sandbox, config.bounds.max_results).await,
            None => rich::Taken::default(),
        };
        let own = (&*self.executor.0.own_files, self.channel.as_ref().and_then(Channel::path));
        let files = files::compare(sandbox, &config.bounds, self.before.take(), self.contents, own).await;
        let version = self.version.take().or(taken.version);
        let meta = meta(&self.profile, sandbox, &self.language, version, self.timeout, self.max_output);
        let result = CodeResult {
            id: self.id.clone(),
            language: self.name.clone(),
            results: taken.results,
            results_dropped: taken.dropped,
            files,
            network_denials: NetworkDenial::since(sandbox.network_denials(), &self.denied),
            screening: self.screened.take(),
            ..result(exit, stdout, stderr, meta)
        };
        if let Some(entry) = self.entry.take() {
            entry.ended(&result, None).await?;
        }
        Ok(result)
    }
}

/// Returns a command as it appears in an artifact: arguments as JSON, a shell line or script unchanged.
fn command_text(command: &Command) -> String {
    match command {
        Command::Argv(words) => serde_json::to_string(words).unwrap_or_default(),
        Command::Shell(line) => line.clone(),
        Command::Script(script) => String::from_utf8_lossy(&script.contents).into_owned(),
    }
}

/// Creates a result from exit and output only.
pub(crate) fn result(exit: Exit, stdout: Bytes, stderr: Bytes, meta: Meta) -> CodeResult {
    CodeResult {
        id: String::new(),
        language: String::new(),
        stdout: stdout.into(),
        stderr: stderr.into(),
        exit_code: exit.code,
        signal: exit.signal,
        duration: exit.duration,
        truncated: exit.truncated,
        timed_out: exit.timed_out,
        cancelled: exit.cancelled,
        killed_by: exit.killed_by,
        limits_hit: exit.limits_hit,
        network_denials: Vec::new(),
        usage: Some(exit.usage),
        results: Vec::new(),
        results_dropped: 0,
        files: files::unseen(),
        screening: None,
        meta,
        session: None::<SessionState>,
    }
}

pub(crate) fn meta(
    profile: &BackendProfile,
    sandbox: &dyn Sandbox,
    language: &Language,
    version: Option<String>,
    timeout: Duration,
    max_output: ByteSize,
) -> Meta {
    Meta {
        backend: profile.backend.clone(),
        level: profile.level,
        sandbox: sandbox.id().clone(),
        tenant: sandbox.spec().tenant().clone(),
        runtime: runtime::describe(language, version),
        limits: sandbox.spec().limits().clone(),
        timeout,
        max_output,
        posture: posture_digest(sandbox.posture()),
        weaker: weaker(sandbox.posture()),
    }
}

fn exec_request(
    language: &Language,
    request: &CodeRequest,
    channel: Option<&Channel>,
    max: ByteSize,
) -> Result<ExecRequest> {
    let name = request.file_name.clone().unwrap_or_else(|| language.file_name());
    let path = channel.map(Channel::inside);
    let parameters = Parameters {
        code: &request.code,
        name: &name,
        results_path: path.as_deref(),
        max_results: max.as_bytes(),
        session: false,
    };
    // If no results are wanted, the code runs without a wrapper.
    let wrapped = if channel.is_some() { bootstrap::wrap(language.results(), parameters) } else { None };
    let (contents, name) = match wrapped {
        Some((text, name)) => (text.into_bytes().into(), name.to_owned()),
        None => (Bytes::from(request.code.clone().into_bytes()), name),
    };
    let script = Script { interpreter: language.command(), name, contents, args: request.args.clone() };
    let mut builder = ExecRequest::builder(Command::Script(script)).working_dir(request.working_dir.clone());
    if let Some(timeout) = request.timeout {
        builder = builder.timeout(timeout);
    }
    if let Some(size) = request.max_output {
        builder = builder.max_output(size).output_buffer(size);
    }
    if !request.stdin.is_empty() {
        builder = builder.stdin(Stdin::Bytes(request.stdin.clone()));
    }
    for (key, value) in &request.env {
        builder = builder.env(key, value);
    }
    for (key, secret) in &request.secrets {
        builder = builder.env(key, secret.reveal());
    }
    builder.build()
}

/// Collects output up to the maximum, and passes all events to `on_event`.
async fn collect(handle: ExecHandle, max: ByteSize, on_event: OnEvent<'_>) -> Result<Completed> {
    let (mut output, mut prefix) = (handle.output(), OutputPrefix::new(max.as_bytes()));
    while let Some(event) = output.next().await {
        on_event(&event);
        prefix.put(&event);
        // A program that never stops writing must not starve other tasks.
        tokio::task::consume_budget().await;
    }
    let mut exit = handle.exit().await?;
    exit.truncated |= prefix.cut;
    Ok(prefix.completed(exit))
}

/// The path of results out of the sandbox: a file in the workspace, or else a temporary file that another exec prints.
#[derive(Debug)]
pub(crate) enum Channel {
    /// A file with an unpredictable name in the workspace.
    Workspace(OwnFile),
    /// A file with an unpredictable name in the sandbox's own temporary directory.
    Temporary(String),
}

impl Channel {
    /// Chooses a channel for one call. Returns `None` if the backend supports none.
    pub(crate) fn choose(profile: &BackendProfile, spec: &Spec, own: &Arc<OwnFiles>) -> Result<Option<Self>> {
        let has = |capability| profile.capabilities.contains(&capability);
        let id = random_id()?;
        let writable = spec.workspace().access() == Access::ReadWrite;
        if writable && has(Capability::Files) {
            return OwnFile::new(&id, own).map(Self::Workspace).map(Some);
        }
        let programs = has(Capability::MultipleExecs) && has(Capability::UnixPrograms);
        Ok(programs.then(|| Self::Temporary(format!("/tmp/.cofferdam-{id}"))))
    }

    /// Returns the absolute path inside the sandbox.
    pub(crate) fn inside(&self) -> String {
        match self {
            Self::Workspace(file) => file.path().inside(),
            Self::Temporary(path) => path.clone(),
        }
    }

    /// Returns the path in the workspace, if the file is there.
    pub(crate) fn path(&self) -> Option<&SandboxPath> {
        match self {
            Self::Workspace(file) => Some(file.path()),
            Self::Temporary(_) => None,
        }
    }

    /// Reads and removes the results. An invalid file is no error; it only yields no results.
    pub(crate) async fn take(&self, sandbox: &dyn Sandbox, max: ByteSize) -> rich::Taken {
        let work = async {
            match self {
                Self::Workspace(file) => {
                    let path = file.path();
                    let read = files::read(sandbox, path, max.as_bytes()).await;
                    let missing = matches!(&read, Err(error) if error.kind() == ErrorKind::NotFound);
                    if !missing {
                        // A file that cannot be removed is left to the owner of the workspace.
                        let _ = sandbox.remove(path).await;
                    }
                    (read.ok(), missing)
                }
                Self::Temporary(path) => {
                    let request =
                        ExecRequest::argv(["cat", "--", path]).timeout(RESULTS_TIMEOUT).max_output(max).build();
                    let completed = match request {
                        Ok(request) => sandbox.exec(request).await,
                        Err(error) => Err(error),
                    };
                    let read = completed.ok().filter(|completed| !completed.exit.truncated);
                    let missing = read.as_ref().is_some_and(|completed| completed.exit.code != 0);
                    (read.filter(|_| !missing).map(|completed| completed.stdout.to_vec()), missing)
                }
            }
        };
        match tokio::time::timeout(RESULTS_TIMEOUT * 2, work).await {
            // An interpreter always reports its version. An empty file is therefore the effect of a full disk.
            Ok((Some(bytes), _)) if bytes.is_empty() => rich::Taken { dropped: 1, ..rich::Taken::default() },
            Ok((Some(bytes), _)) => rich::take(&bytes),
            Ok((None, true)) => rich::Taken::default(),
            _ => rich::Taken { dropped: 1, ..rich::Taken::default() },
        }
    }
}
