//! The choice of VMM and accelerator: made for the first VM, and cached for this boot of the host.
//!
//! ```text
//! tcg configured ----------------------------------------------------------------------> qemu, tcg
//! auto, kvm --tiny guest (kvm::Probe)--> usable --a whole kernel boots in time-------> kvm
//!                     |                    '--firecracker if installed, else qemu
//!                     '--> not usable --> auto: qemu, tcg; kvm or firecracker configured: refused
//! ```
//!
//! A tiny guest that runs proves little. So the first VM's own kernel is booted once before a client gets a VM.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam_contract::{Access, ByteSize, Limits, Spec};
use cofferdam_guest::{Guest, Settings};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::config::VmConfig;
use crate::error::{Result, VmError, io};
use crate::firecracker::{self, FirecrackerVmm};
use crate::kvm::record::{KernelTrial, Records};
use crate::kvm::{Probe, Verdict};
use crate::plan::{PORT, Plan};
use crate::qemu::{Qemu, QemuConfig};
use crate::vmm::{
    Acceleration, Accelerator, Contents, Disk, Driver, Hardware, Origin, Started, VmDescription, VmState, Vmm,
};

/// Time for a kernel to boot with hardware virtualisation: it takes a second, more on a busy host.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);
const TRIAL_MEMORY: ByteSize = ByteSize::from_mebibytes(128);

/// The VMM and accelerator that run VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    Qemu(Accelerator),
    Firecracker,
}

/// The chosen runner, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chosen {
    runner: Runner,
    why: String,
}

/// The VMM and the accelerator that suit this host.
#[derive(Debug)]
pub(crate) struct Chooser {
    driver: Driver,
    acceleration: Acceleration,
    tcg: Qemu,
    kvm: Qemu,
    firecracker: FirecrackerVmm,
    probe: Probe,
    config: VmConfig,
    /// Time for a kernel to boot.
    trial_timeout: Duration,
    chosen: OnceCell<Chosen>,
    /// Kernels that booted with the chosen runner.
    good: Mutex<BTreeSet<PathBuf>>,
}

impl Chooser {
    /// Creates it. Probes nothing before the first VM.
    pub(crate) fn new(config: &VmConfig) -> Result<Self> {
        let qemu = |accelerator| Qemu::new(QemuConfig { accelerator, ..config.qemu.clone() });
        Ok(Self {
            driver: config.driver,
            acceleration: config.acceleration,
            tcg: qemu(Accelerator::Tcg)?,
            kvm: qemu(Accelerator::Kvm)?,
            firecracker: FirecrackerVmm::new(config.firecracker.clone()),
            probe: probe(config),
            config: config.clone(),
            trial_timeout: TRIAL_TIMEOUT,
            chosen: OnceCell::new(),
            good: Mutex::default(),
        })
    }

    fn vmm_of(&self, runner: Runner) -> &dyn Vmm {
        match runner {
            Runner::Qemu(Accelerator::Kvm) => &self.kvm,
            Runner::Qemu(Accelerator::Tcg) => &self.tcg,
            Runner::Firecracker => &self.firecracker,
        }
    }

    /// Returns the chosen VMM; before the choice, the configured one, or QEMU.
    fn vmm(&self) -> &dyn Vmm {
        match (self.chosen.get(), self.driver) {
            (Some(chosen), _) => self.vmm_of(chosen.runner),
            (None, Driver::Firecracker) => &self.firecracker,
            (None, Driver::Auto | Driver::Qemu) => &self.tcg,
        }
    }

    /// Refuses a configuration that is impossible on this host. Starts no VM.
    pub(crate) async fn check(&self) -> Result<()> {
        if self.chosen.get().is_some() {
            return Ok(());
        }
        self.requested().await?;
        if self.driver == Driver::Firecracker || self.acceleration == Acceleration::Kvm {
            let verdict = self.verdict().await;
            if !verdict.is_usable() {
                self.without(verdict.to_string(), verdict.remedy())?;
            }
        }
        Ok(())
    }

    async fn choose(&self, description: &VmDescription) -> Result<&Chosen> {
        let chosen = self.chosen.get_or_try_init(|| self.find(description)).await?;
        // The choice may stem from another kernel, or from a restored VM. So it is verified for this kernel.
        if chosen.runner != Runner::Qemu(Accelerator::Tcg) && !self.is_good(description) {
            let trial = self.trial(chosen.runner, description).await?;
            if let Err(why) = trial.outcome {
                return Err(VmError::KvmUnavailable {
                    why: format!("this kernel does not boot with it: {why}"),
                    remedy: BROKEN,
                });
            }
        }
        Ok(chosen)
    }

