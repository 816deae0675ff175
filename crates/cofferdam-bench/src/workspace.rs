//! Cost of a copy-on-write workspace: creation over a large directory, capture of few changes, and large files; and of
//! unpacking a layer of an image.

mod layers;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cofferdam_contract::{Access, Backend, Limits, RootFs, Sandbox, Spec, Workspace};
use cofferdam_process::ProcessBackend;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::host::facts::{self, Facts};
use crate::options::WorkspaceOptions;
use crate::ours;
use crate::results::{self, File};
use crate::sample::{Sample, hundredths};
use crate::target::{Bound, Row, json_of, render};
use crate::vm::docker::Docker;

/// Files in one directory of the large tree.
const FILES_PER_DIRECTORY: usize = 1000;
/// Changes of a guest before a capture.
const CHANGES: &str = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > new$i; done";
const READ: &str = "dd if=large of=/dev/null bs=1M status=none";

/// Measures, prints and writes the results.
pub fn run(options: &WorkspaceOptions, out: &Path) -> Result<()> {
    let facts = facts::collect();
    let (rounds, megabytes) = if options.quick { (20, 256) } else { (200, 1024) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(options, rounds, megabytes))?;
    let file = File::json(&format!("workspace-{}", facts.unix_time), &report.json(&facts));
    results::publish(out, &[file], &report.table(&facts))
}

/// The times of each contestant.
#[derive(Debug, Default)]
struct Report {
    rows: Vec<(&'static str, Vec<Duration>)>,
}

async fn measure(options: &WorkspaceOptions, rounds: usize, megabytes: usize) -> Result<Report> {
    let files = usize::try_from(options.files)?;
    let directory = tempfile::Builder::new().prefix("cofferdam-workspace-").tempdir()?;
    let place = directory.path().canonicalize()?;
    let large = tree(&place, files).context("cannot create the large directory")?;
    let small = tree(&place.join("small"), 1)?;
    let bulk = place.join("bulk");
    fs::create_dir(&bulk)?;
    let data = format!("head -c {megabytes}M /dev/urandom > large");
    bare(&bulk, &data)?;
    let packed = place.join("layer");
    fs::create_dir(&packed)?;
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    let layer = layers::Layer::new(&packed, busybox)?;
    let write = format!("dd if=/dev/zero of=written bs=1M count={megabytes} conv=fsync status=none");
    let (images, image) = layer.stored()?;
    let backend = ours::backend_with(images).await?;
    let with_image = Spec::builder().root(RootFs::Image { reference: image.to_owned() }).build()?;
    let mut report = Report::default();
    match (busybox, options.docker || options.host.is_some()) {
        (Some(busybox), true) => {
            let docker = Docker::prepare(options.host.as_deref(), busybox, &packed).await;
            let docker = docker.map_err(anyhow::Error::msg).context("docker run")?;
            for _ in 0..rounds.div_ceil(5) {
                let start = Instant::now();
                docker.run().await.map_err(anyhow::Error::msg)?;
                report.add("docker run of an image", start.elapsed());
                report.add("run of an image", ran(&backend, with_image.clone()).await?);
            }
        }
        (None, true) => bail!("docker run needs a static program: apt-get install busybox-static"),
        (_, false) => {}
    }
    for _ in 0..rounds {
        for (name, spec) in [
            ("create, empty workspace", spec(Workspace::default())?),
            ("create, one file", spec(Workspace::CopyOnWrite { path: small.clone() })?),
            ("create, large directory", spec(Workspace::CopyOnWrite { path: large.clone() })?),
            ("create, image", with_image.clone()),
        ] {
            let start = Instant::now();
            let sandbox = backend.create(spec).await?;
            report.add(name, start.elapsed());
            sandbox.close().await?;
        }
    }
    for _ in 0..rounds.div_ceil(10) {
        report.add("unpack, tar -x", layer.by_tar()?);
        report.add("unpack, image store", layer.by_store()?);
        for (name, path) in [("10 changes, one file", &small), ("10 changes, large directory", &large)] {
            let sandbox = backend.create(spec(Workspace::CopyOnWrite { path: path.clone() })?).await?;
            report.add(name, captured(&sandbox).await?);
            sandbox.close().await?;
        }
        for (name, workspace, script) in [
            ("read, sandbox", Workspace::CopyOnWrite { path: bulk.clone() }, READ),
            ("write, sandbox", Workspace::HostDir { path: bulk.clone(), access: Access::ReadWrite }, &*write),
        ] {
            let bare_name = if script == READ { "read, bare" } else { "write, bare" };
            report.add(bare_name, bare(&bulk, script)?);
            report.add(name, inside(&backend, workspace, script).await?);
        }
    }
    Ok(report)
}

/// Creates a directory with this number of files.
fn tree(place: &Path, files: usize) -> Result<PathBuf> {
    let top = place.join("tree");
    for number in 0..files {
        let directory = top.join((number / FILES_PER_DIRECTORY).to_string());
        if number.is_multiple_of(FILES_PER_DIRECTORY) {
            fs::create_dir_all(&directory)?;
        }
        fs::write(directory.join(number.to_string()), "a file\n")?;
    }
    Ok(top)
}

fn spec(workspace: Workspace) -> Result<Spec> {
    let limits = match workspace {
        // Its size cannot be limited.
        Workspace::HostDir { .. } => Limits { disk: None, ..Limits::default() },
        _ => Limits::default(),
    };
    Ok(Spec::builder().limits(limits).workspace(workspace).build()?)
}

/// Measures the capture of ten changes.
async fn captured(sandbox: &Arc<dyn Sandbox>) -> Result<Duration> {
    ours::check(&sandbox.exec(ours::request(&["sh", "-c", CHANGES])?).await?, "")?;
    let start = Instant::now();
    let mut layer = Vec::new();
    sandbox.changes().await?.layer.read_to_end(&mut layer).await?;
    ensure!(layer.len() > 10 << 10, "the changes are missing");
    Ok(start.elapsed())
}

/// Measures a sandbox that runs one program.
async fn ran(backend: &ProcessBackend, spec: Spec) -> Result<Duration> {
    let start = Instant::now();
    let sandbox = backend.create(spec).await?;
    let completed = sandbox.exec(ours::request(&["/bin/true"])?).await?;
    sandbox.close().await?;
    ours::check(&completed, "")?;
    Ok(start.elapsed())
}

async fn inside(backend: &ProcessBackend, workspace: Workspace, script: &str) -> Result<Duration> {
    let sandbox = backend.create(spec(workspace)?).await?;
    let start = Instant::now();
    let completed = sandbox.exec(ours::request(&["sh", "-c", script])?).await?;
    let time = start.elapsed();
    ours::check(&completed, "")?;
    sandbox.close().await?;
    Ok(time)
}

fn bare(directory: &Path, script: &str) -> Result<Duration> {
    let start = Instant::now();
    let status = Command::new("sh").args(["-c", script]).current_dir(directory).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "'{script}' failed: {status}");
    Ok(start.elapsed())
}

