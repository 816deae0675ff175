//! `process.Process` of the agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State as Axum};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{
    ByteSize, ErrorKind, ExecHandle, ExecRequest, Exit, OutputEvent, OutputStream, OutputSubscription, Stdin,
    StdinWriter, TerminalSize,
};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::reply::{Refused, frame, framed, guest, stream, stream_error};
use super::{Guest, State};

/// Time for which a process that has ended is known.
const RETENTION: Duration = Duration::from_secs(30);
/// The longest time of a process.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Runs a command as if it were root's: it can write to a workspace that belongs to root, as far as a server without
/// users can have one. Changes of the workspace by the command itself remain.
const AS_ROOT: &str = "mode() { stat -c %a /workspace; }
before=$(mode); chmod u+w /workspace; during=$(mode)
cd -- \"$1\" && shift && \"$@\"
code=$?
[ \"$(mode)\" != \"$during\" ] || chmod \"$before\" /workspace
exit $code";

/// A process.
pub struct Process {
    pid: u32,
    tag: Option<String>,
    config: Value,
    handle: ExecHandle,
    stdin: tokio::sync::Mutex<Option<StdinWriter>>,
    has_terminal: bool,
}

impl Process {
    pub fn is_running(&self) -> bool {
        self.handle.try_exit().is_none()
    }
}

pub async fn call(
    Axum(state): Axum<Arc<State>>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Response> {
    let (guest, user) = guest(&state, &headers)?;
    let is_stream = matches!(method.as_str(), "Start" | "Connect" | "StreamInput");
    let message = if is_stream { framed(&body) } else { serde_json::from_slice(&body).ok() };
    let message = message.ok_or_else(|| invalid("the message is no JSON").into_response())?;
    let every = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse().ok());
    let every = Duration::from_secs(every.unwrap_or(90));
    match method.as_str() {
        "Start" => {
            let limit = headers.get("connect-timeout-ms").and_then(|value| value.to_str().ok()?.parse().ok());
            let limit = limit.filter(|limit| *limit > 0).map(Duration::from_millis);
            let started = start(&guest, &message, limit, user == "root").await;
            Ok(started.map_or_else(
                |refused| stream_error(&refused),
                |(process, output)| follow(guest, process, output, every),
            ))
        }
        "Connect" => {
            let found = selected(&guest, &message);
            Ok(found.map_or_else(
                |refused| stream_error(&refused),
                |process| {
                    let output = process.handle.output();
                    follow(guest, process, output, every)
                },
            ))
        }
        _ => unary(&guest, &method, &message).await.map_err(IntoResponse::into_response),
    }
}

fn invalid(message: &str) -> Refused {
    Refused("invalid_argument", message.to_owned())
}

async fn unary(guest: &Guest, method: &str, message: &Value) -> Result<Response, Refused> {
    if method == "List" {
        let view = |one: &Arc<Process>| json!({ "config": one.config, "pid": one.pid, "tag": one.tag });
        let all: Vec<Value> = guest.processes.lock().values().filter(|one| one.is_running()).map(view).collect();
        return Ok(Json(json!({ "processes": all })).into_response());
    }
    let process = selected(guest, message)?;
    if !process.is_running() {
        return Err(Refused("not_found", format!("process with pid {} not found", process.pid)));
    }
    match method {
        "SendInput" => {
            let input = message["input"]["stdin"].as_str().or(message["input"]["pty"].as_str()).unwrap_or_default();
            let data = STANDARD.decode(input).map_err(|_| invalid("the input is no base64"))?;
            let mut stdin = process.stdin.lock().await;
            let writer = stdin.as_mut().ok_or_else(|| Refused("internal", "stdin not enabled or closed".to_owned()))?;
            let written = async { writer.write_all(&data).await.and(writer.flush().await) };
            written.await.map_err(|error| Refused("internal", format!("error writing to stdin: {error}")))?;
        }
        "CloseStdin" => {
            if process.has_terminal {
                return Err(invalid("cannot close stdin for PTY process - send Ctrl+D instead"));
            }
            drop(process.stdin.lock().await.take());
        }
        "Update" => {
            let size = size(&message["pty"]).ok_or_else(|| invalid("no size"))?;
            process.handle.resize(size).map_err(|error| invalid(&error.to_string()))?;
        }
        "SendSignal" => match message["signal"].as_str() {
            Some("SIGNAL_SIGKILL") => drop(process.handle.close().await),
            Some("SIGNAL_SIGTERM") => process.handle.request_cancel(LONGEST),
            other => return Err(Refused("unimplemented", format!("invalid signal: {other:?}"))),
        },
        _ => return Err(Refused("unimplemented", format!("no method {method}"))),
    }
    Ok(Json(json!({})).into_response())
}

fn selected(guest: &Guest, message: &Value) -> Result<Arc<Process>, Refused> {
    let selector = &message["process"];
    let processes = guest.processes.lock();
    let found = match (selector["pid"].as_u64(), selector["tag"].as_str()) {
        (Some(pid), _) => processes.get(&u32::try_from(pid).unwrap_or(0)),
        (None, Some(tag)) => processes.values().find(|one| one.tag.as_deref() == Some(tag)),
        (None, None) => return Err(Refused("unimplemented", "no selector".to_owned())),
    };
    found.cloned().ok_or_else(|| Refused("not_found", format!("process {selector} not found")))
}

fn size(pty: &Value) -> Option<TerminalSize> {
    let number = |name| u16::try_from(pty["size"][name].as_u64()?).ok();
    Some(TerminalSize { rows: number("rows")?, columns: number("cols")? })
}

async fn start(
    guest: &Arc<Guest>,
    message: &Value,
    limit: Option<Duration>,
    is_root: bool,
) -> Result<(Arc<Process>, OutputSubscription), Refused> {
    let config = &message["process"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let cwd = config["cwd"].as_str().filter(|cwd| !cwd.is_empty()).unwrap_or("/workspace");
    let line = if is_root { AS_ROOT } else { "cd -- \"$1\" && shift && exec \"$@\"" };
    let wrapper = ["/bin/sh", "-c", line, "sh", cwd].map(str::to_owned);
    let arguments = config["args"].as_array().into_iter().flatten().map(text);
    let argv = wrapper.into_iter().chain([text(&config["cmd"])]).chain(arguments);
    let terminal = size(&message["pty"]);
    let wants_input = message["stdin"].as_bool().unwrap_or(true) || terminal.is_some();
    let mut request = ExecRequest::argv(argv)
        .unset_env("LANG")
        .env("USER", "user")
        .env("LOGNAME", "user")
        .env("E2B_SANDBOX", "true")
        .stdin(if wants_input { Stdin::Stream } else { Stdin::Empty })
        .max_output(ByteSize::from_bytes(u64::MAX))
        .timeout(limit.unwrap_or(LONGEST));
    for (name, value) in config["envs"].as_object().into_iter().flatten() {
        request = request.env(name, text(value));
    }
    if let Some(size) = terminal {
        request = request.terminal(size);
    }
    let request = request.build().map_err(|error| invalid(&error.to_string()))?;
    let handle = guest.sandbox.start(request).await.map_err(|error| match error.kind() {
        ErrorKind::Closed => Refused("unavailable", "The sandbox was not found".to_owned()),
        _ => invalid(&error.to_string()),
    })?;
    let (output, stdin) = (handle.output(), handle.stdin());
    let pid = guest.next_pid.fetch_add(1, Ordering::Relaxed);
    let process = Arc::new(Process {
        pid,
        tag: message["tag"].as_str().map(str::to_owned),
        config: config.clone(),
        handle,
        stdin: tokio::sync::Mutex::new(stdin),
        has_terminal: terminal.is_some(),
    });
    guest.processes.lock().insert(pid, Arc::clone(&process));
    let (guest, watch) = (Arc::clone(guest), process.handle.exit_watch());
    tokio::spawn(async move {
        let _ = watch.exit().await;
        tokio::time::sleep(RETENTION).await;
        guest.processes.lock().remove(&pid);
    });
    Ok((process, output))
}

/// Answers with the events of a process.
fn follow(guest: Arc<Guest>, process: Arc<Process>, mut output: OutputSubscription, every: Duration) -> Response {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut cut = guest.cut.subscribe();
        let event = |event: Value| Ok(frame(0, &json!({ "event": event })));
        if sender.send(event(json!({ "start": { "pid": process.pid } }))).await.is_err() {
            return;
        }
        loop {
            let next = tokio::select! {
                next = output.next() => next,
                _ = cut.recv() => {
                    let _ = sender.send(Err(std::io::Error::other("cut"))).await;
                    return;
                }
                () = sender.closed() => return,
                () = tokio::time::sleep(every) => {
                    let _ = sender.send(event(json!({ "keepalive": {} }))).await;
                    continue;
                }
            };
            let chunk = match next {
                Some(OutputEvent::Chunk(chunk)) => chunk,
                Some(OutputEvent::Lost { bytes, .. }) => panic!("the server lost {bytes} bytes of output"),
                None => break,
            };
            let name = match chunk.stream {
                _ if process.has_terminal => "pty",
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            for piece in chunk.data.chunks(32 << 10) {
                let data = BTreeMap::from([(name, STANDARD.encode(piece))]);
                if sender.send(event(json!({ "data": data }))).await.is_err() {
                    return;
                }
            }
        }
        match process.handle.exit().await {
            Ok(exit) => {
                let _ = sender.send(event(json!({ "end": end(&exit) }))).await;
                let _ = sender.send(Ok(frame(2, &json!({})))).await;
            }
            Err(_) => drop(sender.send(Err(std::io::Error::other("the sandbox ended"))).await),
        }
    });
    stream(receiver)
}

/// Returns an exit as the agent reports it, in the words of Go. Fields that are zero are left out, as by E2B.
fn end(exit: &Exit) -> Value {
    let name = |signal: i32| match signal {
        2 => "interrupt".to_owned(),
        6 => "aborted".to_owned(),
        9 => "killed".to_owned(),
        10 => "user defined signal 1".to_owned(),
        11 => "segmentation fault".to_owned(),
        15 => "terminated".to_owned(),
        other => format!("signal {other}"),
    };
    match exit.signal {
        Some(signal) => {
            let status = format!("signal: {}", name(signal));
            json!({ "exitCode": -1, "status": status, "error": status })
        }
        None if exit.code == 0 => json!({ "exited": true, "status": "exit status 0" }),
        None => {
            let status = format!("exit status {}", exit.code);
            json!({ "exitCode": exit.code, "exited": true, "status": status, "error": status })
        }
    }
}
