//! `cofferdam volume`: named volumes that survive sandboxes.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam::configuration::Bound;
use cofferdam::volumes::{self, VolumeMount, failed};
use cofferdam::{Backend, ByteSize, Capability, Error, Result};
use cofferdam_linux::named;
use cofferdam_volume::{Access, Bounds, Exported, Holder, Imported, Name, Store, Volume, VolumeError};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::args::{
    CreateVolumeArgs, ExportVolumeArgs, ImportVolumeArgs, InspectVolumeArgs, ListVolumesArgs, RemoveVolumesArgs,
    VolumeArgs, VolumeCommand,
};
use crate::out_file::{Existing, OutFile};
use crate::report::{self, Form, READER_GONE};
use crate::state;
use crate::style::Tone;
use crate::terminal::{ago, one_line};

/// Size of a volume unless the user sets one.
const DEFAULT_SIZE: ByteSize = ByteSize::from_mebibytes(1024);
/// Name of standard input and output.
const STREAM: &str = "-";

/// Runs the command.
pub fn main(args: &VolumeArgs) -> u8 {
    #[cfg(feature = "server")]
    if let Some(status) = super::server::volumes::main(&args.command) {
        return status;
    }
    let (done, is_json) = match &args.command {
        VolumeCommand::Create(args) => (create(args), args.json),
        VolumeCommand::Ls(args) => (list(args), args.json),
        VolumeCommand::Inspect(args) => (inspect(args), args.json),
        VolumeCommand::Rm(args) => (remove(args), false),
        VolumeCommand::Export(args) => (export(args), args.json),
        VolumeCommand::Import(args) => (import(args), args.json),
    };
    report::finish(done, Form::of(is_json))
}

/// Opens this user's store of volumes.
pub fn store() -> Result<Store> {
    // A supervisor that was killed may have left a volume mounted for its engine.
    #[cfg(feature = "container")]
    cofferdam::volumes::release_abandoned();
    Store::open(&state::directory("volumes")).map_err(failed)
}

/// Returns a backend whose sandboxes each have these volumes of this user. Their names and the backend are checked now.
pub fn around(backend: Arc<dyn Backend>, mounts: Vec<VolumeMount>, purpose: &'static str) -> Result<Arc<dyn Backend>> {
    if mounts.is_empty() {
        return Ok(backend);
    }
    let (store, capabilities) = (store()?, backend.capabilities());
    if ![Capability::Mounts, Capability::DiskMounts].iter().any(|it| capabilities.contains(it)) {
        let message = format!("the backend '{}' mounts no volumes", backend.name());
        return Err(Error::unsupported("volume", message).with_remedy("use level process, container or vm"));
    }
    for mount in &mounts {
        store.inspect(&mount.name).map_err(failed)?;
    }
    Ok(volumes::around(backend, store, mounts, purpose))
}

fn size(size: Option<Bound<ByteSize>>) -> Option<u64> {
    match size {
        None => Some(DEFAULT_SIZE.as_bytes()),
        Some(Bound::Of(size)) => Some(size.as_bytes()),
        Some(Bound::None) => None,
    }
}

fn bounds(max_size: Option<ByteSize>) -> Bounds {
    let bounds = Bounds::default();
    Bounds { max_bytes: max_size.map_or(bounds.max_bytes, ByteSize::as_bytes), ..bounds }
}

fn create(args: &CreateVolumeArgs) -> Result<u8> {
    let store = store()?;
    let size = size(args.size);
    store.create(&args.name, size).map_err(failed)?;
    created(&store, &args.name, size, args.json, None)
}

