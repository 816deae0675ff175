//! Runs code: screened, said in the audit log, started, collected, compared with what was there before.
//!
//! ```text
//! begin: bounds -> audit line -> screening -> request for the backend
//! prepare: version of the interpreter -> look at the workspace
//! start: Sandbox::start, the caller's or `execute`'s
//! finish: results from inside -> look again -> audit line -> CodeResult
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cofferdam_audit::Program;
use cofferdam_contract::{
    Access, Backend, ByteSize, Capabilities, Capability, Chunk, Command, Completed, Error, ErrorKind, ExecHandle,
    ExecRequest, Exit, Level, OutputEvent, OutputStream, Result, Sandbox, SandboxPath, Script, Spec, Stdin,
    after_close,
};

use crate::audit::{Audit, Entry};
use crate::bootstrap::{self, Told};
use crate::files::{self, Look, OwnFile, OwnFiles};
use crate::result::{posture_digest, random_id, weaker};
use crate::runtime::{self, Versions};
use crate::screening::{self, Verdict};
use crate::{
    CodeConfig, CodeRequest, CodeResult, Contents, Language, Meta, Results, Screened, Secrets, SessionState, Want,
    error, rich,
};

/// Real time for bringing results out.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a sandbox comes from, as far as results say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The backend's name.
    pub backend: String,
    /// How thick its wall is.
    pub level: Level,
    /// What it can do.
    pub capabilities: Capabilities,
}

impl Place {
    /// The place of a backend's sandboxes.
    pub fn of(backend: &dyn Backend) -> Self {
        Self { backend: backend.name().to_owned(), level: backend.level(), capabilities: backend.capabilities() }
    }
}

/// Told of output as it comes.
pub type OnOutput<'a> = &'a (dyn Fn(&Chunk) + Send + Sync);
/// Told of output as it comes, and of what was lost of it.
pub(crate) type OnEvent<'a> = &'a (dyn Fn(&OutputEvent) + Send + Sync);

/// Output that passes where it is bounded by who keeps it.
pub(crate) const MAX_OUTPUT: ByteSize = ByteSize::from_bytes(1 << 50);
/// Output that waits for being read where its beginning is wanted too: what is written faster than it is taken, and is more
/// than this, is lost from its beginning on.
const PATIENT_BUFFER: ByteSize = ByteSize::from_mebibytes(64);

