//! The state for all turns: the backend, an idle VM and a snapshot of it, and other contestants.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use cofferdam::registry::VmSettings;
use cofferdam::registry::vms::Images as Known;
use cofferdam_archive::{WriteOptions, Writer};
use cofferdam_contract::{Backend, ByteSize, Limits, Sandbox, Snapshot, Spec};
use cofferdam_image::{Cache, Images, Recipe, RootSource, Source};
use cofferdam_vm::qemu::QemuConfig;
use cofferdam_vm::{MakePolicy, SnapshotSizes, VmBackend, VmConfig, VmSnapshot, sparse};
use tempfile::TempDir;

use super::docker::Docker;
use super::figure::Figure;
use super::plain::{self, Plain};
use crate::options::VmOptions;
use crate::process_backend;

/// The program that runs.
const PROGRAM: &str = "true";
/// Memory limit of the guests in a VM of 128 MiB or a little more.
const GUESTS: ByteSize = ByteSize::from_mebibytes(32);
/// Number of VMs of a fork.
const FORKS: usize = 10;
/// Time for a VM to become idle.
const SETTLE: Duration = Duration::from_secs(3);

/// The environment of the figures, besides the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The VMM and its version.
    pub vmm: String,
    /// The accelerator of the VMs.
    pub accelerator: String,
    /// The processor of the VMs.
    pub processor: String,
    /// The kernel release in the VMs.
    pub kernel: String,
    /// The memory size of a VM, in MiB.
    pub mebibytes: u64,
    /// The container engine. Empty if none takes part.
    pub engine: String,
}

/// The size of a VM snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotSize {
    /// Sizes in memory and on disk.
    pub sizes: SnapshotSizes,
    /// Size of its archive, in bytes.
    pub archive: u64,
    /// Time to write the archive.
    pub packing: Duration,
}

/// The state for all turns.
pub struct Field {
    /// The environment of the figures.
    pub about: About,
    backend: VmBackend,
    spec: Spec,
    source: Arc<dyn Sandbox>,
    snapshot: Snapshot,
    plain: Result<Plain, String>,
    docker: Result<Docker, String>,
    _scratch: TempDir,
}

