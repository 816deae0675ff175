//! `cofferdam exec` and `logs`.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam::{Chunk, EnvDelta, Error, ErrorKind, ExecRequest, Exit, OutputEvent, Result, Retry, TerminalSize};
use cofferdam_server::client::{Attachment, Client, Content, Event, Input, Method};
use cofferdam_server::rest::Control;
use cofferdam_server::rest::views::{ExecList, ExecState, ExecView, Signal, SignalExec, StartExec, StdinView};
use serde_json::json;
use tokio::sync::mpsc;

use super::client::encoded;
use super::connect;
use crate::args::{AttachArgs, ExecArgs, OutputOfExecArgs};
use crate::commands::block_on;
use crate::commands::run::no_signals;
use crate::interrupts::{Interrupts, Resizes};
use crate::report::{self, FAILED, Form, READER_GONE};
use crate::sink::{Collected, Events, Live, RawOutput, Sink, merge};
use crate::style::Tone;
use crate::terminal::one_line;
use crate::tty::{self, RawTerminal};

/// The time to connect again after a cut, for a terminal and for other output, and the time between two attempts.
const TERMINAL_CUT_TIMEOUT: Duration = Duration::from_secs(120);
const CUT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(300);
/// Ctrl-], which ends the client of a terminal and leaves the command running.
const DETACH_KEY: u8 = 0x1d;

/// Runs a command in a sandbox.
pub fn main(args: ExecArgs) -> u8 {
    let form = Form::of(args.json);
    let done = connect(&args.client).and_then(|client| block_on(async { run(&client, &args, form).await }));
    report::finish(done, form)
}

async fn run(client: &Client, args: &ExecArgs, form: Form) -> Result<u8> {
    let terminal = if args.tty { Some(tty::size()?) } else { None };
    let path = format!("/v1/sandboxes/{}/execs", encoded(&args.sandbox));
    let started: ExecView = client.call(Method::POST, &path, Some(&request(args, terminal)?)).await?;
    if args.detach {
        let text = match form {
            Form::Json => return Ok(report::printed(report::document(&json!({ "id": started.id })), 0)),
            _ => format!("{}\n", one_line(&started.id)),
        };
        return Ok(report::printed(report::print(&text), 0));
    }
    let input = (args.stdin || args.tty).then(crate::stdin::pieces);
    let raw = if args.tty { Some(RawTerminal::enter()?) } else { None };
    let mut sink = match form {
        Form::Json => Sink::Collect(Collected::default()),
        _ if args.tty => Sink::Live(Live::new(RawOutput::Yes)),
        _ => Sink::Live(Live::new(RawOutput::No)),
    };
    let (sandbox, exec, has_network) = (args.sandbox.as_str(), started.id.as_str(), started.network_denials.is_some());
    let session = FollowedExec { client, sandbox, exec, owned: true, is_terminal: args.tty, has_network };
    let followed = session.follow(&mut sink, input, 0).await;
    drop(raw);
    session.finish(followed?, sink).await
}

/// Connects to an exec that was started before.
pub fn attach(args: &AttachArgs) -> u8 {
    let done = connect(&args.client).and_then(|client| block_on(async { run_attached(&client, args).await }));
    done.unwrap_or_else(|error| report::error(&error, Form::Text))
}

async fn run_attached(client: &Client, args: &AttachArgs) -> Result<u8> {
    let exec: ExecView = match &args.exec {
        Some(exec) => view(client, &args.sandbox, exec).await?,
        None => {
            let running = |exec: &ExecView| exec.state == ExecState::Running;
            newest(client, &args.sandbox, running).await?.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "attach", "no command runs in this sandbox")
                    .with_remedy("name an exec that has ended, or print its output with 'cofferdam logs'")
            })?
        }
    };
    let is_terminal = exec.terminal && !args.no_stdin && tty::size().is_ok();
    let input = (!args.no_stdin && (is_terminal || (exec.stdin && !exec.terminal))).then(crate::stdin::pieces);
    let raw = if is_terminal { Some(RawTerminal::enter()?) } else { None };
    let mut sink = Sink::Live(Live::new(if is_terminal { RawOutput::Yes } else { RawOutput::No }));
    let has_network = exec.network_denials.is_some();
    let session =
        FollowedExec { client, sandbox: &args.sandbox, exec: &exec.id, owned: false, is_terminal, has_network };
    let followed = session.follow(&mut sink, input, args.offset).await;
    drop(raw);
    session.finish(followed?, sink).await
}

