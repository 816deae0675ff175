//! The strategies without isolation: an ordinary child process of the host, for development.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Command, Error, ErrorKind, ExecControl, ExecHandle, ExecId, ExecRequest, Exit, OutputStream, Publisher, Result,
    StdinWriter, TerminalSize, Usage,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout, Command as Program};
use tokio::sync::mpsc;

/// The time for the rest of the output of a plugin that ended. A debugger's adapter, in its own session, may outlive the
/// plugin and keep its output open.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts a plugin as a child of this process, in the package's directory. Scripts are written to `scratch`.
///
/// # Errors
/// The program does not exist, or cannot be started.
pub fn start(request: &ExecRequest, package: &Path, scratch: &Path) -> Result<ExecHandle> {
    let mut program = match request.command() {
        Command::Argv(words) => {
            let mut program = Program::new(&words[0]);
            program.args(&words[1..]);
            program
        }
        Command::Shell(line) => {
            let mut program = Program::new("/bin/sh");
            program.args(["-c", line]);
            program
        }
        Command::Script(script) => {
            let file = scratch.join(&script.name);
            std::fs::write(&file, &script.contents).map_err(failed)?;
            let mut program = Program::new(&script.interpreter[0]);
            program.args(&script.interpreter[1..]).arg(&file).args(&script.args);
            program
        }
    };
    program.current_dir(package).process_group(0).kill_on_drop(true);
    for (name, value) in request.env().iter() {
        match value {
            Some(value) => program.env(name, value),
            None => program.env_remove(name),
        };
    }
    let mut child =
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let (signals, wanted) = mpsc::unbounded_channel();
    let stdin = child.stdin.take().map(StdinWriter::new);
    let (handle, driver) = ExecHandle::new(ExecId(1), request, stdin, Arc::new(Control(signals)));
    tokio::spawn(async move {
        let outputs = (child.stdout.take(), child.stderr.take());
        let exit = wait_and_copy(wait(&mut child, group, wanted), outputs, driver.publisher()).await;
        driver.finish(exit);
    });
    Ok(handle)
}

fn failed(error: io::Error) -> Error {
    Error::new(ErrorKind::NotFound, "start plugin", "cannot start the plugin").with_source(error)
}

/// Copies the output until the process has ended.
async fn wait_and_copy(
    waiting: impl Future<Output = Result<Exit>>,
    (stdout, stderr): (Option<ChildStdout>, Option<ChildStderr>),
    publisher: &Publisher,
) -> Result<Exit> {
    let copies = async {
        tokio::join!(copy(stdout, OutputStream::Stdout, publisher), copy(stderr, OutputStream::Stderr, publisher))
    };
    tokio::pin!(copies, waiting);
    tokio::select! {
        _ = &mut copies => waiting.await,
        exit = &mut waiting => {
            let _ = tokio::time::timeout(OUTPUT_TIMEOUT, copies).await;
            exit
        }
    }
}

async fn copy(from: Option<impl AsyncRead + Unpin>, stream: OutputStream, publisher: &Publisher) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        publisher.publish(stream, &buffer[..count]);
    }
}

async fn wait(child: &mut Child, group: Option<Pid>, mut wanted: mpsc::UnboundedReceiver<Duration>) -> Result<Exit> {
    let begun = tokio::time::Instant::now();
    let signal = |signal| group.map(|group| kill_process_group(group, signal));
    let (mut cancelled, mut deadline) = (false, None);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            Some(grace) = wanted.recv() => {
                cancelled = true;
                if !grace.is_zero() {
                    let _ = signal(Signal::TERM);
                }
                let at = tokio::time::Instant::now() + grace;
                deadline = Some(deadline.map_or(at, |earlier: tokio::time::Instant| earlier.min(at)));
            }
            () = async { match deadline { Some(at) => tokio::time::sleep_until(at).await, None => std::future::pending().await } } => {
                let _ = signal(Signal::KILL);
                break child.wait().await;
            }
        }
    };
    // Children of the plugin end with it.
    let _ = signal(Signal::KILL);
    let status = status.map_err(failed)?;
    Ok(Exit {
        code: status.code().unwrap_or(-1),
        signal: status.signal(),
        timed_out: false,
        cancelled,
        truncated: false,
        killed_by: None,
        limits_hit: Vec::new(),
        duration: begun.elapsed(),
        usage: Usage::default(),
    })
}

/// Sends the grace periods of cancellations.
struct Control(mpsc::UnboundedSender<Duration>);

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        let _ = self.0.send(grace);
    }

    fn kill(&self) {
        let _ = self.0.send(Duration::ZERO);
    }

    fn resize(&self, _: TerminalSize) -> Result<()> {
        Err(Error::unsupported("resize", "a plugin has no terminal"))
    }
}