    fn is_good(&self, description: &VmDescription) -> bool {
        self.good.lock().contains(&description.kernel)
    }

    async fn find(&self, description: &VmDescription) -> Result<Chosen> {
        match self.requested().await? {
            Some(chosen) => Ok(chosen),
            None => self.decide(&self.verdict().await, description).await,
        }
    }

    /// Returns the choice if the configuration determines it, or an error if the host cannot satisfy it.
    async fn requested(&self) -> Result<Option<Chosen>> {
        match (self.driver, self.acceleration) {
            (Driver::Firecracker, Acceleration::Tcg) => Err(VmError::Unsupported {
                vmm: firecracker::PROGRAM,
                what: "translates nothing, and tcg is configured".to_owned(),
                remedy: "use the driver qemu, or the accelerator auto or kvm",
            }),
            (Driver::Firecracker, _) => self.firecracker.version().await.map(|_| None),
            (Driver::Auto | Driver::Qemu, Acceleration::Tcg) => {
                Ok(Some(Chosen { runner: Runner::Qemu(Accelerator::Tcg), why: "configured".to_owned() }))
            }
            (Driver::Auto | Driver::Qemu, _) => Ok(None),
        }
    }

    async fn decide(&self, verdict: &Verdict, description: &VmDescription) -> Result<Chosen> {
        if !verdict.is_usable() {
            return self.without(verdict.to_string(), verdict.remedy());
        }
        let mut before = String::new();
        // A VM that Firecracker cannot run may still run with QEMU.
        let able = self.driver == Driver::Firecracker || self.firecracker.settle(description).await.is_ok();
        if self.driver != Driver::Qemu && able {
            match self.try_runner(Runner::Firecracker, verdict, description).await? {
                Ok(chosen) => return Ok(chosen),
                Err(why) if self.driver == Driver::Firecracker => return self.without(why, BROKEN),
                Err(why) if self.firecracker_is_there() => before = format!("; Firecracker is not used: {why}"),
                Err(_) => {}
            }
        }
        match self.try_runner(Runner::Qemu(Accelerator::Kvm), verdict, description).await? {
            Ok(Chosen { runner, why }) => Ok(Chosen { runner, why: format!("{why}{before}") }),
            Err(why) => self.without(format!("{why}{before}"), BROKEN),
        }
    }

    fn firecracker_is_there(&self) -> bool {
        self.config.firecracker.program.is_some()
    }

    /// Tries a runner on a processor that runs a tiny guest. Returns the choice if it boots this kernel, otherwise the
    /// reason.
    async fn try_runner(
        &self,
        runner: Runner,
        verdict: &Verdict,
        description: &VmDescription,
    ) -> Result<Result<Chosen, String>> {
        // Firecracker is one of two: if it is missing or too old, the other is used, and that is no error.
        if runner == Runner::Firecracker
            && let Err(error) = self.firecracker.version().await
        {
            return Ok(Err(error.to_string()));
        }
        let trial = self.trial(runner, description).await?;
        Ok(match trial.outcome {
            Ok(milliseconds) => {
                Ok(Chosen { runner, why: format!("{verdict}, and a kernel booted in {milliseconds} ms") })
            }
            Err(why) => Err(format!("{verdict}, but a kernel does not boot: {why}")),
        })
    }

    /// Returns the choice where there is no kernel to try: the previous one of this backend or boot, else by the tiny
    /// guest alone. A state that was saved with KVM resumes only on such a processor, and is a trial by itself.
    async fn settled(&self) -> Result<&Chosen> {
        let find = || async {
            if let Some(chosen) = self.requested().await? {
                return Ok(chosen);
            }
            let verdict = self.verdict().await;
            if !verdict.is_usable() {
                return self.without(verdict.to_string(), verdict.remedy());
            }
            let good = match self.driver {
                Driver::Qemu => false,
                Driver::Firecracker => true,
                // As for the last VM that booted here.
                Driver::Auto => {
                    self.firecracker.version().await.is_ok()
                        && self
                            .records()
                            .and_then(|records| records.kernel_trial(firecracker::PROGRAM))
                            .is_some_and(|trial| trial.outcome.is_ok())
                }
            };
            let runner = if good { Runner::Firecracker } else { Runner::Qemu(Accelerator::Kvm) };
            Ok(Chosen { runner, why: format!("{verdict}, no kernel was booted yet") })
        };
        self.chosen.get_or_try_init(find).await
    }

