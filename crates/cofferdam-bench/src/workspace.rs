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
use cofferdam_contract::{Access, Backend, ByteSize, Limits, RootFs, Spec, Workspace};
use cofferdam_process::ProcessBackend;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use crate::host::facts::{self, Facts};
use crate::options::WorkspaceOptions;
use crate::process_backend;
use crate::results::{self, File};
use crate::rounds::Orders;
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
#[derive(Debug)]
struct Report {
    rows: Vec<(&'static str, Vec<Duration>)>,
}

/// A contestant: what is measured once in a round.
#[derive(Debug, Clone, Copy)]
enum Turn {
    DockerRun,
    ImageRun,
    CreatePrivate,
    CreateSmall,
    CreateLarge,
    CreateImage,
    UnpackByTar,
    UnpackByStore,
    CaptureSmall,
    CaptureLarge,
    ReadBare,
    ReadInside,
    WriteBare,
    WriteInside,
    WriteMemory,
    WriteLayer,
}

/// Runs of an image, which need Docker.
const RUNS: [Turn; 2] = [Turn::DockerRun, Turn::ImageRun];
const CREATES: [Turn; 4] = [Turn::CreatePrivate, Turn::CreateSmall, Turn::CreateLarge, Turn::CreateImage];
/// Contestants that use the disk, and take part in fewer rounds.
const DISK: [Turn; 10] = [
    Turn::UnpackByTar,
    Turn::UnpackByStore,
    Turn::CaptureSmall,
    Turn::CaptureLarge,
    Turn::ReadBare,
    Turn::ReadInside,
    Turn::WriteBare,
    Turn::WriteInside,
    Turn::WriteMemory,
    Turn::WriteLayer,
];

impl Turn {
    fn name(self) -> &'static str {
        match self {
            Self::DockerRun => "docker run of an image",
            Self::ImageRun => "run of an image",
            Self::CreatePrivate => "create, empty workspace",
            Self::CreateSmall => "create, one file",
            Self::CreateLarge => "create, large directory",
            Self::CreateImage => "create, image",
            Self::UnpackByTar => "unpack, tar -x",
            Self::UnpackByStore => "unpack, image store",
            Self::CaptureSmall => "10 changes, one file",
            Self::CaptureLarge => "10 changes, large directory",
            Self::ReadBare => "read, bare",
            Self::ReadInside => "read, sandbox",
            Self::WriteBare => "write, bare",
            Self::WriteInside => "write, sandbox, DIR:rw",
            Self::WriteMemory => "write, bare, tmpfs",
            Self::WriteLayer => "write, sandbox, layer",
        }
    }
}

/// The files and programs of the contestants.
struct Field {
    backend: Arc<ProcessBackend>,
    docker: Option<Docker>,
    image: Spec,
    layer: layers::Layer,
    /// A directory with one file, and one with many.
    small: PathBuf,
    large: PathBuf,
    /// Directories with a large file, one for each contestant.
    outside: PathBuf,
    inside: PathBuf,
    /// A directory in memory, as the layer of a copy-on-write workspace is.
    memory: TempDir,
    /// The script that writes a large file.
    write: String,
}

impl Field {
    async fn time(&self, turn: Turn) -> Result<Duration> {
        let copied = |path: &PathBuf| spec(Workspace::CopyOnWrite { path: path.clone() });
        match turn {
            Turn::DockerRun => {
                let docker = self.docker.as_ref().context("Docker is not prepared")?;
                let start = Instant::now();
                docker.run().await.map_err(anyhow::Error::msg)?;
                Ok(start.elapsed())
            }
            Turn::ImageRun => ran(&self.backend, self.image.clone()).await,
            Turn::CreatePrivate => created(&self.backend, spec(Workspace::default())?).await,
            Turn::CreateSmall => created(&self.backend, copied(&self.small)?).await,
            Turn::CreateLarge => created(&self.backend, copied(&self.large)?).await,
            Turn::CreateImage => created(&self.backend, self.image.clone()).await,
            Turn::UnpackByTar => self.layer.by_tar(),
            Turn::UnpackByStore => self.layer.by_store(),
            Turn::CaptureSmall => captured(&self.backend, copied(&self.small)?).await,
            Turn::CaptureLarge => captured(&self.backend, copied(&self.large)?).await,
            Turn::ReadBare => bare(&self.outside, READ),
            Turn::ReadInside => inside(&self.backend, copied(&self.inside)?, READ).await,
            Turn::WriteBare => bare(&self.outside, &self.write),
            Turn::WriteInside => {
                let workspace = Workspace::HostDir { path: self.inside.clone(), access: Access::ReadWrite };
                inside(&self.backend, spec(workspace)?, &self.write).await
            }
            Turn::WriteMemory => {
                let time = bare(self.memory.path(), &self.write)?;
                // The layer is new as well.
                fs::remove_file(self.memory.path().join("written"))?;
                Ok(time)
            }
            Turn::WriteLayer => {
                let size = Some(ByteSize::from_mebibytes(2048));
                let limits = Limits { disk: size, memory: size, ..Limits::default() };
                let spec = copied(&self.small)?.to_builder().limits(limits).build()?;
                inside(&self.backend, spec, &self.write).await
            }
        }
    }