/// Reports a new volume.
fn created(store: &Store, name: &Name, size: Option<u64>, is_json: bool, imported: Option<Imported>) -> Result<u8> {
    if is_json {
        let mut document = document(&store.inspect(name).map_err(failed)?);
        if let Some(Imported { files, bytes }) = imported {
            document["imported"] = json!({"files": files, "bytes": bytes});
        }
        return Ok(report::printed(report::document(&document), 0));
    }
    let limit = size.map_or("without a size limit".to_owned(), |size| format!("of {}", ByteSize::from_bytes(size)));
    let contents = imported.map_or(String::new(), |Imported { files, bytes }| {
        format!(" with {files} files ({})", ByteSize::from_bytes(bytes))
    });
    report::remark(&format!("created the volume {name} {limit}{contents}"), Tone::Good);
    Ok(0)
}

fn list(args: &ListVolumesArgs) -> Result<u8> {
    let volumes = store()?.list().map_err(failed)?;
    if args.json {
        let rows = volumes.iter().map(|(name, volume)| match volume {
            Ok(volume) => document(volume),
            Err(error) => json!({"name": name.as_str(), "error": error.to_string()}),
        });
        return Ok(report::printed(report::document(&json!({"volumes": rows.collect::<Vec<_>>()})), 0));
    }
    let lines: String = volumes.iter().map(|(name, volume)| line(name, volume)).collect();
    Ok(report::printed(report::print(&lines), 0))
}

fn line(name: &Name, volume: &std::result::Result<Volume, VolumeError>) -> String {
    let volume = match volume {
        Ok(volume) => volume,
        Err(error) => return format!("{name:<24} {}\n", one_line(&error.to_string())),
    };
    let used = volume.used.map_or("?".to_owned(), |used| ByteSize::from_bytes(used).to_string());
    let size = volume.size.map_or("no limit".to_owned(), |size| ByteSize::from_bytes(size).to_string());
    let used_last = volume.last_use.map_or("?".to_owned(), |time| ago(time.elapsed().unwrap_or_default()));
    let users = match volume.holders.len() {
        0 => String::new(),
        _ => format!("  {}", shown_holders(volume)),
    };
    format!("{name:<24} {used:>10} of {size:<10} {used_last:>10}{users}\n")
}

fn shown_holders(volume: &Volume) -> String {
    let holders: Vec<String> = volume.holders.iter().map(ToString::to_string).collect();
    one_line(&format!("in use by {}", holders.join(", ")))
}

fn inspect(args: &InspectVolumeArgs) -> Result<u8> {
    let volume = store()?.inspect(&args.name).map_err(failed)?;
    if args.json {
        return Ok(report::printed(report::document(&document(&volume)), 0));
    }
    let bytes =
        |bytes: Option<u64>, none: &str| bytes.map_or(none.to_owned(), |bytes| ByteSize::from_bytes(bytes).to_string());
    let mut text = format!("name:      {}\n", volume.name);
    text.push_str(&format!("size:      {}\n", bytes(volume.size, "no limit")));
    text.push_str(&format!("used:      {}\n", bytes(volume.used, "unknown")));
    text.push_str(&format!("created:   {}\n", ago(volume.created.elapsed().unwrap_or_default())));
    let last = volume.last_use.map_or("unknown".to_owned(), |time| ago(time.elapsed().unwrap_or_default()));
    text.push_str(&format!("last use:  {last}\n"));
    let trust = if volume.was_disk { "a guest could write it directly" } else { "written by the host's kernel only" };
    if volume.size.is_some() {
        text.push_str(&format!("metadata:  {trust}\n"));
    }
    for holder in &volume.holders {
        text.push_str(&format!("in use by: {}\n", one_line(&holder.to_string())));
    }
    Ok(report::printed(report::print(&text), 0))
}

fn document(volume: &Volume) -> Value {
    let Volume { name, size, used, created, last_use, was_disk, holders } = volume;
    let seconds = |time: &SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let holders = holders.iter().map(|holder: &Holder| {
        json!({
            "pid": holder.pid,
            "access": if holder.access == Access::ReadWrite { "read-write" } else { "read-only" },
            "purpose": holder.purpose,
        })
    });
    json!({
        "name": name.as_str(), "size": size, "used": used, "created": seconds(created),
        "last_use": last_use.as_ref().map(seconds), "was_disk": was_disk,
        "in_use_by": holders.collect::<Vec<_>>(),
    })
}