    async fn verdict(&self) -> Verdict {
        let probe = self.probe.clone();
        let verdict = tokio::task::spawn_blocking(move || probe.verdict()).await;
        verdict.unwrap_or_else(|_| Verdict::Unfit { why: "the probe was interrupted".to_owned() })
    }

    /// Returns TCG, or an error if the configuration excludes it.
    fn without(&self, why: String, remedy: &'static str) -> Result<Chosen> {
        match (self.driver, self.acceleration) {
            (Driver::Firecracker, _) => {
                Err(VmError::KvmUnavailable { why: format!("Firecracker needs it: {why}"), remedy })
            }
            (_, Acceleration::Kvm) => Err(VmError::KvmUnavailable { why, remedy }),
            (_, Acceleration::Auto | Acceleration::Tcg) => Ok(Chosen { runner: Runner::Qemu(Accelerator::Tcg), why }),
        }
    }

    fn records(&self) -> Option<Records> {
        self.probe.cache.as_deref().and_then(|cache| Records::new(cache, &self.probe.device))
    }

    /// Returns the result of booting this kernel: from the record of this boot of the host, or by a new trial.
    async fn trial(&self, runner: Runner, description: &VmDescription) -> Result<KernelTrial> {
        let vmm = self.vmm_of(runner);
        let version = format!("{} {}", vmm.name(), vmm.version().await?);
        // The path of an image is derived from its content.
        let image = description.kernel.display().to_string();
        let records = self.records();
        let known = records.as_ref().and_then(|records| records.kernel_trial(vmm.name()));
        if let Some(known) = known.filter(|known| known.vmm == version && known.image == image) {
            if known.outcome.is_ok() {
                self.good.lock().insert(description.kernel.clone());
            }
            return Ok(known);
        }
        let begun = Instant::now();
        let booted = boots(vmm, trial_description(vmm, description, &self.config)?, begun + self.trial_timeout).await;
        let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let conclusive = !matches!(booted, Err(TrialError::NotStarted(_)));
        let outcome =
            booted.map(|()| milliseconds).map_err(|(TrialError::NotStarted(why) | TrialError::Silent(why))| why);
        let trial = KernelTrial { vmm: version, image, outcome };
        if trial.outcome.is_ok() {
            self.good.lock().insert(description.kernel.clone());
        }
        if let Some(records) = records.filter(|_| conclusive) {
            // Without a record, the kernel is tried again, which costs only time.
            let _ = records.write_kernel_trial(vmm.name(), trial.clone());
        }
        Ok(trial)
    }
}

const BROKEN: &str = "use `auto` or `tcg` with the driver qemu, or check the host's kernel log; \
                      `cofferdam doctor --backend vm` shows the findings";

/// Returns the probe of `/dev/kvm`.
pub(crate) fn probe(config: &VmConfig) -> Probe {
    Probe { cache: config.probes.clone(), ..Probe::default() }
}

/// Returns a VM with the same kernel and root, without any data of its tenant.
fn trial_description(vmm: &dyn Vmm, like: &VmDescription, config: &VmConfig) -> Result<VmDescription> {
    let bad = |error: cofferdam_contract::Error| VmError::Invalid { what: error.to_string() };
    let limits = Limits { memory: Some(TRIAL_MEMORY), disk: None, cpus: None, ..Limits::default() };
    let plan = Plan::of(&Spec::builder().limits(limits).build().map_err(bad)?, config).map_err(bad)?;
    let root = like.disks.iter().find(|disk| disk.access == Access::ReadOnly);
    let Some(root) = root else {
        return Err(VmError::Invalid { what: "the VM has no root disk".to_owned() });
    };
    let Disk { name, contents, .. } = root;
    let contents = match contents {
        Contents::Shared(path) => Contents::Shared(path.clone()),
        Contents::Own(file) => Contents::Own(file.try_clone().map_err(io("copy a descriptor of", name))?),
    };
    Ok(VmDescription {
        kernel: like.kernel.clone(),
        initramfs: like.initramfs.clone(),
        command_line: plan.options(&vmm.port_name(PORT), &vmm.disk_name(root, 0), None, &[]).map_err(bad)?,
        memory: plan.memory,
        processors: 1,
        disks: vec![Disk { name, contents, access: Access::ReadOnly }],
        port: PORT,
    })
}

/// The reason why a kernel did not boot.
enum TrialError {
    /// The VMM did not start, possibly for a transient reason: a full disk, too many descriptors.
    NotStarted(String),
    /// The VM started, and its agent never connected.
    Silent(String),
}

