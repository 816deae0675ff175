//! Calls that run shell lines. Each line has its own process, and starts in the directory where the previous one ended.

use bytes::Bytes;
use cofferdam_code::{CodeRequest, Contents, Languages, Line};
use cofferdam_contract::{ByteSize, Chunk, Error, ErrorKind, Result, SandboxPath};
use rmcp::model::{CallToolResult, ContentBlock};

use super::{Caller, structured, text};
use crate::arguments::RunCommand;
use crate::policy;
use crate::results::{CommandResult, End};
use crate::store::InUse;

/// Shells in order of preference.
const SHELLS: [&str; 2] = ["bash", "sh"];

/// Returns the allowed shells.
pub fn shells(languages: &Languages) -> impl Iterator<Item = &'static str> {
    SHELLS.into_iter().filter(|shell| languages.by_name(shell).is_ok())
}

impl Caller<'_> {
    pub(super) async fn run_command(self, arguments: RunCommand) -> Result<CallToolResult> {
        let requested = arguments.working_dir.as_deref().map(SandboxPath::new).transpose()?;
        let mut request = request(&arguments)?;
        let max_output = text::max_output(&request, &self.server.executor.config().bounds)?;
        let found = self.find(arguments.sandbox.as_deref()).await?;
        let sandbox = &found.sandbox;
        request.working_dir = requested.clone().unwrap_or_else(|| sandbox.working_dir());
        let line = match self.in_shell(sandbox, request.clone(), max_output).await {
            // The directory of the previous line may be deleted.
            Err(error) if requested.is_none() && !request.working_dir.is_workspace() && is_about_directory(&error) => {
                request.working_dir = SandboxPath::default();
                self.in_shell(sandbox, request.clone(), max_output).await?
            }
            line => line?,
        };
        sandbox.set_working_dir(line.directory.unwrap_or(request.working_dir));
        let (stdout, stderr, end) = text::outputs([line.stdout, line.stderr], max_output, End::from(&line.result));
        let result = CommandResult {
            stdout,
            stderr,
            end,
            working_dir: sandbox.working_dir().inside(),
            used: found.used.clone(),
        };
        let text = text::of(&result.stdout, &result.stderr, &result.end);
        structured(&result, vec![ContentBlock::text(text)])
    }

    /// Runs the line in the first shell that the sandbox has.
    async fn in_shell(self, sandbox: &InUse, mut request: CodeRequest, max_output: usize) -> Result<Line> {
        let allowed: Vec<&str> = shells(&self.server.executor.config().languages).collect();
        let Some((last, before)) = allowed.split_last() else {
            return Err(Error::new(ErrorKind::Denied, "run_command", "the server allows no shell")
                .with_remedy("use run_code with a language that the server allows"));
        };
        let on_output = |chunk: &Chunk| self.reporter.output(chunk);
        let (executor, profile) = (&self.server.executor, &self.server.profile);
        for shell in before {
            request.language = (*shell).to_owned();
            match executor.run_line(profile, &***sandbox, request.clone(), max_output, &on_output).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                line => return line,
            }
        }
        request.language = (*last).to_owned();
        executor.run_line(profile, &***sandbox, request, max_output, &on_output).await
    }
}

fn is_about_directory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::PathEscape)
}

fn request(arguments: &RunCommand) -> Result<CodeRequest> {
    let mut request = CodeRequest::new("", arguments.command.clone());
    request.env.clone_from(&arguments.env);
    request.stdin = arguments.stdin.clone().map(Bytes::from).unwrap_or_default();
    request.timeout = arguments.timeout_seconds.map(|time| policy::seconds("timeout_seconds", time)).transpose()?;
    request.max_output = arguments.max_output_bytes.map(ByteSize::from_bytes);
    request.contents = Contents::Leave;
    Ok(request)
}