/// Returns an exec of a sandbox.
async fn view(client: &Client, sandbox: &str, exec: &str) -> Result<ExecView> {
    let path = format!("/v1/sandboxes/{}/execs/{}", encoded(sandbox), encoded(exec));
    client.call(Method::GET, &path, None::<&()>).await
}

/// Returns the newest exec of a sandbox that is wanted.
async fn newest(client: &Client, sandbox: &str, wanted: impl Fn(&ExecView) -> bool) -> Result<Option<ExecView>> {
    let path = format!("/v1/sandboxes/{}/execs", encoded(sandbox));
    let list: ExecList = client.call(Method::GET, &path, None::<&()>).await?;
    Ok(list.execs.into_iter().rev().find(wanted))
}

fn request(args: &ExecArgs, terminal: Option<TerminalSize>) -> Result<StartExec> {
    let mut builder = ExecRequest::argv(args.command.clone());
    for (key, value) in &args.env {
        builder = builder.env(key, value);
    }
    let env: EnvDelta = builder.build()?.env().clone();
    Ok(StartExec {
        argv: Some(args.command.clone()),
        env,
        working_dir: args.working_dir.clone().unwrap_or_default(),
        stdin: if args.stdin || args.tty { StdinView::Stream } else { StdinView::Empty },
        terminal,
        timeout: args.timeout,
        max_output: args.max_output,
        ..StartExec::default()
    })
}

/// Prints what is left, and returns the exit status.
fn ended(sink: Sink, exit: Exit, denials: &[String]) -> Result<u8> {
    let status = exit.shell_status();
    match sink {
        Sink::Collect(collected) => {
            let mut document = json!({ "exit": exit, "status": status });
            if !denials.is_empty() {
                document["network_denials"] = json!(denials);
            }
            for (name, value) in collected.into_json() {
                document[name] = value;
            }
            Ok(report::printed(report::document(&document), status))
        }
        Sink::Live(live) => {
            if live.lost > 0 {
                report::remark(&format!("{} bytes of output were lost", live.lost), Tone::Warning);
            }
            if exit.truncated {
                report::remark("output truncated (raise the limit with --max-output)", Tone::Warning);
            }
            if exit.timed_out {
                report::remark("killed: time limit reached (raise it with --timeout)", Tone::Warning);
            } else if let Some(kind) = exit.killed_by {
                report::remark(&format!("killed: {} limit reached", kind.as_str()), Tone::Warning);
            }
            denials.iter().for_each(|denial| report::remark(&format!("network: {denial}"), Tone::Warning));
            Ok(status)
        }
        Sink::Events(_) => Ok(status),
    }
}

/// An exec that this client follows.
struct FollowedExec<'a> {
    client: &'a Client,
    sandbox: &'a str,
    exec: &'a str,
    /// True if the exec ends with a signal of this client.
    owned: bool,
    is_terminal: bool,
    /// True if the sandbox has a network policy.
    has_network: bool,
}

/// The end of an attachment.
enum Left {
    Exit(Exit),
    ReaderGone,
    /// The user left the command running.
    Detached,
    Cut(Error),
}

/// The end of a session.
enum Followed {
    Exit(Exit),
    ReaderGone,
    /// The user left the command running. The output was read up to this offset.
    Detached(u64),
}