/// Starts a VM, waits until its agent has connected and answers, and kills it.
async fn boots(vmm: &dyn Vmm, description: VmDescription, by: Instant) -> Result<(), TrialError> {
    let starting = tokio::time::timeout_at(by.into(), vmm.start(description)).await;
    let started = starting.map_err(|_| TrialError::NotStarted("the VMM did not start in time".to_owned()))?;
    let Started { vm, reader, writer } = started.map_err(|error| TrialError::NotStarted(error.to_string()))?;
    let connected = Guest::connect(reader, writer, Settings::default(), by).await;
    let ended = vm.is_ended();
    let killed = vm.kill().await;
    match (connected, ended) {
        (Ok(_), _) => killed.map_err(|error| TrialError::NotStarted(error.to_string())),
        (Err(_), Some(ended)) => Err(TrialError::Silent(ended.why)),
        (Err(error), None) => Err(TrialError::Silent(error.message().to_owned())),
    }
}

#[async_trait]
impl Vmm for Chooser {
    fn name(&self) -> &'static str {
        self.vmm().name()
    }

    fn runs_with(&self) -> String {
        match self.chosen.get() {
            Some(chosen) => format!("{}: {}", self.vmm_of(chosen.runner).runs_with(), chosen.why),
            None => "the accelerator is not chosen yet".to_owned(),
        }
    }

    fn kernel_arguments(&self) -> String {
        self.vmm().kernel_arguments()
    }

    fn disk_name(&self, disk: &Disk, index: usize) -> String {
        self.vmm().disk_name(disk, index)
    }

    fn port_name(&self, port: &str) -> String {
        self.vmm().port_name(port)
    }

    async fn settle(&self, description: &VmDescription) -> Result<()> {
        let chosen = self.choose(description).await?;
        self.vmm_of(chosen.runner).settle(description).await
    }

    async fn version(&self) -> Result<String> {
        self.vmm().version().await
    }

    async fn start(&self, description: VmDescription) -> Result<Started> {
        let chosen = self.choose(&description).await?;
        self.vmm_of(chosen.runner).start(description).await
    }

    async fn origin(&self) -> Result<Origin> {
        let chosen = self.settled().await?;
        self.vmm_of(chosen.runner).origin().await
    }

    async fn restore(&self, hardware: Hardware, state: &VmState) -> Result<Started> {
        let chosen = self.settled().await?;
        self.vmm_of(chosen.runner).restore(hardware, state).await
    }
}

/// Knowledge about the accelerator without starting a VM, for [`crate::doctor`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub verdict: Verdict,
    pub trial: Option<KernelTrial>,
    /// The last trial with Firecracker.
    pub firecracker: Option<KernelTrial>,
}

