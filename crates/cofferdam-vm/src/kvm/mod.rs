//! The usability of this host's `/dev/kvm`: tested with a tiny guest, and cached until the next boot.
//!
//! A device that opens and creates VMs proves nothing. If the host is itself a VM without the processor's extensions,
//! ring 0 of a guest may be interpreted: a small guest works, and a kernel needs an hour to boot. So a guest counts
//! down in ring 0, and its time decides. The caller tests whether a whole kernel boots.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_linux::kvm::{Device, Spin};
use rustix::io::Errno;

pub(crate) mod record;

/// Loop count of the guest: it takes well under a millisecond on a processor, and a hundred when interpreted.
const ROUNDS: u32 = 200_000;
/// Maximum time of the guest; one that takes longer is interpreted.
const MAX_GUEST_TIME: Duration = Duration::from_millis(20);
/// Number of attempts, of which the shortest counts: the first may have to wait for memory.
const ATTEMPTS: u32 = 3;
/// The only version of the interface.
const API_VERSION: i32 = 12;

/// The device of the host's hardware virtualisation.
pub(crate) const DEVICE: &str = "/dev/kvm";

/// The usability of `/dev/kvm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Guests run on the processor.
    Usable {
        /// Processor time of the tiny guest.
        took: Duration,
    },
    /// Ring 0 of guests is interpreted, far too slowly for a kernel.
    Emulated {
        /// Processor time of the tiny guest.
        took: Duration,
    },
    /// The tiny guest did not finish.
    Hung,
    /// This user may not open the device.
    NoRight,
    /// The device does not exist.
    Missing,
    /// The device misbehaves, or there is no tiny guest for this architecture.
    Unfit {
        /// The problem.
        why: String,
    },
}

impl Verdict {
    /// Returns true if guests may be started with it.
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Usable { .. })
    }

    /// Returns true if another probe before the next boot would have the same result.
    fn is_cacheable(&self) -> bool {
        match self {
            Self::Usable { .. } | Self::Emulated { .. } | Self::Hung => true,
            Self::NoRight | Self::Missing | Self::Unfit { .. } => false,
        }
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Usable { .. } => "no action is needed",
            Self::Emulated { .. } | Self::Hung | Self::Unfit { .. } => {
                "use a host with the processor's virtualisation (vmx or svm in /proc/cpuinfo), or enable nested \
                 virtualisation for this one; without it, VMs are emulated (QEMU's TCG)"
            }
            Self::NoRight => {
                "join the group that owns /dev/kvm (`usermod -aG kvm USER`, then log in again); in a \
                 container, pass the device in"
            }
            Self::Missing => {
                "enable virtualisation in the firmware, or nested virtualisation on the host of this VM, and load the \
                 module: `modprobe kvm_intel` or `modprobe kvm_amd`; in a container, pass /dev/kvm in"
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable { took } => write!(f, "hardware virtualisation works (the probe took {took:.1?})"),
            Self::Emulated { took } => {
                let max = MAX_GUEST_TIME.as_millis();
                write!(f, "KVM exists, but interprets guests: the probe took {took:.1?}, the maximum is {max} ms")
            }
            Self::Hung => f.write_str("KVM exists, but the probe's guest did not finish in time"),
            Self::NoRight => f.write_str("KVM exists, but this user may not open it"),
            Self::Missing => f.write_str("there is no KVM on this host"),
            Self::Unfit { why } => write!(f, "KVM is not usable: {why}"),
        }
    }
}

/// A probe of the device.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The device.
    pub device: PathBuf,
    /// Directory for the cached result, created if it is missing. `None` disables caching.
    pub cache: Option<PathBuf>,
    /// Time limit of one attempt.
    pub limit: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Self { device: DEVICE.into(), cache: None, limit: Duration::from_secs(5) }
    }
}

impl Probe {
    /// Returns the cached verdict, or probes the device. Blocks its thread for at most three times the limit and a
    /// second each.
    ///
    /// # Behavior
    ///
    /// - The device is opened in any case: the user's permission is never cached.
    /// - The cache is valid for one boot of one kernel and one device. A file that is damaged, of another user or
    ///   writable by other users is ignored, and a failed write has no effect.
    pub fn verdict(&self) -> Verdict {
        let device = match open(&self.device) {
            Ok(device) => device,
            Err(verdict) => return verdict,
        };
        let records = self.cache.as_deref().and_then(|cache| record::Records::new(cache, &self.device));
        if let Some(verdict) = records.as_ref().and_then(record::Records::read) {
            return verdict;
        }
        drop(device);
        let verdict = self.measure();
        if let (Some(records), true) = (records, verdict.is_cacheable()) {
            // Without a record, the next call probes again, which costs only time.
            let _ = records.write(&verdict);
        }
        verdict
    }

