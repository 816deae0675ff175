//! `cofferdam watch`.

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_server::client::{Content, Method, Transfer};
use cofferdam_server::rest::views::FileEvent;
use serde_json::json;

use super::client::encoded;
use super::connect;
use crate::args::WatchArgs;
use crate::commands::block_on;
use crate::commands::run::no_signals;
use crate::interrupts::Interrupts;
use crate::report::{self, Form};
use crate::terminal::{one_line, safe_json};

/// The most bytes of one event.
const MAX_EVENT: usize = 64 << 10;

/// Prints the changes of a directory of a sandbox as they occur, until it or the sandbox ends, or a signal.
pub fn main(args: &WatchArgs) -> u8 {
    let form = if args.json { Form::Events } else { Form::Text };
    let done = block_on(async { watch(args, form).await });
    report::finish(done, form)
}

async fn watch(args: &WatchArgs, form: Form) -> Result<u8> {
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let client = connect(&args.client)?;
    let sandbox = encoded(&args.sandbox);
    let path = format!("/v1/sandboxes/{sandbox}/files/watch?path={}", encoded(&args.path));
    let mut from = Transfer::of(client.send(Method::GET, &path, Content::None).await?);
    let mut waiting = Vec::new();
    loop {
        let data = tokio::select! {
            data = from.next() => data?,
            _ = interrupts.next() => return Ok(0),
        };
        let Some(data) = data else { return Ok(0) };
        waiting.extend_from_slice(&data);
        while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = waiting.drain(..=end).collect();
            let event = line.strip_prefix(b"data: ").and_then(|text| serde_json::from_slice::<FileEvent>(text).ok());
            let printed = event.map_or(Ok(()), |event| report::print(&shown(&event, form)));
            if printed.is_err() {
                return Ok(report::printed(printed, 0));
            }
        }
        if waiting.len() > MAX_EVENT {
            return Err(Error::new(ErrorKind::Unavailable, "watch", "the server sent an event that is too long"));
        }
    }
}

fn shown(event: &FileEvent, form: Form) -> String {
    let text = match (form, event) {
        (Form::Events, event) => return format!("{}\n", safe_json(json!(event).to_string())),
        (_, FileEvent::Created { path }) => format!("created {path}"),
        (_, FileEvent::Changed { path }) => format!("changed {path}"),
        (_, FileEvent::Removed { path }) => format!("removed {path}"),
        (_, FileEvent::Renamed { from, to }) => format!("renamed {from} to {to}"),
        (_, FileEvent::Overflow) => "overflow: changes were lost".to_owned(),
    };
    format!("{}\n", one_line(&text))
}