impl Field {
    /// Builds missing images, and boots the VM for snapshots.
    pub async fn prepare(options: &VmOptions) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir()?;
        let (images, packages) = caches(options)?;
        let config = VmConfig {
            images: images.clone(),
            packages: packages.clone(),
            source: Source { root: RootSource::Debian(Recipe::tiny()), ..Source::default() },
            make: MakePolicy::Missing,
            ..VmConfig::new(scratch.path())
        };
        println!("== the VM image");
        let (source, store) = (config.source.clone(), Images::new(images, Cache::new(&packages)));
        let find = move || store.find_or_make(&source, &mut |_| ());
        let image = tokio::task::spawn_blocking(find).await?.context("no VM image: see `cofferdam doctor`")?;
        println!("== measure");
        let like = config.qemu.clone();
        let backend = VmBackend::new(config)?;
        let spec = Spec::builder().limits(Limits { memory: Some(GUESTS), ..Limits::default() }).build()?;
        let source = backend.create(spec.clone()).await?;
        answered(&source).await?;
        tokio::time::sleep(SETTLE).await;
        let snapshot = source.snapshot().await?;
        let manifest = frozen(&snapshot)?.manifest();
        let origin = manifest.origin();
        let mut about = About {
            vmm: format!("{} {}", origin.vmm, origin.version),
            accelerator: origin.accelerator.as_str().to_owned(),
            processor: origin.processor.clone(),
            kernel: image.release.clone(),
            mebibytes: manifest.memory().as_bytes() >> 20,
            engine: String::new(),
        };
        let like = QemuConfig { accelerator: origin.accelerator, ..like };
        let directory = scratch.path().to_owned();
        let shell = tokio::task::spawn_blocking(move || plain::busybox(&packages, &directory)).await?;
        let shell = shell.map_err(|error| format!("no static shell: {error:#}"));
        let plain = shell.clone().and_then(|shell| {
            let created = Plain::prepare(&image.kernel, &shell, scratch.path(), &like, about.mebibytes);
            created.map_err(|error| format!("{error:#}"))
        });
        let docker = match shell {
            Ok(shell) => Docker::prepare(options.host.as_deref(), &shell, scratch.path()).await,
            Err(why) => Err(why),
        };
        about.engine = docker.as_ref().map(|docker| docker.version.clone()).unwrap_or_default();
        Ok(Self { about, backend, spec, source, snapshot, plain, docker, _scratch: scratch })
    }

    /// Runs one turn, without its setup and cleanup. Returns the time of the figure, and of related figures.
    pub async fn turn(&self, figure: Figure) -> Result<Vec<(Figure, Duration)>> {
        let plain = || self.plain.as_ref().map_err(|why| anyhow!("{why}"));
        let took = match figure {
            Figure::Plain => plain()?.boot(false).await?,
            Figure::PlainMicrovm => plain()?.boot(true).await?,
            Figure::Docker => {
                let docker = self.docker.as_ref().map_err(|why| anyhow!("{why}"))?;
                let begun = Instant::now();
                docker.run().await.map_err(anyhow::Error::msg)?;
                begun.elapsed()
            }
            Figure::Cold => {
                let (_, took, sandbox) = first_exec(self.backend.create(self.spec.clone())).await?;
                sandbox.close().await?;
                took
            }
            Figure::Restore | Figure::RestoreAlone | Figure::RestoreSecond => return self.restore_turn().await,
            Figure::Claim | Figure::ClaimAlone => {
                let warm = self.backend.prepare(self.spec.clone()).await?;
                let (created, took, sandbox) = first_exec(warm.claim(self.spec.clone())).await?;
                sandbox.close().await?;
                return Ok(vec![(Figure::Claim, took), (Figure::ClaimAlone, created)]);
            }
            Figure::Exec => {
                let begun = Instant::now();
                answered(&self.source).await?;
                begun.elapsed()
            }
            Figure::Snapshot | Figure::SnapshotBeside => return self.snapshot_turn().await,
            Figure::Fork | Figure::ForkAnswered => return self.fork_turn().await,
        };
        Ok(vec![(figure, took)])
    }

    async fn restore_turn(&self) -> Result<Vec<(Figure, Duration)>> {
        let restoring = self.backend.restore(self.snapshot.clone(), self.spec.clone());
        let (created, took, sandbox) = first_exec(restoring).await?;
        let begun = Instant::now();
        answered(&sandbox).await?;
        let second = begun.elapsed();
        sandbox.close().await?;
        Ok(vec![(Figure::Restore, took), (Figure::RestoreAlone, created), (Figure::RestoreSecond, second)])
    }

    async fn snapshot_turn(&self) -> Result<Vec<(Figure, Duration)>> {
        let begun = Instant::now();
        let taken = self.source.snapshot().await?;
        let whole = begun.elapsed();
        let memory = frozen(&taken)?.state().memory().try_clone()?;
        let copy = move || {
            let begun = Instant::now();
            sparse::copy_memory(&memory, u64::MAX).map(|copy| (begun.elapsed(), copy))
        };
        let (copied, _) = tokio::task::spawn_blocking(copy).await??;
        Ok(vec![(Figure::Snapshot, whole), (Figure::SnapshotBeside, whole.saturating_sub(copied))])
    }

    async fn fork_turn(&self) -> Result<Vec<(Figure, Duration)>> {
        let begun = Instant::now();
        let taken = self.source.snapshot().await?;
        let making: Vec<_> = (0..FORKS)
            .map(|_| {
                let (backend, taken, spec) = (self.backend.clone(), taken.clone(), self.spec.clone());
                tokio::spawn(async move {
                    let fork = backend.restore(taken, spec).await?;
                    let created = begun.elapsed();
                    answered(&fork).await.map(|()| (created, fork))
                })
            })
            .collect();
        let (mut forks, mut answered_by) = (Vec::new(), Duration::ZERO);
        for fork in making {
            let (created, fork) = fork.await??;
            answered_by = answered_by.max(created);
            forks.push(fork);
        }
        let took = begun.elapsed();
        for fork in forks {
            fork.close().await?;
        }
        Ok(vec![(Figure::Fork, took), (Figure::ForkAnswered, answered_by)])
    }

    /// Restores another clone of the snapshot, whose agent has answered.
    pub async fn clone_of_snapshot(&self) -> Result<Arc<dyn Sandbox>> {
        Ok(self.backend.restore(self.snapshot.clone(), self.spec.clone()).await?)
    }

    /// Measures the snapshot and its archive.
    pub fn snapshot_size(&self) -> Result<SnapshotSize> {
        let snapshot = frozen(&self.snapshot)?;
        let manifest = serde_json::to_vec(snapshot.manifest())?;
        let mut writer = Writer::new(WriteOptions::default())?;
        writer.json("manifest", &manifest)?.state("devices", snapshot.state().devices())?;
        writer.memory("memory", snapshot.state().memory())?;
        if let Some(disk) = snapshot.disk() {
            writer.disk("workspace", disk, None)?;
        }
        let begun = Instant::now();
        let written = writer.write(io::sink(), &mut |_| ControlFlow::Continue(()))?;
        Ok(SnapshotSize { sizes: snapshot.sizes()?, archive: written.bytes, packing: begun.elapsed() })
    }

    /// Closes everything.
    pub async fn end(self) -> Result<()> {
        Ok(self.source.close().await?)
    }
}

/// Returns the directories of images and packages.
fn caches(options: &VmOptions) -> Result<(PathBuf, PathBuf)> {
    if let Some(cache) = &options.cache {
        return Ok((cache.join("vm"), cache.join("debian")));
    }
    let images = Known::new(&VmSettings::default())?.list().directory;
    let packages = images.with_file_name("debian");
    Ok((images, packages))
}

fn frozen(snapshot: &Snapshot) -> Result<&VmSnapshot> {
    VmSnapshot::of(snapshot).context("this is not a VM snapshot")
}

/// Measures the time until the VM exists, and until it has answered.
async fn first_exec(
    making: impl Future<Output = cofferdam_contract::Result<Arc<dyn Sandbox>>>,
) -> Result<(Duration, Duration, Arc<dyn Sandbox>)> {
    let begun = Instant::now();
    let sandbox = making.await?;
    let created = begun.elapsed();
    answered(&sandbox).await?;
    Ok((created, begun.elapsed(), sandbox))
}

/// Runs a program in the sandbox.
pub async fn answered(sandbox: &Arc<dyn Sandbox>) -> Result<()> {
    let done = sandbox.exec(process_backend::request(&[PROGRAM])?).await?;
    ensure!(done.exit.success(), "{PROGRAM} failed in a VM: {:?}", done.exit);
    Ok(())
}