/// Inspects the host without starting a kernel. Blocks its thread as [`Probe::verdict`] does.
pub(crate) fn known(probes: Option<PathBuf>) -> Known {
    let probe = Probe { cache: probes, ..Probe::default() };
    let records = probe.cache.as_deref().and_then(|cache| Records::new(cache, &probe.device));
    let trial = |name: &str| records.as_ref().and_then(|records| records.kernel_trial(name));
    Known { verdict: probe.verdict(), trial: trial("qemu"), firecracker: trial(firecracker::PROGRAM) }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::ErrorKind;
    use cofferdam_image::{Cache, Images, Recipe, RootSource, Source};

    use super::*;

    fn chooser(acceleration: Acceleration, device: &str) -> Chooser {
        let config = VmConfig { acceleration, probes: None, ..VmConfig::new("/x") };
        let mut chooser = Chooser::new(&config).unwrap();
        chooser.probe.device = device.into();
        chooser
    }

    fn description() -> VmDescription {
        let contents = Contents::Shared("/r".into());
        VmDescription {
            kernel: "/k".into(),
            initramfs: "/i".into(),
            command_line: String::new(),
            memory: TRIAL_MEMORY,
            processors: 1,
            disks: vec![Disk { name: "cofferdam-root", contents, access: Access::ReadOnly }],
            port: PORT,
        }
    }

    /// Promise (Virtual machines): A VM uses KVM only if it works. A spec that requires KVM is refused with the reason
    /// otherwise.
    #[tokio::test]
    async fn missing_kvm_falls_back_or_is_refused() {
        let auto = chooser(Acceleration::Auto, "/nowhere/kvm");
        assert_eq!(auto.choose(&description()).await.unwrap().runner, Runner::Qemu(Accelerator::Tcg));
        let summary = auto.runs_with();
        assert!(summary.contains("tcg") && summary.contains("there is no KVM"), "{summary}");
        let error = chooser(Acceleration::Kvm, "/nowhere/kvm").choose(&description()).await.unwrap_err();
        let error = error.into_error("create");
        assert!(error.message().contains("there is no KVM") && error.remedy().is_some(), "{error:?}");
        let driver = chooser(Acceleration::Tcg, "/nowhere/kvm");
        driver.choose(&description()).await.unwrap();
        assert!(driver.runs_with().ends_with("configured"), "{}", driver.runs_with());
    }

    fn with_driver(driver: Driver, acceleration: Acceleration, program: Option<&str>) -> Chooser {
        let mut chooser = chooser(acceleration, "/nowhere/kvm");
        chooser.driver = driver;
        chooser.config.firecracker.program = program.map(PathBuf::from);
        chooser.firecracker = FirecrackerVmm::new(chooser.config.firecracker.clone());
        chooser
    }

    /// Promise (Virtual machines): A required Firecracker is used or refused with a remedy.
    #[tokio::test]
    async fn requested_firecracker_is_used_or_refused() {
        let usable = Verdict::Usable { took: Duration::from_millis(1) };
        for (acceleration, program, kind, says) in [
            (Acceleration::Auto, None, ErrorKind::Unavailable, "firecracker is not installed"),
            (Acceleration::Kvm, Some("/nowhere/firecracker"), ErrorKind::Unavailable, "firecracker is not installed"),
            (Acceleration::Auto, Some("/bin/true"), ErrorKind::Unavailable, "no version"),
            (Acceleration::Tcg, None, ErrorKind::Unsupported, "translates nothing"),
        ] {
            let driver = with_driver(Driver::Firecracker, acceleration, program);
            assert_eq!(driver.name(), "firecracker");
            let errors = [driver.choose(&description()).await.unwrap_err(), driver.origin().await.unwrap_err()];
            for error in errors.into_iter().chain([driver.check().await.unwrap_err()]) {
                let error = error.into_error("create");
                assert_eq!(error.kind(), kind, "{error}");
                assert!(error.to_string().contains(says) && error.remedy().is_some(), "{error}");
            }
        }
        let driver = with_driver(Driver::Firecracker, Acceleration::Auto, None);
        let error = driver.decide(&Verdict::Missing, &description()).await.unwrap_err().into_error("create");
        assert!(error.message().contains("Firecracker needs it") && error.remedy().is_some(), "{error}");
        assert!(driver.decide(&usable, &description()).await.unwrap_err().to_string().contains("not installed"));
        // QEMU is there whatever becomes of Firecracker.
        let auto = with_driver(Driver::Auto, Acceleration::Auto, Some("/bin/true"));
        auto.check().await.unwrap();
        assert_eq!(auto.choose(&description()).await.unwrap().runner, Runner::Qemu(Accelerator::Tcg));
        assert!(with_driver(Driver::Qemu, Acceleration::Kvm, None).check().await.is_err());
    }

    #[tokio::test]
    async fn qemu_runs_vms_that_firecracker_cannot_and_failed_starts_are_forgotten() {
        let temp = tempfile::tempdir().unwrap();
        let mut auto = with_driver(Driver::Auto, Acceleration::Auto, Some("/bin/true"));
        auto.probe.cache = Some(temp.path().to_owned());
        auto.kvm = Qemu::new(QemuConfig::default()).unwrap();
        if auto.kvm.version().await.is_err() {
            println!("SKIP qemu_runs_vms_that_firecracker_cannot_and_failed_starts_are_forgotten: no QEMU here");
            return;
        }
        let usable = Verdict::Usable { took: Duration::from_millis(1) };
        let small = auto.decide(&usable, &description()).await.unwrap();
        assert!(small.why.contains("Firecracker is not used"), "{small:?}");
        let large = auto.decide(&usable, &VmDescription { processors: 40, ..description() }).await.unwrap();
        assert!(!large.why.contains("Firecracker"), "{large:?}");
        // The kernel file does not exist: nothing ever ran.
        assert!(large.runner == Runner::Qemu(Accelerator::Tcg) && large.why.contains("does not boot"), "{large:?}");
        assert_eq!(auto.records().unwrap().kernel_trial("qemu"), None);
    }

    /// Returns a VM of the image that the test suite has built, if VM tests are enabled.
    fn real_vm(test: &str) -> Option<VmDescription> {
        if std::env::var_os("COFFERDAM_TEST_MACHINES").is_none() {
            println!("SKIP {test}: tests of emulated VMs take minutes; enable them with COFFERDAM_TEST_MACHINES=1");
            return None;
        }
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let home = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let cache = variable("COFFERDAM_TEST_CACHE").unwrap_or_else(|| home().unwrap().join("cofferdam"));
        let images = Images::new(cache.join("vm"), Cache::new(cache.join("debian")));
        let source = Source { root: RootSource::Debian(Recipe::tiny()), ..Source::default() };
        let image = images.find_or_make(&source, &mut |_| ()).expect("an image");
        let root = Disk { name: "cofferdam-root", contents: Contents::Shared(image.root), access: Access::ReadOnly };
        Some(VmDescription { kernel: image.kernel, initramfs: image.initramfs, disks: vec![root], ..description() })
    }

    /// Promise (Virtual machines): A guest kernel starts once under KVM before a VM relies on it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_kernel_is_started_once_before_it_is_believed() {
        let Some(description) = real_vm("a_kernel_is_started_once_before_it_is_believed") else { return };
        let usable = Verdict::Usable { took: Duration::from_millis(1) };
        let temp = tempfile::tempdir().unwrap();
        let with_records = |acceleration, name: &str| {
            let probes = Some(temp.path().join(name));
            let config = VmConfig { acceleration, probes, ..VmConfig::new("/x") };
            let mut chooser = Chooser::new(&config).unwrap();
            // TCG stands in for a processor that works.
            chooser.kvm = Qemu::new(QemuConfig::default()).unwrap();
            chooser.trial_timeout = Duration::from_secs(240);
            chooser
        };
        let good = with_records(Acceleration::Kvm, "good");
        let first = good.decide(&usable, &description).await.unwrap();
        assert!(
            first.runner == Runner::Qemu(Accelerator::Kvm) && first.why.contains("a kernel booted in"),
            "{first:?}"
        );
        // Another trial would differ in its milliseconds.
        assert_eq!(with_records(Acceleration::Auto, "good").decide(&usable, &description).await.unwrap(), first);
        let file = temp.path().join("kernel");
        std::fs::write(&file, "this is no kernel").unwrap();
        let broken = VmDescription { kernel: file, ..description };
        let auto = with_records(Acceleration::Auto, "bad").decide(&usable, &broken).await.unwrap();
        assert!(auto.runner == Runner::Qemu(Accelerator::Tcg) && auto.why.contains("does not boot"), "{auto:?}");
        let error = with_records(Acceleration::Kvm, "bad").decide(&usable, &broken).await.unwrap_err();
        assert!(error.to_string().contains("does not boot"), "{error}");
    }

    /// On any host's device, a kernel boots, or the trial ends in time.
    ///
    /// Promise (Virtual machines): A KVM device that does not work causes no hang.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_device_that_is_of_no_use_is_no_hang() {
        let test = "a_device_that_is_of_no_use_is_no_hang";
        let Some(description) = real_vm(test) else { return };
        if std::fs::File::options().read(true).write(true).open(crate::kvm::DEVICE).is_err() {
            println!("SKIP {test}: /dev/kvm cannot be opened here");
            return;
        }
        let mut chooser = chooser(Acceleration::Auto, crate::kvm::DEVICE);
        chooser.trial_timeout = Duration::from_secs(10);
        let usable = Verdict::Usable { took: Duration::from_millis(1) };
        let deciding = tokio::time::timeout(Duration::from_secs(120), chooser.decide(&usable, &description));
        let chosen = deciding.await.expect("no hang").unwrap();
        println!("this host: {chosen:?}");
        let booted = chosen.runner == Runner::Qemu(Accelerator::Kvm);
        assert_ne!(booted, chosen.why.contains("does not boot"), "{chosen:?}");
    }

    #[test]
    fn trial_vm_has_the_kernel_and_no_disks_of_its_owner() {
        let file = tempfile::tempfile().unwrap();
        let mut like = description();
        like.disks.push(Disk { name: "work", contents: Contents::Own(file), access: Access::ReadWrite });
        let trial = trial_description(&Qemu::new(QemuConfig::default()).unwrap(), &like, &VmConfig::new("/x")).unwrap();
        assert_eq!((trial.kernel, trial.disks.len(), trial.processors), ("/k".into(), 1, 1));
        assert!(trial.command_line.contains("serial:cofferdam-root"), "{}", trial.command_line);
    }
}
