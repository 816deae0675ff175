//! Copies of files into the sandbox of a run before its command, and out of it afterwards.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam::{
    Backend, BackendLayer, ByteSize, Capability, CopyOut, Error, ErrorKind, Result, Sandbox, SandboxPath, Snapshot,
    Spec,
};
use cofferdam_changes::sandbox::{CopiedOut, HostTree, copy_out};
use cofferdam_changes::text;
use cofferdam_linux::named::{Directory, UntrustedLink};
use parking_lot::Mutex;
use rustix::fs::Mode;
use serde_json::{Value, json};

use super::review;
use crate::args::{CopyArgs, CopyOutArg};
use crate::progress::Progress;
use crate::report;
use crate::style::Tone;

/// The maximum number of skipped files that are printed for one copy.
const MAX_PRINTED: usize = 10;
/// The maximum number of paths of one copy in the JSON form.
const MAX_LISTED: usize = 1000;
/// The time before a copy shows its progress.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// The copies of a run. Sources and destinations are opened before the sandbox is created.
#[derive(Debug)]
pub struct Copies {
    incoming: Mutex<Vec<Incoming>>,
    outgoing: Vec<Outgoing>,
    max_bytes: Option<ByteSize>,
    quiet: bool,
    /// The copies into the sandbox in the JSON form.
    done: Mutex<Vec<Value>>,
}

#[derive(Debug)]
struct Incoming {
    tree: HostTree,
    source: PathBuf,
    to: SandboxPath,
}

#[derive(Debug)]
struct Outgoing {
    arg: CopyOutArg,
    destination: Destination,
}

/// The destination of a copy on the host.
#[derive(Debug)]
enum Destination {
    Existing(Directory),
    /// A directory that is missing: the one above it, and its name.
    Missing(Directory, OsString),
}

impl Copies {
    /// Opens the sources and destinations.
    pub fn open(args: &CopyArgs, quiet: bool) -> Result<Self> {
        let incoming = args.copy_in.iter().map(|arg| {
            let tree = HostTree::named(&arg.source)?;
            Ok(Incoming { tree, source: arg.source.clone(), to: arg.to.clone() })
        });
        let outgoing =
            args.copy_out.iter().map(|arg| Ok(Outgoing { arg: arg.clone(), destination: destination(&arg.to)? }));
        Ok(Self {
            incoming: Mutex::new(incoming.collect::<Result<_>>()?),
            outgoing: outgoing.collect::<Result<_>>()?,
            max_bytes: args.max_copy,
            quiet,
            done: Mutex::default(),
        })
    }

    /// Returns a backend that copies the files into each sandbox that it creates. A run creates one.
    pub fn around(self: &Arc<Self>, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(CopyingBackend { inner, copies: Arc::clone(self) })
    }

    async fn copy_in(&self, sandbox: &dyn Sandbox) -> Result<()> {
        let incoming = std::mem::take(&mut *self.incoming.lock());
        for Incoming { tree, source, to } in incoming {
            let shown = text::path(&source);
            let display = Display::new(format!("copying {shown} into the sandbox"), self.quiet);
            let copied = tree.copy_in(sandbox, &to, move |bytes| display.show(bytes)).await;
            let (sent, report) = copied.map_err(|error| error.with_context("copy-in", shown.clone()))?;
            let skipped: Vec<String> =
                sent.skipped.into_iter().chain(report.skipped.iter().map(ToString::to_string)).collect();
            let count = sent.skipped_count + report.skipped_count;
            self.warn(&format!("{shown}: {count} files were skipped or changed by --copy-in"), &skipped);
            self.done.lock().push(json!({
                "source": source.to_string_lossy(), "to": to.inside(), "files": report.entries,
                "bytes": report.bytes, "skipped": skipped, "skipped_count": count,
            }));
        }
        Ok(())
    }

    /// Copies the files out of the sandbox, whatever the result of the command. Returns false unless every file was
    /// copied.
    pub async fn copy_out(&self, sandbox: &dyn Sandbox) -> (bool, Value) {
        let (mut complete, mut done) = (true, Vec::new());
        for Outgoing { arg, destination } in &self.outgoing {
            let mut document = json!({"path": arg.path, "to": arg.to.to_string_lossy()});
            match self.one_out(sandbox, arg, destination, &mut document).await {
                Ok(is_whole) => complete &= is_whole,
                Err(error) => {
                    complete = false;
                    report::remark(&format!("cannot copy {} out: {error}", one(&arg.path)), Tone::Bad);
                    document["error"] = error.to_json();
                }
            }
            done.push(document);
        }
        (complete, json!({"in": *self.done.lock(), "out": done}))
    }