fn remove(args: &RemoveVolumesArgs) -> Result<u8> {
    let store = store()?;
    for name in &args.names {
        store.remove(name).map_err(failed)?;
        report::remark(&format!("deleted the volume {name}"), Tone::Good);
    }
    Ok(0)
}

fn export(args: &ExportVolumeArgs) -> Result<u8> {
    let store = store()?;
    let bounds = bounds(args.max_size);
    if args.file == Path::new(STREAM) {
        return export_to_stdout(args, &store, &bounds);
    }
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    // A volume that does not exist leaves the file alone.
    store.inspect(&args.name).map_err(failed)?;
    let out = OutFile::begin(&args.file, existing)?;
    let progress = Progress::new("exporting");
    let exported = store.export(&args.name, out.file()?, &bounds, &mut |bytes| progress.show(bytes)).map_err(failed)?;
    out.finish()?;
    progress.end();
    let Exported { files, bytes, skipped } = exported;
    if args.json {
        let document = json!({
            "name": args.name.as_str(), "file": args.file.display().to_string(),
            "files": files, "bytes": bytes, "skipped": skipped,
        });
        return Ok(report::printed(report::document(&document), 0));
    }
    report_export(&exported, &args.file.display().to_string());
    Ok(0)
}

fn export_to_stdout(args: &ExportVolumeArgs, store: &Store, bounds: &Bounds) -> Result<u8> {
    if args.json || args.force {
        return Err(Error::invalid("volume", "--json and --force need a file").with_remedy("name a FILE"));
    }
    let stdout = io::stdout().lock();
    if stdout.is_terminal() {
        return Err(Error::invalid("volume", "standard output is a terminal")
            .with_remedy("name a FILE, or redirect the output"));
    }
    let progress = Progress::new("exporting");
    let exported = store.export(&args.name, stdout, bounds, &mut |bytes| progress.show(bytes));
    progress.end();
    match exported {
        Err(VolumeError::Stream { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Ok(READER_GONE),
        Err(error) => Err(failed(error)),
        Ok(exported) => {
            report_skipped(&exported);
            Ok(0)
        }
    }
}

fn report_export(exported: &Exported, file: &str) {
    report_skipped(exported);
    let (count, size) = (exported.files, ByteSize::from_bytes(exported.bytes));
    report::remark(&format!("exported {count} files ({size}) to {file}"), Tone::Good);
}

fn report_skipped(exported: &Exported) {
    if exported.skipped > 0 {
        report::remark(&format!("left out {} sockets, fifos and devices", exported.skipped), Tone::Warning);
    }
}

fn import(args: &ImportVolumeArgs) -> Result<u8> {
    let store = store()?;
    let (size, bounds) = (size(args.size), bounds(args.max_size));
    let progress = Progress::new("importing");
    let mut show = |bytes| progress.show(bytes);
    let imported = if args.file == Path::new(STREAM) {
        store.import(&args.name, size, io::stdin().lock(), &bounds, &mut show)
    } else {
        let file = named::read(&args.file).map_err(|error| {
            Error::invalid("volume", format!("cannot open '{}'", args.file.display())).with_source(error)
        })?;
        store.import(&args.name, size, io::BufReader::with_capacity(128 << 10, file), &bounds, &mut show)
    };
    progress.end();
    created(&store, &args.name, size, args.json, Some(imported.map_err(failed)?))
}

/// The number of bytes so far, on a terminal.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(what: &'static str) -> Self {
        let bar = io::stderr().is_terminal().then(ProgressBar::no_length);
        if let Some(bar) = &bar {
            let style = ProgressStyle::with_template("{spinner} {msg} {bytes}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(what);
        }
        Self(bar)
    }

    fn show(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(bytes);
        }
    }

    /// Removes the display.
    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
            // A failed flush of a terminal cannot be reported.
            let _ = io::stderr().flush();
        }
    }
}
