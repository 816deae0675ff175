//! Shell lines.

use bytes::Bytes;
use cofferdam_contract::{Chunk, ExecHandle, ExecRequest, Exit, OutputEvent, OutputStream, Result, SandboxPath, Stdin};
use rmcp::model::{CallToolResult, ContentBlock};

use super::{Caller, structured};
use crate::arguments::RunCommand;
use crate::live::Reporter;
use crate::policy;
use crate::results::{CommandResult, End};

impl Caller<'_> {
    pub(super) async fn run_command(self, arguments: RunCommand) -> Result<CallToolResult> {
        let output = policy::output(arguments.max_output_bytes, self.server.config.bounds.output)?;
        let working_dir = arguments.working_dir.as_deref().map(SandboxPath::new).transpose()?;
        policy::timeout(arguments.timeout_seconds, self.server.config.spec.limits().wall_time)?;
        let found = self.find(arguments.sandbox.as_deref()).await?;
        let sandbox = &found.sandbox;
        let timeout = policy::timeout(arguments.timeout_seconds, sandbox.spec().limits().wall_time)?;
        let working_dir = working_dir.unwrap_or_else(|| sandbox.working_dir());
        let mut request = ExecRequest::shell(arguments.command)
            .working_dir(working_dir.clone())
            .timeout(timeout)
            .max_output(output)
            .output_buffer(output);
        if let Some(stdin) = arguments.stdin {
            request = request.stdin(Stdin::Bytes(Bytes::from(stdin)));
        }
        for (key, value) in arguments.env {
            request = request.env(key, value);
        }
        let handle = sandbox.start(request.build()?).await?;
        let (exit, [stdout, stderr]) = collect(&handle, self.reporter).await?;
        let result = CommandResult {
            stdout,
            stderr,
            end: End::from(&exit),
            working_dir: working_dir.inside(),
            place: found.place.clone(),
        };
        let text = text(&result);
        structured(&result, vec![ContentBlock::text(text)])
    }
}

/// Collects output without loss up to what the request allows, and tells of it as it comes.
async fn collect(handle: &ExecHandle, reporter: &Reporter) -> Result<(Exit, [String; 2])> {
    let mut output = handle.output();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = output.next().await {
        if let OutputEvent::Chunk(chunk) = event {
            reporter.output(&chunk);
            let Chunk { stream, data } = chunk;
            match stream {
                OutputStream::Stdout => stdout.extend_from_slice(&data),
                OutputStream::Stderr => stderr.extend_from_slice(&data),
            }
        }
        // A program that never stops writing must not keep others from their turn.
        tokio::task::consume_budget().await;
    }
    let exit = handle.exit().await?;
    Ok((exit, [stdout, stderr].map(|data| String::from_utf8_lossy(&data).into_owned())))
}

/// What a model reads.
fn text(result: &CommandResult) -> String {
    let mut parts = Vec::new();
    if !result.stdout.is_empty() {
        parts.push(result.stdout.trim_end_matches('\n').to_owned());
    }
    if !result.stderr.is_empty() {
        parts.push(format!("stderr:\n{}", result.stderr.trim_end_matches('\n')));
    }
    parts.extend(remarks(&result.end));
    parts.join("\n")
}

/// What is to be said about how something ended.
pub(super) fn remarks(end: &End) -> Vec<String> {
    let mut remarks = Vec::new();
    if end.truncated {
        remarks.push("[output beyond the maximum was dropped]".to_owned());
    }
    match (&end.killed_by, end.timed_out, end.signal) {
        (Some(limit), ..) => remarks.push(format!("[killed by the {limit} limit]")),
        (None, true, _) => remarks.push(format!("[time ran out after {:.1} s]", end.duration_seconds)),
        (None, false, Some(signal)) => remarks.push(format!("[ended by signal {signal}]")),
        (None, false, None) if end.exit_code != 0 => remarks.push(format!("[exit code {}]", end.exit_code)),
        _ => {}
    }
    remarks.extend(
        end.limits_hit
            .iter()
            .filter(|limit| end.killed_by.as_ref() != Some(limit))
            .map(|limit| format!("[something was refused at the {limit} limit]")),
    );
    if remarks.is_empty() {
        remarks.push("[exit code 0]".to_owned());
    }
    remarks
}
