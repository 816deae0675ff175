//! `cofferdam plugins run`: a host in the foreground.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam::plugins::{CallOptions, Context, Host, StreamItem};
use cofferdam::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Stdin};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use super::{debug, host};
use crate::args::RunPluginsArgs;
use crate::commands::run::{no_signals, signal_status};
use crate::commands::serve_on_many;
use crate::interrupts::Interrupts;
use crate::report;
use crate::style::Tone;

/// The maximum length of a line with a call.
const MAX_LINE: u64 = 8 << 20;
/// The maximum number of calls at a time.
const MAX_CALLS: usize = 256;
/// The lines of answers that wait for the reader.
const QUEUED: usize = 64;

/// A call on standard input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CallRequest {
    #[serde(default)]
    id: Value,
    plugin: String,
    method: String,
    #[serde(default = "no_input")]
    input: Value,
    #[serde(default)]
    timeout: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    traceparent: Option<String>,
    #[serde(default)]
    metadata: serde_json::Map<String, Value>,
    #[serde(default)]
    stream: bool,
}

/// Returns the input of a call without one.
fn no_input() -> Value {
    json!({})
}

/// Runs plugins until a signal arrives.
pub fn run(args: &RunPluginsArgs, config: Option<PathBuf>) -> Result<u8> {
    serve_on_many(async {
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let opened = host::open(&args.host, config).await?;
        let served = serve(&opened, args);
        let result = tokio::select! {
            result = served => result.map(|()| 0),
            number = interrupts.next() => Ok(signal_status(number)),
        };
        let drained = opened.drain(args.drain).await;
        if result.is_ok() {
            debug::report_profiles(&args.host, &args.plugins);
        }
        if drained.events > 0 {
            report::remark(&format!("{} events were not delivered", drained.events), Tone::Warning);
        }
        result
    })
}

async fn serve(host: &Host, args: &RunPluginsArgs) -> Result<()> {
    host::load_others(host, &args.host).await?;
    let mut names = Vec::new();
    for plugin in &args.plugins {
        names.push(host::load(host, plugin, &args.host).await?);
    }
    for name in &names {
        host.prepare(name).await.map_err(|error| Error::invalid("run plugins", error.message))?;
    }
    let metrics = match args.metrics {
        None => None,
        Some(address) => {
            let failed =
                |error| Error::new(ErrorKind::Unavailable, "serve metrics", "cannot listen").with_source(error);
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            report::remark(&format!("counters at http://{address}/metrics"), Tone::Good);
            Some(listener)
        }
    };
    report::remark(&format!("running {}", names.join(", ")), Tone::Good);
    let counters = async {
        match metrics {
            Some(listener) => serve_metrics(host, listener).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = counters => Ok(()),
        result = calls(host) => {
            result?;
            // Without calls, timers and events continue until a signal arrives.
            std::future::pending().await
        }
    }
}

/// Takes calls from standard input, one JSON object in each line, and answers in lines of the same kind.
async fn calls(host: &Host) -> Result<()> {
    let failed = |error| Error::new(ErrorKind::Io, "run plugins", "cannot read standard input").with_source(error);
    let (answers, mut written) = mpsc::channel::<String>(QUEUED);
    let writer = tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(line) = written.recv().await {
            if out.write_all(line.as_bytes()).await.is_err() || out.flush().await.is_err() {
                return;
            }
        }
    });
    let running = Arc::new(Semaphore::new(MAX_CALLS));
    let mut input = BufReader::new(tokio::io::stdin());
    loop {
        let Some(line) = read_line(&mut input).await.map_err(failed)? else { break };
        let request = match parse_request(&line) {
            Ok(request) => request,
            Err(message) => {
                let answer = json!({"error": {"kind": "parse-error", "message": message}});
                let _ = answers.send(format!("{answer}\n")).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&running).acquire_owned().await else { break };
        let (host, answers) = (host.clone(), answers.clone());
        tokio::spawn(async move {
            let _permit = permit;
            answer(&host, request, &answers).await;
        });
    }
    drop(answers);
    let _ = writer.await;
    Ok(())
}

/// Reads a line. A longer one than allowed is read to its end and returned without its rest.
async fn read_line(input: &mut BufReader<Stdin>) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    if (&mut *input).take(MAX_LINE + 1).read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    while !line.ends_with(b"\n") {
        let mut rest = Vec::new();
        let count = (&mut *input).take(MAX_LINE).read_until(b'\n', &mut rest).await?;
        if count == 0 || rest.ends_with(b"\n") {
            break;
        }
    }
    Ok(Some(line))
}

/// Reads a call. Fails with the reason.
fn parse_request(line: &[u8]) -> std::result::Result<CallRequest, String> {
    if line.len() as u64 > MAX_LINE {
        return Err("the line is longer than 8 MiB".to_owned());
    }
    let request: CallRequest = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match request.timeout.as_deref().map(cofferdam::parse_duration) {
        Some(Err(_)) => Err("timeout is not a duration such as 5s".to_owned()),
        _ => Ok(request),
    }
}

async fn answer(host: &Host, request: CallRequest, answers: &mpsc::Sender<String>) {
    let timeout = request.timeout.as_deref().and_then(|text| cofferdam::parse_duration(text).ok());
    let context = Context {
        tenant: request.tenant,
        traceparent: request.traceparent,
        metadata: request.metadata,
        ..Context::default()
    };
    let options = CallOptions { context, timeout, stream: request.stream };
    let mut call = host.call(&request.plugin, &request.method, request.input, options);
    let correlation = call.id().to_owned();
    while let Some(item) = call.next().await {
        let line = match item {
            StreamItem::Item(value) => json!({"id": request.id, "item": value}),
            StreamItem::Progress(value) => json!({"id": request.id, "progress": value}),
        };
        if answers.send(format!("{line}\n")).await.is_err() {
            return;
        }
    }
    let line = match call.result().await {
        Ok(result) => json!({"id": request.id, "correlationId": correlation, "result": result}),
        Err(error) => json!({"id": request.id, "correlationId": correlation, "error": error.to_json()}),
    };
    let _ = answers.send(format!("{line}\n")).await;
}

/// Serves the counters by HTTP.
async fn serve_metrics(host: &Host, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let host = host.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(std::time::Duration::from_secs(10), respond(&host, stream)).await;
        });
    }
}

async fn respond(host: &Host, mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 1024];
    let count = stream.read(&mut request).await?;
    let (status, body) = match request[..count].starts_with(b"GET /metrics ") {
        true => ("200 OK", host.metrics()),
        false => ("404 Not Found", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await
}
