//! The warm-up of an interpreter.

use std::time::Duration;

use cofferdam_contract::{
    ByteSize, Chunk, ExecHandle, ExecRequest, OutputEvent, OutputStream, OutputSubscription, Result, Sandbox,
};

use crate::error::WarmError;
use crate::line::Line;
use crate::marker::{Marker, OutputTooLarge};

/// The most output of modules on each stream while they are imported.
pub const MAX_STARTUP_OUTPUT: ByteSize = ByteSize::from_mebibytes(1);

/// Starts an interpreter with `request` and waits until it reports with `token` that it is ready.
pub async fn warm_up(sandbox: &dyn Sandbox, request: ExecRequest, token: &str, limit: Duration) -> Result<Line> {
    let inner = sandbox.start(request).await?;
    let stdin = inner.stdin().ok_or_else(|| WarmError::NoStdin.into_error(""))?;
    let mut ready = Ready::new(token);
    let mut output = inner.output();
    let result = tokio::time::timeout(limit, ready.wait(&mut output, &inner)).await;
    let result = result.unwrap_or(Err(WarmError::TimedOut));
    let warm_cpu = result.map_err(|error| error.into_error(&ready.noise()))?;
    Ok(Line { inner, stdin, output, warm_cpu, before: ready.bytes })
}

/// A wait for the ready report of an interpreter on both streams.
struct Ready {
    stdout: Marker,
    stderr: Marker,
    bytes: u64,
}

impl Ready {
    fn new(token: &str) -> Self {
        let marker = || Marker::new(token, MAX_STARTUP_OUTPUT.as_bytes() as usize);
        Self { stdout: marker(), stderr: marker(), bytes: 0 }
    }

    /// Returns the CPU seconds of start and warm-up.
    async fn wait(&mut self, output: &mut OutputSubscription, inner: &ExecHandle) -> Result<f64, WarmError> {
        let (mut report, mut stderr_ready) = (None, false);
        loop {
            let event = output.next().await;
            if let Some(OutputEvent::Chunk(chunk)) = &event {
                self.bytes += chunk.data.len() as u64;
            }
            match event {
                Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data })) => {
                    report = report.or(self.stdout.push(&data)?);
                }
                Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stderr, data })) => {
                    stderr_ready = stderr_ready || self.stderr.push(&data)?.is_some();
                }
                Some(OutputEvent::Lost { .. }) => return Err(OutputTooLarge.into()),
                None => return Err(ended(inner).await),
            }
            match report.as_deref().map(|line| line.split_once(' ').unwrap_or((line, ""))) {
                Some(("ready", micros)) if stderr_ready => {
                    return Ok(micros.parse::<u32>().map_or(0.0, |micros| f64::from(micros) / 1e6));
                }
                Some(("ready", _)) | None => {}
                Some(("missing", reason)) => return Err(WarmError::Missing { reason: reason.to_owned() }),
                Some(("unsupported", reason)) => return Err(WarmError::NoIsolation { reason: reason.to_owned() }),
                Some((_, reason)) => return Err(WarmError::Failed { reason: reason.to_owned() }),
            }
        }
    }

    fn noise(&self) -> String {
        [self.stdout.noise(), self.stderr.noise()].join("\n").trim().to_owned()
    }
}

impl From<OutputTooLarge> for WarmError {
    fn from(_: OutputTooLarge) -> Self {
        Self::OutputTooLarge { max: MAX_STARTUP_OUTPUT }
    }
}

async fn ended(inner: &ExecHandle) -> WarmError {
    WarmError::Ended { how: describe_end(inner).await }
}

/// Describes the end of an exec for messages.
pub async fn describe_end(inner: &ExecHandle) -> String {
    match inner.exit().await {
        Ok(exit) if exit.killed_by.is_some() => "a limit killed it".to_owned(),
        Ok(exit) => exit.signal.map_or(format!("exit code {}", exit.code), |signal| format!("signal {signal}")),
        Err(error) => error.to_string(),
    }
}
