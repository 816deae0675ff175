//! `cofferdam plugins call` and `secret`.

use std::io::{self, Read};
use std::path::PathBuf;

use cofferdam::plugins::{CallOptions, Host, StreamItem};
use cofferdam::{Error, ErrorKind, Result};
use cofferdam_plugin::CallError;
use serde_json::{Value, json};

use super::{debug, host};
use crate::args::{CallArgs, HostArgs, SecretArgs};
use crate::commands::run::{no_signals, signal_status};
use crate::commands::serve_on_many;
use crate::interrupts::Interrupts;
use crate::report::{self, document, print, printed};
use crate::style::Tone;
use crate::terminal::one_line;

/// The maximum size of an input.
const MAX_INPUT: u64 = 8 << 20;
/// The maximum number of stream items in one JSON document, and of their bytes.
const MAX_ITEMS: usize = 100_000;
const MAX_ITEM_BYTES: usize = 64 << 20;
/// Exit status if the call failed.
const FAILED: u8 = 1;

/// Calls a method and prints its result. Stream items are printed as they come, one in each line.
pub fn call(args: &CallArgs, config: Option<PathBuf>) -> Result<u8> {
    #[cfg(feature = "server")]
    if let Some(done) = crate::commands::server::plugins::call(args) {
        return done;
    }
    let input = input(&args.input)?;
    serve_on_many(async {
        let mut interrupts = Interrupts::listen().map_err(no_signals)?;
        let opened = host::open(&args.host, config).await?;
        let done = tokio::select! {
            done = call_once(&opened, args, input) => done,
            number = interrupts.next() => Ok(signal_status(number)),
        };
        opened.drain(None).await;
        if done.is_ok() {
            debug::report_profiles(&args.host, std::slice::from_ref(&args.plugin));
        }
        done
    })
}

async fn call_once(host: &Host, args: &CallArgs, input: Value) -> Result<u8> {
    host::load_others(host, &args.host).await?;
    let name = host::load(host, &args.plugin, &args.host).await?;
    let options = CallOptions { timeout: args.timeout, stream: true, ..CallOptions::default() };
    let mut call = host.call(&name, &args.method, input, options);
    let (mut items, mut size, mut truncated) = (Vec::new(), 0, false);
    while let Some(item) = call.next().await {
        match item {
            StreamItem::Item(value) if args.json => {
                size += value.to_string().len();
                if items.len() < MAX_ITEMS && size <= MAX_ITEM_BYTES {
                    items.push(value);
                } else {
                    truncated = true;
                }
            }
            StreamItem::Item(value) => {
                if printed(print(&format!("{value}\n")), 0) != 0 {
                    return Ok(FAILED);
                }
            }
            StreamItem::Progress(value) => report::remark(&one_line(&progress(&value)), Tone::Good),
        }
    }
    let id = call.id().to_owned();
    let result = call.result().await;
    let status = if result.is_ok() { 0 } else { FAILED };
    if args.json {
        let mut value = json!({"correlationId": id, "items": items, "truncated": truncated});
        match &result {
            Ok(output) => value["result"] = output.clone(),
            Err(error) => value["error"] = error.to_json(),
        }
        return Ok(printed(document(&value), status));
    }
    match result {
        Ok(output) => Ok(printed(document(&output), 0)),
        Err(error) => {
            report_failure(&error);
            Ok(FAILED)
        }
    }
}

/// Reports why a call failed, with the remedy, the plugin's stack and its last output.
pub fn report_failure(error: &CallError) {
    report::remark(&error.message, Tone::Bad);
    for (key, title) in [("stack", "stack"), ("lastOutput", "last output")] {
        let text = error.data.get(key).and_then(Value::as_str).unwrap_or_default();
        if !text.trim().is_empty() {
            eprintln!("{title}:");
            text.lines().for_each(|line| eprintln!("  {}", one_line(line)));
        }
    }
}

fn progress(value: &Value) -> String {
    let percent = value.get("percent").and_then(Value::as_f64).map(|percent| format!("{percent:.0} % "));
    let message = value.get("message").and_then(Value::as_str).unwrap_or_default();
    format!("{}{message}", percent.unwrap_or_default())
}

/// Reads the input of a call: JSON, or that of standard input for `-`.
pub fn input(text: &str) -> Result<Value> {
    let mut read = String::new();
    let text = if text == "-" {
        io::stdin()
            .take(MAX_INPUT)
            .read_to_string(&mut read)
            .map_err(|error| Error::new(ErrorKind::Io, "call plugin", "cannot read the input").with_source(error))?;
        read.as_str()
    } else {
        text
    };
    serde_json::from_str(text).map_err(|error| {
        Error::invalid("call plugin", format!("the input is not JSON: {error}"))
            .with_remedy(r#"write JSON, such as '{"city": "Oslo"}'"#)
    })
}

/// Sets a secret of a plugin to the text of standard input, or removes it.
pub fn secret(args: &SecretArgs) -> Result<u8> {
    let manifest = super::inspect::manifest(&args.plugin)?;
    if !manifest.secrets.contains(&args.name) {
        let message = format!("the manifest of {} has no secret '{}'", manifest.name, one_line(&args.name));
        return Err(Error::invalid("change secret", message).with_remedy("name one of its secrets"));
    }
    let value = match args.remove {
        true => None,
        false => {
            let mut value = String::new();
            io::stdin().take(MAX_INPUT).read_to_string(&mut value).map_err(|error| {
                Error::new(ErrorKind::Io, "change secret", "cannot read the value").with_source(error)
            })?;
            Some(value.trim_end_matches('\n').to_owned())
        }
    };
    serve_on_many(async {
        let host_args = HostArgs { state: args.state.clone(), key: args.key.clone(), ..HostArgs::default() };
        let opened = host::open(&host_args, None).await?;
        let changed = opened.set_secret(&manifest.name, &args.name, value.as_deref()).await;
        opened.drain(None).await;
        changed.map_err(|error| Error::invalid("change secret", error.message))?;
        Ok(0)
    })
}