impl FollowedExec<'_> {
    /// Follows the exec to its end, over any number of connections.
    async fn follow(
        &self,
        sink: &mut Sink,
        mut input: Option<mpsc::Receiver<Vec<u8>>>,
        mut offset: u64,
    ) -> Result<Followed> {
        let mut cut_since = None;
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let timeout = if self.is_terminal { TERMINAL_CUT_TIMEOUT } else { CUT_TIMEOUT };
        loop {
            let cut = match self.client.attach(&encoded(self.sandbox), &encoded(self.exec), offset).await {
                Ok(mut attachment) => {
                    if cut_since.take().is_some() && self.is_terminal {
                        self.remark("connected again");
                    }
                    let left = self.serve(&mut attachment, sink, &mut input, &mut interrupts).await?;
                    offset = attachment.offset();
                    match left {
                        Left::Exit(exit) => {
                            let written = sink.finish().await;
                            return Ok(if written.is_ok() { Followed::Exit(exit) } else { Followed::ReaderGone });
                        }
                        Left::Detached => return Ok(Followed::Detached(offset)),
                        Left::ReaderGone => {
                            self.signal().await;
                            return Ok(Followed::ReaderGone);
                        }
                        Left::Cut(error) => error,
                    }
                }
                Err(error) => error,
            };
            if cut_since.is_none() && self.is_terminal {
                self.remark("the connection was cut; connecting again");
            }
            if cut.retry() != Retry::MayHelp || cut_since.get_or_insert_with(Instant::now).elapsed() > timeout {
                return Err(cut.with_remedy(self.command_to_attach(offset)));
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
                _ = interrupts.next() => return Ok(Followed::Detached(offset)),
            }
        }
    }

    /// Returns the command that connects to the exec again.
    fn command_to_attach(&self, offset: u64) -> String {
        format!("cofferdam attach --offset {offset} {} {}", self.sandbox, self.exec)
    }

    /// Prints a remark below the line of a terminal in raw mode.
    fn remark(&self, text: &str) {
        // The terminal adds no carriage return of its own, and a closed standard error cannot be reported.
        let _ = write!(std::io::stderr(), "\r\ncofferdam: {text}\r\n");
    }

    /// Prints the rest, and returns the exit status.
    async fn finish(&self, followed: Followed, sink: Sink) -> Result<u8> {
        match followed {
            Followed::Exit(exit) => ended(sink, exit, &self.network_denials().await),
            Followed::ReaderGone => Ok(READER_GONE),
            Followed::Detached(offset) => {
                let text = format!("the command still runs; connect again with: {}", self.command_to_attach(offset));
                report::remark(&text, Tone::Warning);
                Ok(0)
            }
        }
    }

    /// Returns what the network policy refused during the exec, which has ended.
    async fn network_denials(&self) -> Vec<String> {
        if !self.has_network {
            return Vec::new();
        }
        // The sandbox may have ended meanwhile.
        let view = view(self.client, self.sandbox, self.exec).await.ok();
        view.and_then(|view| view.network_denials).unwrap_or_default()
    }

    async fn serve(
        &self,
        attachment: &mut Attachment,
        sink: &mut Sink,
        input: &mut Option<mpsc::Receiver<Vec<u8>>>,
        interrupts: &mut Interrupts,
    ) -> Result<Left> {
        let mut resizes = if self.is_terminal { Resizes::listen().map_err(no_signals)? } else { Resizes::none() };
        // The terminal may have another size than that of the client before.
        if let (true, Some(TerminalSize { rows, columns })) = (self.is_terminal, tty::current_size())
            && let Err(error) = attachment.send(Input::Control(Control::Resize { rows, columns })).await
        {
            return Ok(Left::Cut(error));
        }
        loop {
            let sent = tokio::select! {
                event = attachment.next() => match event {
                    Ok(Event::Exit(exit)) => return Ok(Left::Exit(exit)),
                    Ok(Event::Output(stream, data)) => {
                        if let Some(left) = put(sink, OutputEvent::Chunk(Chunk { stream, data })).await? {
                            return Ok(left);
                        }
                        continue;
                    }
                    Ok(Event::Lost(bytes)) => {
                        if let Some(left) = put(sink, OutputEvent::Lost { chunks: 1, bytes }).await? {
                            return Ok(left);
                        }
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::Unavailable => return Ok(Left::Cut(error)),
                    Err(error) => return Err(error),
                },
                piece = next_piece(input) => match piece {
                    Some(mut data) if self.is_terminal && data.contains(&DETACH_KEY) => {
                        data.truncate(data.iter().position(|byte| *byte == DETACH_KEY).unwrap_or_default());
                        // A cut changes nothing for a client that leaves.
                        let _ = attachment.send(Input::Bytes(Bytes::from(data))).await;
                        return Ok(Left::Detached);
                    }
                    Some(data) => attachment.send(Input::Bytes(Bytes::from(data))).await,
                    None => {
                        *input = None;
                        attachment.send(Input::Control(Control::Eof)).await
                    }
                },
                () = resizes.next() => match tty::current_size() {
                    Some(TerminalSize { rows, columns }) => {
                        attachment.send(Input::Control(Control::Resize { rows, columns })).await
                    }
                    None => Ok(()),
                },
                number = interrupts.next() => {
                    if !self.owned {
                        return Ok(Left::Detached);
                    }
                    report::remark(&format!("interrupted by signal {number}; the command is ended"), Tone::Warning);
                    attachment.send(Input::Control(Control::Signal { signal: Signal::Term })).await
                }
            };
            if let Err(error) = sent {
                return Ok(Left::Cut(error));
            }
        }
    }

    /// Ends the exec.
    async fn signal(&self) {
        if self.owned {
            let path = format!("/v1/sandboxes/{}/execs/{}/signal", encoded(self.sandbox), encoded(self.exec));
            let body = json!(SignalExec { signal: Signal::Term, grace: None }).to_string();
            // The exec has ended, or the server is gone.
            let _ = self.client.send(Method::POST, &path, Content::Json(body)).await;
        }
    }
}