    fn measure(&self) -> Verdict {
        let mut shortest = None;
        for _ in 0..ATTEMPTS {
            let spin = open(&self.device).map(|device| device.spin(ROUNDS, self.limit));
            let took = match spin {
                Err(verdict) => return verdict,
                Ok(spin) => match verdict_of(spin, self.limit) {
                    Err(verdict) => return verdict,
                    Ok(took) => took,
                },
            };
            let min = shortest.map_or(took, |shortest: Duration| shortest.min(took));
            if min <= MAX_GUEST_TIME {
                return Verdict::Usable { took: min };
            }
            shortest = Some(min);
        }
        Verdict::Emulated { took: shortest.unwrap_or_default() }
    }
}

/// Opens the device, and checks its version.
fn open(path: &Path) -> Result<Device, Verdict> {
    let device = Device::open(path).map_err(|error| match Errno::from_io_error(&error) {
        // The last two: the device node exists, and no module is loaded.
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Verdict::Missing,
        // The last: the container's device control group does not list it.
        Some(Errno::ACCESS | Errno::PERM) => Verdict::NoRight,
        _ => Verdict::Unfit { why: error.to_string() },
    })?;
    match device.api_version() {
        API_VERSION => Ok(device),
        other => Err(Verdict::Unfit { why: format!("its interface has version {other}, not {API_VERSION}") }),
    }
}

/// Returns the time that a guest took, or the verdict for its end.
fn verdict_of(spin: io::Result<Spin>, limit: Duration) -> Result<Duration, Verdict> {
    match spin {
        // In the precision of the record.
        Ok(Spin::Halted(took)) => Ok(Duration::from_micros(took.as_micros().try_into().unwrap_or(u64::MAX))),
        Ok(Spin::Stopped(used)) if used < limit / 2 => {
            // It hardly had processor time: other programs are the reason, not KVM.
            let why = format!(
                "the probe had {used:.1?} of processor time in {limit:.1?}; probe again when the host is less busy"
            );
            Err(Verdict::Unfit { why })
        }
        Ok(Spin::Stopped(_) | Spin::Abandoned) => Err(Verdict::Hung),
        Ok(Spin::Strange(how)) => Err(Verdict::Unfit { why: format!("the probe's guest ended unexpectedly ({how})") }),
        Err(error) => Err(Verdict::Unfit { why: format!("the probe's guest could not run ({error})") }),
    }
}

/// Returns vendor and model of the host's processor.
pub(crate) fn host_processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.trim() == key).map_or("?", |(_, value)| value.trim()).to_owned()
    };
    ["vendor_id", "cpu family", "model", "stepping"].map(value).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_guest_has_a_verdict() {
        let (limit, ms) = (Duration::from_secs(5), Duration::from_millis);
        assert_eq!(verdict_of(Ok(Spin::Halted(ms(1))), limit), Ok(ms(1)));
        assert_eq!(verdict_of(Ok(Spin::Stopped(ms(4900))), limit), Err(Verdict::Hung));
        assert_eq!(verdict_of(Ok(Spin::Abandoned), limit), Err(Verdict::Hung));
        let starved = verdict_of(Ok(Spin::Stopped(ms(10))), limit).unwrap_err();
        assert!(!starved.is_cacheable() && starved.to_string().contains("less busy"), "{starved}");
        let strange = verdict_of(Ok(Spin::Strange("Shutdown".to_owned())), limit).unwrap_err();
        assert!(strange.to_string().contains("Shutdown"), "{strange}");
        let refused = verdict_of(Err(io::ErrorKind::OutOfMemory.into()), limit).unwrap_err();
        assert!(!refused.is_usable() && !refused.is_cacheable(), "{refused}");
    }

    #[test]
    fn missing_or_invalid_kvm_device_has_a_remedy() {
        let verdict_at = |device: &str| Probe { device: device.into(), ..Probe::default() }.verdict();
        assert_eq!(verdict_at("/nowhere/kvm"), Verdict::Missing);
        assert!(matches!(verdict_at("/dev/null"), Verdict::Unfit { .. }));
        assert!(Verdict::Missing.remedy().contains("modprobe"));
    }

    /// On any host, a verdict comes in time, and the second call returns the cached one.
    ///
    /// Promise (Virtual machines): The result of a KVM test is remembered.
    #[test]
    fn a_verdict_comes_and_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Some(directory.path().join("cache"));
        let probe = Probe { cache, ..Probe::default() };
        let first = probe.verdict();
        println!("this host: {first}");
        if !first.is_cacheable() {
            println!("SKIP a_verdict_comes_and_is_remembered: {first}");
            return;
        }
        assert_eq!(probe.verdict(), first, "times of two probes would differ");
    }
}
