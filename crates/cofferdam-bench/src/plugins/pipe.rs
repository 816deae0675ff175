//! A program that echoes frames over pipes: no SDK, no sandbox, no JSON.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A message as the host sends it for a call.
const MESSAGE: &str = concat!(
    r#"{"correlationId":"0123456789abcdef","id":1234,"jsonrpc":"2.0","method":"call","params":{"context":"#,
    r#"{"deadline":"2026-11-21T10:00:00.000Z","depth":0,"dropped":[],"metadata":{},"requestId":"0123456789abcdef","#,
    r#""tenant":null,"traceparent":null},"input":{"text":"hello"},"method":"echo"}}"#,
);
const BUFFER: usize = 64 << 10;
/// The search path of programs in a sandbox, so that both run the same interpreter.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The running program.
pub struct Pipe {
    _child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    body: Vec<u8>,
}

impl Pipe {
    /// Starts a program.
    pub fn start(interpreter: &str, program: &Path) -> Result<Self> {
        let mut command = Command::new(interpreter);
        command.arg(program).env("PATH", PATH).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {interpreter}"))?;
        let stdin = child.stdin.take().context("no standard input")?;
        let stdout = child.stdout.take().context("no standard output")?;
        Ok(Self { _child: child, stdin, stdout: BufReader::with_capacity(BUFFER, stdout), body: Vec::new() })
    }

    /// Echoes one frame.
    pub async fn call(&mut self) -> Result<()> {
        self.send(MESSAGE).await?;
        self.receive().await?;
        ensure!(self.body == MESSAGE.as_bytes(), "the program returned another message");
        Ok(())
    }

    /// Echoes frames, with `at_once` on their way.
    pub async fn calls(&mut self, calls: usize, at_once: usize) -> Result<Duration> {
        let begun = Instant::now();
        for _ in 0..at_once.min(calls) {
            self.send(MESSAGE).await?;
        }
        for received in 0..calls {
            self.receive().await?;
            if received + at_once < calls {
                self.send(MESSAGE).await?;
            }
        }
        Ok(begun.elapsed())
    }

    /// Receives frames without an acknowledgement.
    pub async fn stream(&mut self, items: usize, size: usize) -> Result<Duration> {
        let begun = Instant::now();
        self.send(&format!("stream {items} {size}")).await?;
        for _ in 0..items {
            self.receive().await?;
            ensure!(self.body.len() == size, "an item has another size");
        }
        Ok(begun.elapsed())
    }

    async fn send(&mut self, body: &str) -> Result<()> {
        let frame = format!("Content-Length: {}\r\n\r\n{body}", body.len());
        Ok(self.stdin.write_all(frame.as_bytes()).await?)
    }

    async fn receive(&mut self) -> Result<()> {
        let mut head = String::new();
        self.stdout.read_line(&mut head).await?;
        let size = head.strip_prefix("Content-Length: ").and_then(|size| size.trim_end().parse().ok());
        self.stdout.read_line(&mut head).await?;
        self.body.resize(size.context("the program ended")?, 0);
        self.stdout.read_exact(&mut self.body).await?;
        Ok(())
    }
}