/// Runs code as configuration allows. Clones are the same.
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
    /// Opens the audit log, if there is to be one.
    pub fn new(config: CodeConfig) -> Result<Self> {
        config.validate()?;
        let audit = config.audit.as_ref().map(|audit| Audit::open(audit, config.warn.clone())).transpose()?.flatten();
        Ok(Self(Arc::new(Inner { config, audit, versions: Versions::default(), own_files: Arc::default() })))
    }

    /// What is configured.
    pub fn config(&self) -> &CodeConfig {
        &self.0.config
    }

    /// Runs code in a sandbox that is there.
    ///
    /// # Behavior
    /// - Fails before anything is started where the language is not allowed (`Denied`), screening refuses the code, the
    ///   interpreter is missing (`NotFound`), the call asks for more than is configured, or a mandatory audit log cannot
    ///   be written.
    /// - What the code does, a time-out included, is a result and not an error.
    /// - Dropping the future kills the code, and ends its line in the audit log.
    pub async fn execute(&self, place: &Place, sandbox: &dyn Sandbox, request: CodeRequest) -> Result<CodeResult> {
        self.execute_live(place, sandbox, request, &|_| {}).await
    }

    /// As [`Self::execute`], and tells of output as it comes.
    pub async fn execute_live(
        &self,
        place: &Place,
        sandbox: &dyn Sandbox,
        request: CodeRequest,
        on_output: OnOutput<'_>,
    ) -> Result<CodeResult> {
        let on_event = |event: &OutputEvent| {
            if let OutputEvent::Chunk(chunk) = event {
                on_output(chunk);
            }
        };
        let call = self.begin(place, sandbox.spec(), request).await?;
        self.carry_out(sandbox, call, &on_event).await
    }

    /// As [`Self::execute`], and tells of all output to its end. The result keeps as much of it as it does elsewhere.
    pub(crate) async fn execute_to_the_end(
        &self,
        place: &Place,
        sandbox: &dyn Sandbox,
        request: CodeRequest,
        on_event: OnEvent<'_>,
    ) -> Result<CodeResult> {
        let mut call = self.begin(place, sandbox.spec(), request).await?;
        match call.exec.to_builder().max_output(MAX_OUTPUT).output_buffer(PATIENT_BUFFER).build() {
            Ok(exec) => call.exec = exec,
            Err(error) => return Err(call.not_started(error).await),
        }
        self.carry_out(sandbox, call, on_event).await
    }

    async fn carry_out(&self, sandbox: &dyn Sandbox, mut call: Call, on_event: OnEvent<'_>) -> Result<CodeResult> {
        if let Err(error) = call.prepare(sandbox).await {
            return Err(call.not_started(error).await);
        }
        let handle = match sandbox.start(call.request().clone()).await {
            Ok(handle) => handle,
            Err(error) => return Err(call.not_started(error).await),
        };
        match collect(handle, call.max_output, on_event).await {
            Ok(completed) => call.finish(sandbox, completed).await,
            Err(error) => Err(call.failed(error).await),
        }
    }

    /// Makes a sandbox, runs code in it, closes it.
    pub async fn run(&self, backend: &dyn Backend, spec: Spec, request: CodeRequest) -> Result<CodeResult> {
        let sandbox = backend.create(spec).await?;
        let result = self.execute(&Place::of(backend), &*sandbox, request).await;
        after_close(result, sandbox.close().await)
    }

    /// The version of a language's interpreter in a sandbox. It is asked once for each backend and root; ask before any
    /// code that nobody vouches for has run there.
    ///
    /// # Errors
    /// `NotFound` if it is missing, `Unavailable` if it is too old; both say what to do.
    pub async fn detect(&self, place: &Place, sandbox: &dyn Sandbox, language: &str) -> Result<Option<String>> {
        let known = self.0.config.languages.by_name(language)?;
        let version = self.0.versions.ask(place, sandbox, language, known).await?;
        Ok(version.map(|version| version.to_string()))
    }

    /// Does all that comes before the sandbox, for callers who make it, start the exec and follow it themselves: checks,
    /// screening, the line in the audit log.
    pub async fn begin(&self, place: &Place, spec: &Spec, mut request: CodeRequest) -> Result<Call> {
        let Inner { config, .. } = &*self.0;
        let language = config.languages.by_name(&request.language)?.clone();
        config.bounds.code(&request.code)?;
        let timeout = config.bounds.timeout(request.timeout, spec.limits().wall_time)?;
        let max_output = config.bounds.output(request.max_output)?;
        (request.timeout, request.max_output) = (Some(timeout), Some(max_output));
        let version = self.0.versions.known(place, spec, &request.language).map(|version| version.to_string());
        let id = random_id()?;
        let what = Program::code(request.code.as_bytes());
        let mut entry = self.entry(&id, place, spec, &request, what, version.as_deref()).await?;
        let screened = self.screen(&mut entry, &language, &request.code).await?;
        let channel = match request.results {
            Want::Yes if language.results() != Results::None => Channel::choose(place, spec, &self.0.own_files)?,
            _ => None,
        };
        let exec = exec_request(&language, &request, channel.as_ref(), config.bounds.max_results)?;
        Ok(Call {
            executor: self.clone(),
            place: place.clone(),
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
            timeout,
            max_output,
        })
    }

    /// Screens code as [`Self::begin`] does, for who runs it by other means: neither bounds nor log know of it.
    pub async fn look_at(&self, language: &str, code: &str) -> Result<Option<Screened>> {
        let known = self.0.config.languages.by_name(language)?;
        self.screen(&mut None, known, code).await
    }

    /// As [`Self::begin`], for a command that is not code: there is nothing to screen, and no result but its exit. Those
    /// of its variables that `secrets` names stand in no artifact.
    pub async fn begin_command(&self, place: &Place, spec: &Spec, exec: ExecRequest, secrets: Secrets) -> Result<Call> {
        let words: Vec<&[u8]> = match exec.command() {
            Command::Argv(argv) => argv.iter().map(String::as_bytes).collect(),
            Command::Shell(line) => vec![line.as_bytes()],
            Command::Script(script) => vec![&script.contents],
        };
        let timeout = exec.timeout().unwrap_or(spec.limits().wall_time);
        let mut request = CodeRequest::new("", command_text(exec.command())).timeout(timeout);
        (request.max_output, request.secrets) = (Some(exec.max_output()), secrets);
        let id = random_id()?;
        let entry = self.entry(&id, place, spec, &request, Program::command(words), None).await?;
        Ok(Call {
            executor: self.clone(),
            place: place.clone(),
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
        })
    }

    pub(crate) async fn entry(
        &self,
        id: &str,
        place: &Place,
        spec: &Spec,
        request: &CodeRequest,
        what: Program,
        version: Option<&str>,
    ) -> Result<Option<Entry>> {
        match &self.0.audit {
            Some(audit) => audit.begin(id, place, spec, request, what, version).await.map(Some),
            None => Ok(None),
        }
    }

    /// Screens code; one that is refused ends its line in the audit log.
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

