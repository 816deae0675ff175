//! Shell lines, each in a process of its own; the directory where one ends is where the next begins.

use bytes::Bytes;
use cofferdam_code::{CodeRequest, Contents, Want};
use cofferdam_contract::{ByteSize, Chunk, Error, ErrorKind, OutputStream, Result, SandboxPath, WORKSPACE_PATH};
use rmcp::model::{CallToolResult, ContentBlock};

use super::{Caller, structured, text};
use crate::arguments::RunCommand;
use crate::policy;
use crate::results::{CommandResult, End};
use crate::store::{InUse, random};

/// Shells, the first of them that may run and is there.
const SHELLS: [&str; 2] = ["bash", "sh"];
/// Stands before the directory that a shell tells at its end, after all that the line wrote.
const BEFORE: char = '\u{1e}';

impl Caller<'_> {
    pub(super) async fn run_command(self, arguments: RunCommand) -> Result<CallToolResult> {
        let asked = arguments.working_dir.as_deref().map(SandboxPath::new).transpose()?;
        let mark = format!("{BEFORE}{} ", random()?);
        let mut request = request(&arguments, &mark)?;
        let found = self.find(arguments.sandbox.as_deref()).await?;
        let sandbox = &found.sandbox;
        request.working_dir = asked.clone().unwrap_or_else(|| sandbox.working_dir());
        let result = match self.in_shell(sandbox, request.clone(), &mark).await {
            // The directory that was kept may be gone.
            Err(error) if asked.is_none() && !request.working_dir.is_workspace() && is_about_directory(&error) => {
                request.working_dir = SandboxPath::default();
                self.in_shell(sandbox, request.clone(), &mark).await?
            }
            result => result?,
        };
        let mut stderr = result.stderr.text().into_owned();
        if let Some(at) = stderr.rfind(&mark) {
            let told = stderr[at + mark.len()..].trim_end_matches('\n');
            // Outside of the workspace nothing can begin.
            let inside = told.starts_with(WORKSPACE_PATH).then(|| SandboxPath::new(told).ok()).flatten();
            sandbox.set_working_dir(inside.unwrap_or_default());
            stderr.truncate(at);
        } else {
            sandbox.set_working_dir(request.working_dir);
        }
        let result = CommandResult {
            stdout: result.stdout.text().into_owned(),
            stderr,
            end: End::from(&result),
            working_dir: sandbox.working_dir().inside(),
            place: found.place.clone(),
        };
        let text = text::of(&result.stdout, &result.stderr, &result.end);
        structured(&result, vec![ContentBlock::text(text)])
    }

    /// Runs the line in the first shell that is there.
    async fn in_shell(
        self,
        sandbox: &InUse,
        mut request: CodeRequest,
        mark: &str,
    ) -> Result<cofferdam_code::CodeResult> {
        let languages = &self.server.executor.config().languages;
        let allowed: Vec<&str> = SHELLS.into_iter().filter(|shell| languages.by_name(shell).is_ok()).collect();
        let Some((last, before)) = allowed.split_last() else {
            return Err(Error::new(
                ErrorKind::Denied,
                "run_command",
                "no shell is among the languages that may run here",
            )
            .with_remedy("use run_code with a language that the server allows"));
        };
        let on_output = |chunk: &Chunk| self.reporter.output(&without_mark(chunk, mark));
        for shell in before {
            request.language = (*shell).to_owned();
            let place = &self.server.place;
            match self.server.executor.execute_live(place, &***sandbox, request.clone(), &on_output).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                result => return result,
            }
        }
        request.language = (*last).to_owned();
        self.server.executor.execute_live(&self.server.place, &***sandbox, request, &on_output).await
    }
}

fn is_about_directory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::PathEscape)
}

/// The line, after which the shell tells where it is, however the line ends.
fn request(arguments: &RunCommand, mark: &str) -> Result<CodeRequest> {
    let octal = mark.replace(BEFORE, "\\036");
    let tell = format!("trap 'status=$?; printf \"{octal}%s\\n\" \"$PWD\" >&2; exit $status' EXIT");
    let mut request = CodeRequest::new("", format!("{tell}\n{}\n", arguments.command));
    request.env.clone_from(&arguments.env);
    request.stdin = arguments.stdin.clone().map(Bytes::from).unwrap_or_default();
    request.timeout = arguments.timeout_seconds.map(|time| policy::seconds("timeout_seconds", time)).transpose()?;
    request.max_output = arguments.max_output_bytes.map(ByteSize::from_bytes);
    request.results = Want::No;
    request.files = Want::No;
    request.contents = Contents::Leave;
    Ok(request)
}

/// Output as a client is told of it meanwhile: without what the shell tells us.
fn without_mark(chunk: &Chunk, mark: &str) -> Chunk {
    let at = match chunk.stream {
        OutputStream::Stderr => chunk.data.windows(mark.len()).position(|part| part == mark.as_bytes()),
        OutputStream::Stdout => None,
    };
    Chunk { stream: chunk.stream, data: chunk.data.slice(..at.unwrap_or(chunk.data.len())) }
}