impl Report {
    fn add(&mut self, name: &'static str, time: Duration) {
        match self.rows.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => times.push(time),
            None => self.rows.push((name, vec![time])),
        }
    }

    fn median(&self, name: &str) -> Option<f64> {
        let times = &self.rows.iter().find(|(known, _)| *known == name)?.1;
        Some(Sample::new(times.clone()).median())
    }

    fn targets(&self) -> Vec<Row> {
        let ratio = |one: &str, other: &str| Some(self.median(one)? / self.median(other)?);
        let row = |what: &str, bound, one, other| Row { what: what.to_owned(), bound, measured: ratio(one, other) };
        vec![
            row(
                "create over a large directory / empty workspace",
                Bound::AtMost(1.3),
                "create, large directory",
                "create, empty workspace",
            ),
            row(
                "capture of 10 changes, large directory / one file",
                Bound::AtMost(1.3),
                "10 changes, large directory",
                "10 changes, one file",
            ),
            row("create with an image / without", Bound::AtMost(1.5), "create, image", "create, empty workspace"),
            row("run of an image / docker run", Bound::AtMost(0.05), "run of an image", "docker run of an image"),
            row("read of a large file, bare / sandbox", Bound::AtLeast(0.9), "read, bare", "read, sandbox"),
            row("write of a large file, bare / sandbox", Bound::AtLeast(0.9), "write, bare", "write, sandbox"),
            row(
                "unpack of a layer, tar -x / image store",
                Bound::AtLeast(0.5),
                "unpack, tar -x",
                "unpack, image store",
            ),
        ]
    }

    fn table(&self, facts: &Facts) -> String {
        let mut text = format!("{}\n\n{:32} {:>6} {:>12} {:>12}\n", facts.line(), "", "n", "median us", "p99 us");
        for (name, times) in &self.rows {
            let sample = Sample::new(times.clone());
            let _ = writeln!(text, "{name:32} {:6} {:12.0} {:12.0}", sample.len(), sample.median(), sample.p99());
        }
        text.push('\n');
        text.push_str(&render(&self.targets()));
        text
    }

    fn json(&self, facts: &Facts) -> Value {
        let rows = self.rows.iter().map(|(name, times)| {
            let median = hundredths(Sample::new(times.clone()).median());
            json!({"name": name, "median_us": median, "times": Sample::new(times.clone()).json()})
        });
        json!({"host": facts.json(), "rows": rows.collect::<Vec<_>>(), "targets": json_of(&self.targets())})
    }
}