/// Code that may be started now. Dropped, it ends its line in the audit log as cancelled.
pub struct Call {
    executor: Executor,
    place: Place,
    id: String,
    name: String,
    language: Language,
    version: Option<String>,
    files: Want,
    contents: Contents,
    exec: ExecRequest,
    entry: Option<Entry>,
    screened: Option<Screened>,
    channel: Option<Channel>,
    before: Option<Look>,
    timeout: Duration,
    max_output: ByteSize,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("id", &self.id).field("language", &self.name).finish_non_exhaustive()
    }
}

impl Call {
    /// What to start. Its input and environment may be changed; its command is the call's, unless it wanted no results.
    pub fn request(&self) -> &ExecRequest {
        &self.exec
    }

    /// What screening found, if the code was screened.
    pub fn screened(&self) -> Option<&Screened> {
        self.screened.as_ref()
    }

    /// The execution's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Asks the sandbox what it has to say before the start: the interpreter's version where it does not tell it itself,
    /// and what stands in the workspace. Without this, a result names no files.
    pub async fn prepare(&mut self, sandbox: &dyn Sandbox) -> Result<()> {
        let inner = &self.executor.0;
        let tells = self.language.results() != Results::None && self.language.least_version.is_none();
        if self.version.is_none() && !tells && self.place.level != Level::Wasm {
            let asked = inner.versions.ask(&self.place, sandbox, &self.name, &self.language).await?;
            self.version = asked.map(|version| version.to_string());
        }
        if self.files == Want::Yes {
            self.before = Some(files::look(sandbox, &inner.config.bounds, &inner.own_files).await);
        }
        Ok(())
    }