/// Waits for the next piece of input; forever without input.
async fn next_piece(input: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

async fn put(sink: &mut Sink, event: OutputEvent) -> Result<Option<Left>> {
    match sink.put(event).await {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Some(Left::ReaderGone)),
        Err(error) => Err(Error::new(ErrorKind::Io, "exec", "cannot write the output").with_source(error)),
    }
}

/// Prints the output of an exec that was started before, and follows it to its end.
pub fn logs(args: OutputOfExecArgs) -> u8 {
    let form = if args.json { Form::Events } else { Form::Text };
    let done = connect(&args.client).and_then(|client| block_on(async { print_logs(&client, &args).await }));
    report::finish(done, form)
}

async fn print_logs(client: &Client, args: &OutputOfExecArgs) -> Result<u8> {
    let exec = match &args.exec {
        Some(exec) => exec.clone(),
        None => {
            let newest = newest(client, &args.sandbox, |_| true).await?.map(|exec| exec.id);
            newest.ok_or_else(|| Error::new(ErrorKind::NotFound, "logs", "no command was run in this sandbox"))?
        }
    };
    let mut sink = if args.json { Sink::Events(Events::new()) } else { Sink::Live(Live::new(RawOutput::No)) };
    let (sandbox, exec) = (args.sandbox.as_str(), exec.as_str());
    let session = FollowedExec { client, sandbox, exec, owned: false, is_terminal: false, has_network: false };
    let Followed::Exit(exit) = session.follow(&mut sink, None, 0).await? else { return Ok(READER_GONE) };
    if let Sink::Events(events) = &mut sink {
        let mut line = json!({ "type": "exit" });
        merge(&mut line, json!({ "exit": exit }));
        return Ok(if events.line(&line).await.is_ok() { 0 } else { FAILED });
    }
    Ok(0)
}