    /// Runs each contestant once in a round, in a changing order, and keeps the times.
    async fn measure(&self, turns: &[Turn], rounds: usize, report: &mut Report) -> Result<()> {
        report.rows.extend(turns.iter().map(|turn| (turn.name(), Vec::new())));
        let mut orders = Orders::new(turns.len());
        for _ in 0..rounds {
            for index in orders.next() {
                let time = self.time(turns[index]).await?;
                report.add(turns[index].name(), time);
            }
        }
        Ok(())
    }
}

async fn measure(options: &WorkspaceOptions, rounds: usize, megabytes: usize) -> Result<Report> {
    let files = usize::try_from(options.files)?;
    let directory = tempfile::Builder::new().prefix("cofferdam-workspace-").tempdir()?;
    let root = directory.path().canonicalize()?;
    let large = tree(&root, files).context("cannot create the large directory")?;
    let small = tree(&root.join("small"), 1)?;
    let data = format!("head -c {megabytes}M /dev/urandom > large");
    let with_large_file = |name: &str| -> Result<PathBuf> {
        let path = root.join(name);
        fs::create_dir(&path)?;
        bare(&path, &data)?;
        Ok(path)
    };
    let (outside, inside) = (with_large_file("outside")?, with_large_file("inside")?);
    let packed = root.join("layer");
    fs::create_dir(&packed)?;
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    let layer = layers::Layer::new(&packed, busybox)?;
    let write = format!("dd if=/dev/zero of=written bs=1M count={megabytes} conv=fsync status=none");
    let (images, image) = layer.stored()?;
    let backend = process_backend::backend_with(images).await?;
    let image = Spec::builder().root(RootFs::Image { reference: image.to_owned() }).build()?;
    let docker = match (busybox, options.docker || options.host.is_some()) {
        (Some(busybox), true) => {
            let docker = Docker::prepare(options.host.as_deref(), busybox, &packed).await;
            Some(docker.map_err(anyhow::Error::msg).context("docker run")?)
        }
        (None, true) => bail!("docker run needs a static program: apt-get install busybox-static"),
        (_, false) => None,
    };
    let memory = tempfile::tempdir_in("/dev/shm")?;
    let field = Field { backend, docker, image, layer, small, large, outside, inside, memory, write };
    let mut report = Report { rows: Vec::new() };
    if field.docker.is_some() {
        field.measure(&RUNS, rounds.div_ceil(5), &mut report).await?;
    }
    field.measure(&CREATES, rounds, &mut report).await?;
    field.measure(&DISK, rounds.div_ceil(10), &mut report).await?;
    Ok(report)
}

/// Creates a directory with this number of files.
fn tree(root: &Path, files: usize) -> Result<PathBuf> {
    let top = root.join("tree");
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

/// Measures the creation of a sandbox.
async fn created(backend: &ProcessBackend, spec: Spec) -> Result<Duration> {
    let start = Instant::now();
    let sandbox = backend.create(spec).await?;
    let time = start.elapsed();
    sandbox.close().await?;
    Ok(time)
}

/// Measures the capture of ten changes.
async fn captured(backend: &ProcessBackend, spec: Spec) -> Result<Duration> {
    let sandbox = backend.create(spec).await?;
    process_backend::check(&sandbox.exec(process_backend::request(&["sh", "-c", CHANGES])?).await?, "")?;
    let start = Instant::now();
    let mut layer = Vec::new();
    sandbox.changes().await?.layer.read_to_end(&mut layer).await?;
    let time = start.elapsed();
    ensure!(layer.len() > 10 << 10, "the changes are missing");
    sandbox.close().await?;
    Ok(time)
}

/// Measures a sandbox that runs one program.
async fn ran(backend: &ProcessBackend, spec: Spec) -> Result<Duration> {
    let start = Instant::now();
    let sandbox = backend.create(spec).await?;
    let completed = sandbox.exec(process_backend::request(&["/bin/true"])?).await?;
    sandbox.close().await?;
    process_backend::check(&completed, "")?;
    Ok(start.elapsed())
}

/// Measures a script in a sandbox, without its creation.
async fn inside(backend: &ProcessBackend, spec: Spec, script: &str) -> Result<Duration> {
    let sandbox = backend.create(spec).await?;
    let start = Instant::now();
    let completed = sandbox.exec(process_backend::request(&["sh", "-c", script])?).await?;
    let time = start.elapsed();
    process_backend::check(&completed, "")?;
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
            row("write of a large file, bare / `DIR:rw`", Bound::AtLeast(0.9), "write, bare", "write, sandbox, DIR:rw"),
            row(
                "write of a large file, bare on tmpfs / layer",
                Bound::AtLeast(0.9),
                "write, bare, tmpfs",
                "write, sandbox, layer",
            ),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contestant_has_a_row_and_every_target_is_measured() {
        let turns = [&RUNS[..], &CREATES, &DISK].concat();
        let mut report = Report { rows: Vec::new() };
        for turn in &turns {
            report.add(turn.name(), Duration::from_millis(1));
        }
        assert_eq!(report.rows.len(), turns.len());
        assert!(report.targets().iter().all(|row| row.measured.is_some()));
    }
}