    /// It could not be started; gives the error to answer with.
    pub async fn not_started(mut self, error: Error) -> Error {
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

    /// The sandbox failed while it ran; gives the error to answer with.
    pub async fn failed(mut self, error: Error) -> Error {
        if let Some(entry) = self.entry.take() {
            entry.failed(error.kind()).await;
        }
        error
    }

    /// It has ended: takes what came of it.
    pub async fn finish(mut self, sandbox: &dyn Sandbox, completed: Completed) -> Result<CodeResult> {
        let config = &self.executor.0.config;
        let Completed { exit, stdout, stderr } = completed;
        let taken = match &self.channel {
            Some(channel) => channel.take(sandbox, config.bounds.max_results).await,
            None => rich::Taken::default(),
        };
        let own = (&*self.executor.0.own_files, self.channel.as_ref().and_then(Channel::path));
        let files = files::compare(sandbox, &config.bounds, self.before.take(), self.contents, own).await;
        let version = self.version.take().or(taken.version);
        let meta = meta(&self.place, sandbox, &self.language, version, self.timeout, self.max_output);
        let result = CodeResult {
            id: self.id.clone(),
            language: self.name.clone(),
            results: taken.results,
            results_dropped: taken.dropped,
            files,
            screening: self.screened.take(),
            ..result(exit, stdout, stderr, meta)
        };
        if let Some(entry) = self.entry.take() {
            entry.ended(&result, None).await?;
        }
        Ok(result)
    }
}

/// Returns a command as an artifact has it: the words as JSON, a shell line or a script as it is.
fn command_text(command: &Command) -> String {
    match command {
        Command::Argv(words) => serde_json::to_string(words).unwrap_or_default(),
        Command::Shell(line) => line.clone(),
        Command::Script(script) => String::from_utf8_lossy(&script.contents).into_owned(),
    }
}

/// A result of which only the exit and the output are known.
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
    place: &Place,
    sandbox: &dyn Sandbox,
    language: &Language,
    version: Option<String>,
    timeout: Duration,
    max_output: ByteSize,
) -> Meta {
    Meta {
        backend: place.backend.clone(),
        level: place.level,
        sandbox: sandbox.id().clone(),
        tenant: sandbox.spec().tenant().clone(),
        runtime: runtime::told(language, version),
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
    most: ByteSize,
) -> Result<ExecRequest> {
    let name = request.file_name.clone().unwrap_or_else(|| language.file_name());
    let place = channel.map(Channel::inside);
    let told =
        Told { code: &request.code, name: &name, place: place.as_deref(), most: most.as_bytes(), session: false };
    // Who wants no results gets the program as it is.
    let around = if channel.is_some() { bootstrap::around(language.results(), told) } else { None };
    let (contents, name) = match around {
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

/// Collects output up to what is allowed, and tells of all that comes.
async fn collect(handle: ExecHandle, most: ByteSize, on_event: OnEvent<'_>) -> Result<Completed> {
    let mut output = handle.output();
    let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
    let (mut left, mut cut) = (usize::try_from(most.as_bytes()).unwrap_or(usize::MAX), false);
    while let Some(event) = output.next().await {
        on_event(&event);
        match event {
            OutputEvent::Chunk(chunk) => {
                let kept = &chunk.data[..left.min(chunk.data.len())];
                (left, cut) = (left - kept.len(), cut || kept.len() < chunk.data.len());
                match chunk.stream {
                    OutputStream::Stdout => stdout.extend_from_slice(kept),
                    OutputStream::Stderr => stderr.extend_from_slice(kept),
                }
            }
            OutputEvent::Lost { .. } => cut = true,
        }
        // A program that never stops writing must not keep others from their turn.
        tokio::task::consume_budget().await;
    }
    let mut exit = handle.exit().await?;
    exit.truncated |= cut;
    Ok(Completed { exit, stdout: stdout.freeze(), stderr: stderr.freeze() })
}

/// How results come out: a file in the workspace, else one outside that a program inside reads.
#[derive(Debug)]
pub(crate) enum Channel {
    /// A file with a name that nobody could guess.
    Workspace(OwnFile),
    /// The same in the sandbox's own temporary directory.
    Temporary(String),
}

impl Channel {
    /// A channel of its own for one call; `None` where there is no way.
    pub(crate) fn choose(place: &Place, spec: &Spec, own: &Arc<OwnFiles>) -> Result<Option<Self>> {
        let has = |capability| place.capabilities.contains(&capability);
        let id = random_id()?;
        let writable = spec.workspace().access() == Access::ReadWrite;
        if writable && has(Capability::Files) {
            return OwnFile::new(&id, own).map(Self::Workspace).map(Some);
        }
        let programs = has(Capability::MultipleExecs) && has(Capability::UnixPrograms);
        Ok(programs.then(|| Self::Temporary(format!("/tmp/.cofferdam-{id}"))))
    }

    /// The file, as code inside names it.
    pub(crate) fn inside(&self) -> String {
        match self {
            Self::Workspace(file) => file.path().inside(),
            Self::Temporary(path) => path.clone(),
        }
    }

    /// The file, where it is in the workspace.
    pub(crate) fn path(&self) -> Option<&SandboxPath> {
        match self {
            Self::Workspace(file) => Some(file.path()),
            Self::Temporary(_) => None,
        }
    }

    /// Takes what is there, and removes it. Whatever is wrong with it, there is no error: only no result.
    pub(crate) async fn take(&self, sandbox: &dyn Sandbox, most: ByteSize) -> rich::Taken {
        let work = async {
            match self {
                Self::Workspace(file) => {
                    let path = file.path();
                    let read = files::read(sandbox, path, most.as_bytes()).await;
                    let missing = matches!(&read, Err(error) if error.kind() == ErrorKind::NotFound);
                    if !missing {
                        // What cannot be removed is left to whoever has the workspace.
                        let _ = sandbox.remove(path).await;
                    }
                    (read.ok(), missing)
                }
                Self::Temporary(path) => {
                    let request = ExecRequest::argv(["cat", "--", path]).timeout(PATIENCE).max_output(most).build();
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
        match tokio::time::timeout(PATIENCE * 2, work).await {
            // An interpreter always says what it is: nothing at all is what a full disk left.
            Ok((Some(bytes), _)) if bytes.is_empty() => rich::Taken { dropped: 1, ..rich::Taken::default() },
            Ok((Some(bytes), _)) => rich::take(&bytes),
            Ok((None, true)) => rich::Taken::default(),
            _ => rich::Taken { dropped: 1, ..rich::Taken::default() },
        }
    }
}
