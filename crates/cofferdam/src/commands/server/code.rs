//! `cofferdam code` and `cofferdam kernel`.

use std::io::{Read, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam::{Chunk, Error, ErrorKind, OutputStream, Result};
use cofferdam_linux::named;
use cofferdam_server::client::{Client, Content, Method};
use cofferdam_server::rest::views::{KernelList, KernelView, OpenKernel, RunCode};
use serde_json::{Value, json};

use super::client::{encoded, print_id};
use super::connect;
use crate::args::{CodeArgs, KernelArgs, KernelCommand};
use crate::commands::block_on;
use crate::commands::repl::Output;
use crate::out_file::{Existing, OutFile};
use crate::report::{self, Form};
use crate::style::Tone;
use crate::terminal::one_line;

/// The most bytes of code.
const MAX_CODE: u64 = 1 << 20;
/// The exit status after the time limit.
const TIMED_OUT: u8 = 124;
/// The exit status after another limit.
const KILLED: u8 = 137;
/// The highest number of a saved figure.
const MAX_FIGURES: usize = 10_000;
/// Kinds of figures by media type, and the endings of their files. The first that a figure has is saved.
const FIGURES: [(&str, &str); 2] = [("image/png", "png"), ("image/svg+xml", "svg")];

/// Runs code and prints its output and results.
pub fn main(args: &CodeArgs) -> u8 {
    let form = Form::of(args.json);
    match run(args) {
        Err(error) => report::error(&error, form),
        Ok((outcome, status)) if form == Form::Json => report::printed(report::document(&outcome), status),
        Ok((outcome, status)) => {
            print(&outcome, args.figures.is_some());
            status
        }
    }
}

/// Returns the outcome and the exit status.
fn run(args: &CodeArgs) -> Result<(Value, u8)> {
    let language = args.lang.clone().or_else(|| args.kernel.is_none().then(|| "python".to_owned()));
    let body = RunCode { code: code(args)?, language, timeout: args.timeout };
    let client = connect(&args.client)?;
    let sandbox = format!("/v1/sandboxes/{}", encoded(&args.sandbox));
    let path = match &args.kernel {
        Some(kernel) => format!("{sandbox}/kernels/{}/code", encoded(kernel)),
        None => format!("{sandbox}/code"),
    };
    let mut outcome: Value = block_on(async { client.call(Method::POST, &path, Some(&body)).await })?;
    let mut status = status(&outcome);
    if let Some(directory) = &args.figures {
        // The code has run, so its output is printed in any case.
        outcome["saved"] = match save(&outcome, directory) {
            Ok(saved) => json!(saved),
            Err(error) => {
                report::remark(&format!("the figures are not saved: {error}"), Tone::Bad);
                status = report::FAILED;
                json!([])
            }
        };
    }
    Ok((outcome, status))
}

fn status(outcome: &Value) -> u8 {
    let code = outcome["exit_code"].as_i64().unwrap_or(1);
    match outcome["signal"].as_i64() {
        _ if outcome["timed_out"] == true => TIMED_OUT,
        _ if outcome["killed_by"].is_string() => KILLED,
        Some(number) => u8::try_from(128 + number).unwrap_or(u8::MAX),
        None => u8::try_from(code & 255).unwrap_or(1),
    }
}

/// Returns the code of the arguments, of a file or of standard input.
fn code(args: &CodeArgs) -> Result<String> {
    let failed = |error: std::io::Error| Error::new(ErrorKind::Io, "code", "cannot read the code").with_source(error);
    let mut code = String::new();
    let read = match (&args.code, &args.file) {
        (Some(code), _) => return Ok(code.clone()),
        (None, Some(file)) => named::read(file).and_then(|file| file.take(MAX_CODE + 1).read_to_string(&mut code)),
        (None, None) => std::io::stdin().take(MAX_CODE + 1).read_to_string(&mut code),
    };
    read.map_err(failed)?;
    if code.len() as u64 > MAX_CODE {
        return Err(Error::invalid("code", "the code is larger than 1 MiB")
            .with_remedy("copy it into the sandbox with 'cofferdam cp', and run it with 'cofferdam exec'"));
    }
    Ok(code)
}

/// Saves the figures, and returns the names of their files.
fn save(outcome: &Value, directory: &Path) -> Result<Vec<String>> {
    let broken = || Error::new(ErrorKind::Unavailable, "code", "the server sent a malformed figure");
    let (mut saved, mut number) = (Vec::new(), 0);
    for data in outcome["results"].as_array().into_iter().flatten().map(|result| &result["data"]) {
        let Some((media, ending, text)) =
            FIGURES.iter().find_map(|(media, ending)| Some((*media, ending, data[*media].as_str()?)))
        else {
            continue;
        };
        let bytes = match media {
            "image/png" => STANDARD.decode(text).map_err(|_| broken())?,
            _ => text.as_bytes().to_vec(),
        };
        // Figures of earlier calls stay.
        let path = loop {
            number += 1;
            let path = directory.join(format!("figure-{number}.{ending}"));
            match write(&path, &bytes) {
                Ok(()) => break path,
                Err(error) if error.kind() == ErrorKind::Conflict && number < MAX_FIGURES => {}
                Err(error) => return Err(error),
            }
        };
        saved.push(path.to_string_lossy().into_owned());
    }
    Ok(saved)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let out = OutFile::begin(path, Existing::Keep)?;
    let failed = |error| Error::new(ErrorKind::Io, "code", "cannot write the figure").with_source(error);
    out.file()?.write_all(bytes).map_err(failed)?;
    out.finish()
}

fn print(outcome: &Value, are_saved: bool) {
    let output = Output::default();
    for (name, stream) in [("stdout", OutputStream::Stdout), ("stderr", OutputStream::Stderr)] {
        let text = outcome[name]["text"].as_str().map(|text| text.as_bytes().to_vec());
        let bytes = text.or_else(|| STANDARD.decode(outcome[name]["base64"].as_str()?).ok());
        output.show(&Chunk { stream, data: bytes.unwrap_or_default().into() });
    }
    let mut figures = 0;
    for data in outcome["results"].as_array().into_iter().flatten().map(|result| &result["data"]) {
        if let Some(text) = data["text/plain"].as_str() {
            output.show(&Chunk { stream: OutputStream::Stdout, data: format!("{text}\n").into_bytes().into() });
        }
        figures += usize::from(FIGURES.iter().any(|(media, _)| data[*media].is_string()));
    }
    output.finish();
    for saved in outcome["saved"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        report::remark(&format!("saved {}", one_line(saved)), Tone::Good);
    }
    if figures > 0 && !are_saved {
        report::remark(&format!("{figures} figures were not saved; --figures DIR saves them"), Tone::Warning);
    }
    for denial in outcome["network_denials"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        report::remark(&format!("network: {}", one_line(denial)), Tone::Warning);
    }
    if outcome["truncated"] == true {
        report::remark("some output was dropped", Tone::Warning);
    }
    if outcome["timed_out"] == true {
        report::remark("killed: time limit reached (raise it with --timeout)", Tone::Warning);
    }
    if let Some(why) = outcome["session"]["lost"].as_str() {
        report::remark(&one_line(why), Tone::Warning);
    }
}

/// Runs a command for kernels.
pub fn kernel(args: &KernelArgs) -> u8 {
    match &args.command {
        KernelCommand::Start { sandbox, lang, json, client } => {
            let body = OpenKernel { language: lang.clone() };
            let path = format!("/v1/sandboxes/{}/kernels", encoded(sandbox));
            let created = connect(client)
                .and_then(|client| block_on(async { client.call(Method::POST, &path, Some(&body)).await }));
            print_id(created, Form::of(*json))
        }
        KernelCommand::Ls { sandbox, json, client } => {
            let path = format!("/v1/sandboxes/{}/kernels", encoded(sandbox));
            let list = connect(client).and_then(|client| {
                block_on(async { client.call::<KernelList>(Method::GET, &path, None::<&()>).await })
            });
            match list {
                Err(error) => report::error(&error, Form::of(*json)),
                Ok(list) if *json => report::printed(report::document(&json!(list)), 0),
                Ok(list) => report::printed(report::print(&table(&list.kernels)), 0),
            }
        }
        KernelCommand::Interrupt { sandbox, kernel, client } => {
            let path = format!("/v1/sandboxes/{}/kernels/{}/interrupt", encoded(sandbox), encoded(kernel));
            done(connect(client).and_then(|client| send(&client, Method::POST, &path)))
        }
        KernelCommand::Rm { sandbox, kernel, client } => {
            let path = format!("/v1/sandboxes/{}/kernels/{}", encoded(sandbox), encoded(kernel));
            done(connect(client).and_then(|client| send(&client, Method::DELETE, &path)))
        }
    }
}

fn send(client: &Client, method: Method, path: &str) -> Result<()> {
    block_on(async { client.send(method, path, Content::None).await.map(drop) })
}

fn done(done: Result<()>) -> u8 {
    done.map_or_else(|error| report::error(&error, Form::Text), |()| 0)
}

fn table(kernels: &[KernelView]) -> String {
    let mut table = format!("{:<44}  {}\n", "ID", "LANGUAGE");
    for KernelView { id, language } in kernels {
        table.push_str(&format!("{}\n", one_line(&format!("{id:<44}  {language}"))));
    }
    table
}
