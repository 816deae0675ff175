//! Calls that run code.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_code::{CodeRequest, CodeResult, Contents, HeadTail, RichKind, RichResult, Screened};
use cofferdam_contract::{ByteSize, Chunk, Result, SandboxPath};
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::Value;

use super::{Caller, structured, text};
use crate::arguments::RunCode;
use crate::interpreters::{Entered, Name};
use crate::policy;
use crate::results::{CodeOutput, End, FileChange, InterpreterState, Rich, UsedSandbox};

/// The only image type of results.
const PNG: &str = "image/png";
/// Maximum length of a value in the text for models, in characters.
const MAX_VALUE: usize = 10_000;
/// Maximum number of files that the text names.
const MAX_NAMED: usize = 20;

impl Caller<'_> {
    pub(super) async fn run_code(self, arguments: RunCode) -> Result<CallToolResult> {
        let request = request(&arguments)?;
        // Refuses a language before a sandbox is created.
        self.server.executor.config().languages.by_name(&request.language)?;
        let max_output = text::max_output(&request, &self.server.executor.config().bounds)?;
        if let Some(name) = &arguments.session {
            return self.run_in_session(Name::parse(name)?, arguments.sandbox.as_deref(), request, max_output).await;
        }
        let found = self.find(arguments.sandbox.as_deref()).await?;
        let on_output = |chunk: &Chunk| self.reporter.output(chunk);
        let profile = &self.server.profile;
        let (result, outputs) =
            self.server.executor.execute_head_tail(profile, &**found.sandbox, request, max_output, &on_output).await?;
        answer(result, outputs, max_output, None, found.used.clone())
    }

    /// Runs code in the sandbox's live interpreter of this name. Starts the interpreter if there is none.
    async fn run_in_session(
        self,
        name: Name,
        sandbox: Option<&str>,
        request: CodeRequest,
        max_output: usize,
    ) -> Result<CallToolResult> {
        let found = self.find_lasting(sandbox).await?;
        let on_output = |chunk: &Chunk| self.reporter.output(chunk);
        let server = self.server;
        let (result, outputs) = match found.sandbox.interpreters().enter(&name, &request.language)? {
            Entered::Live(session) => session
                .call_head_tail(request, max_output, &on_output)
                .await
                .map_err(|error| name.gone(&session, error))?,
            Entered::New(opening) => {
                let (profile, spec, language) = (&server.profile, found.sandbox.spec(), request.language.clone());
                let max_open = server.config.code.sessions.max_open;
                let mut opened = None;
                let open = async {
                    let reservation = Box::new(server.store.reserve_interpreter(self.account(), max_open)?);
                    let session =
                        server.interpreters.open_holding(profile, &found.sandbox, &language, reservation).await?;
                    Ok(Arc::clone(opened.insert(opening.done(session))))
                };
                let called = server.executor.call_first(profile, spec, request, open, max_output, &on_output).await;
                called.map_err(|error| match &opened {
                    Some(session) => name.gone(session, error),
                    None => error,
                })?
            }
        };
        answer(result, outputs, max_output, Some(&name), found.used.clone())
    }
}

fn request(arguments: &RunCode) -> Result<CodeRequest> {
    let mut request = CodeRequest::new(arguments.language.clone(), arguments.code.clone());
    request.args.clone_from(&arguments.args);
    request.env.clone_from(&arguments.env);
    request.stdin = arguments.stdin.clone().map(Bytes::from).unwrap_or_default();
    request.working_dir = SandboxPath::new(&arguments.working_dir)?;
    request.timeout = arguments.timeout_seconds.map(|time| policy::seconds("timeout_seconds", time)).transpose()?;
    request.max_output = arguments.max_output_bytes.map(ByteSize::from_bytes);
    request.contents = if arguments.file_contents { Contents::Carry } else { Contents::Leave };
    Ok(request)
}

fn answer(
    result: CodeResult,
    outputs: [HeadTail; 2],
    max_output: usize,
    session: Option<&Name>,
    used: UsedSandbox,
) -> Result<CallToolResult> {
    let (stdout, stderr, end) = text::outputs(outputs, max_output, End::from(&result));
    let mut text = text::of(&stdout, &stderr, &end);
    let mut images = Vec::new();
    for rich in &result.results {
        match rich.data.get(PNG).and_then(Value::as_str) {
            Some(image) => images.push(ContentBlock::image(image, PNG)),
            None => text += &shown(rich),
        }
    }
    text += &named(&result);
    let session = session.zip(result.session.as_ref()).map(|(name, state)| {
        let (name, calls, lost) = (name.as_str().to_owned(), state.calls, state.lost.clone());
        InterpreterState { name, calls, lost }
    });
    if let Some(InterpreterState { name, lost: Some(why), .. }) = &session {
        text += &format!("\n[the session '{name}' is lost: {why}]");
    }
    let runtime = match &result.meta.runtime.version {
        Some(version) => format!("{} {version}", result.meta.runtime.interpreter),
        None => result.meta.runtime.interpreter.clone(),
    };
    let output = CodeOutput {
        stdout,
        stderr,
        end,
        results_dropped: result.results_dropped,
        files: result.files.changes.iter().map(FileChange::from).collect(),
        files_complete: result.files.complete && result.files.total == result.files.changes.len() as u64,
        findings: result.screening.as_ref().map(findings).unwrap_or_default(),
        runtime,
        backend: result.meta.backend,
        level: result.meta.level.as_str().to_owned(),
        posture: result.meta.posture,
        execution: result.id,
        session,
        used,
        results: result.results.into_iter().map(rich).collect(),
    };
    let content = std::iter::once(ContentBlock::text(text)).chain(images).collect();
    structured(&output, content)
}

/// Returns the findings of screening, with notes on omitted findings and code that was not screened.
fn findings(screened: &Screened) -> Vec<String> {
    let found = screened.findings.iter().map(ToString::to_string);
    let more = screened.truncated.then(|| "further findings are not listed".to_owned());
    let unseen = screened.not_screened.as_ref().map(|why| format!("the code was not screened: {why}"));
    found.chain(more).chain(unseen).collect()
}

/// Returns a result as plain text for models.
fn shown(rich: &RichResult) -> String {
    let Some(value) = rich.data.get("text/plain").and_then(Value::as_str) else { return String::new() };
    let value: String = value.chars().take(MAX_VALUE).collect();
    match rich.kind {
        RichKind::Value => format!("\n=> {value}"),
        RichKind::Display | RichKind::Figure => format!("\n{value}"),
    }
}

/// Lists the changed files for models.
fn named(result: &CodeResult) -> String {
    let changes = &result.files.changes;
    if changes.is_empty() {
        return String::new();
    }
    let names: Vec<String> = changes
        .iter()
        .take(MAX_NAMED)
        .map(FileChange::from)
        .map(|file| format!("{} ({}, {} bytes)", file.path.escape_debug(), file.change, file.size))
        .collect();
    let more = changes.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("\n[files: {}{more}]", names.join(", "))
}

/// Converts a result to its structured form, without its image, which is separate content.
fn rich(rich: RichResult) -> Rich {
    let kind = match rich.kind {
        RichKind::Value => "value",
        RichKind::Display => "display",
        RichKind::Figure => "figure",
    };
    let mut data = rich.data;
    if data.contains_key(PNG) {
        data.insert(PNG.to_owned(), Value::Null);
    }
    Rich { kind: kind.to_owned(), data, note: rich.note }
}