    async fn one_out(
        &self,
        sandbox: &dyn Sandbox,
        arg: &CopyOutArg,
        destination: &Destination,
        document: &mut Value,
    ) -> Result<bool> {
        let max_bytes = self.max_bytes.unwrap_or(arg.wanted.max_bytes);
        let wanted = CopyOut { max_bytes, ..arg.wanted.clone() };
        let display = Display::new(format!("copying {} out of the sandbox", one(&arg.path)), self.quiet);
        let directory = destination.open(&arg.to)?;
        let on_bytes = |bytes| display.show(bytes);
        let CopiedOut { report, applied } = copy_out(sandbox, &wanted, &directory, &on_bytes).await?;
        drop(display);
        let skipped: Vec<String> = report.skipped.iter().map(ToString::to_string).collect();
        let is_whole = review::applied_whole(&applied) && report.unmatched.is_empty();
        *document = json!({
            "path": arg.path, "to": arg.to.to_string_lossy(), "files": report.entries, "bytes": report.bytes,
            "skipped": skipped, "skipped_count": report.skipped_count,
            "copied_count": applied.applied.len(),
        });
        let mut result = review::applied_document(&applied);
        if let Some(listed) = result["applied"].as_array_mut() {
            listed.truncate(MAX_LISTED);
        }
        document["copied"] = result["applied"].take();
        for member in ["conflicts", "refused", "error"] {
            document[member] = result[member].take();
        }
        for pattern in &report.unmatched {
            report::remark(&format!("--copy-out: the workspace has no file {}", one(pattern)), Tone::Bad);
        }
        let count = report.skipped_count;
        self.warn(&format!("{}: {count} files were skipped or changed by --copy-out", one(&arg.path)), &skipped);
        if !review::applied_whole(&applied) {
            review::print_not_applied(&applied);
        }
        Ok(is_whole)
    }

    fn warn(&self, what: &str, skipped: &[String]) {
        if skipped.is_empty() || self.quiet {
            return;
        }
        let more = if skipped.len() > MAX_PRINTED { "; …" } else { "" };
        let listed: Vec<&str> = skipped.iter().take(MAX_PRINTED).map(String::as_str).collect();
        report::remark(&format!("{what}: {}{more}", listed.join("; ")), Tone::Warning);
    }
}

/// Returns a text on one line, without control characters.
fn one(text: &str) -> String {
    text.escape_debug().to_string()
}

fn destination(path: &Path) -> Result<Destination> {
    match Directory::open(path) {
        Ok(found) => Ok(Destination::Existing(found)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or_else(|| unusable(path, &error))?;
            let above = match path.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                _ => Path::new("."),
            };
            let above = Directory::open(above).map_err(|error| unusable(path, &error))?;
            Ok(Destination::Missing(above, name.to_owned()))
        }
        Err(error) => Err(unusable(path, &error)),
    }
}

fn unusable(path: &Path, error: &std::io::Error) -> Error {
    let shown = text::path(path);
    if let Some(link) = UntrustedLink::of(error) {
        return Error::new(ErrorKind::PathEscape, "run", format!("cannot copy to '{shown}': {link}"))
            .with_remedy(UntrustedLink::REMEDY);
    }
    let message = format!("cannot copy to '{shown}': {error}");
    Error::invalid("run", message).with_remedy("name a directory that exists, or a new one in a directory that exists")
}

impl Destination {
    /// Opens the directory, and creates it if it is missing.
    fn open(&self, path: &Path) -> Result<Directory> {
        let opened = match self {
            Self::Existing(directory) => directory.try_clone(),
            Self::Missing(above, name) => {
                match rustix::fs::mkdirat(above.as_fd(), name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(unusable(path, &error.into())),
                }
                Directory::open(&above.path().join(name))
            }
        };
        opened.map_err(|error| unusable(path, &error))
    }
}

/// The progress of one copy, on a terminal.
struct Display {
    progress: Option<Progress>,
    what: String,
    begun: Instant,
}

impl Display {
    fn new(what: String, quiet: bool) -> Self {
        Self { progress: (!quiet).then(Progress::new), what, begun: Instant::now() }
    }

    fn show(&self, bytes: u64) {
        if let Some(progress) = self.progress.as_ref().filter(|_| self.begun.elapsed() > QUIET_TIME) {
            progress.transferred(&self.what, ByteSize::from_bytes(bytes));
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.finish();
        }
    }
}

/// A backend that copies files into its sandboxes before their first command.
#[derive(Debug)]
struct CopyingBackend {
    inner: Arc<dyn Backend>,
    copies: Arc<Copies>,
}

impl CopyingBackend {
    /// Copies the files into a new sandbox.
    async fn fill(&self, sandbox: Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        match self.copies.copy_in(&*sandbox).await {
            Ok(()) => Ok(sandbox),
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
    }
}

#[async_trait]
impl BackendLayer for CopyingBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        if !self.inner.capabilities().contains(&Capability::Files) {
            return Err(Error::unsupported("create", "this backend gives no access to the files of a sandbox")
                .with_remedy("leave out --copy-in and --copy-out, or use another backend"));
        }
        self.fill(self.inner.create(spec).await?).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.fill(self.inner.restore(snapshot, spec).await?).await
    }
}
