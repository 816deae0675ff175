//! Whether this host's `/dev/kvm` is worth using: tried with a tiny guest, and remembered until the next boot.
//!
//! A device that opens and makes machines proves nothing. Where the host is itself a virtual machine without the
//! processor's extensions, ring 0 of a guest may be interpreted: a small guest works, a kernel needs an hour to start. So
//! a guest counts down in ring 0, and its time decides. That a whole kernel starts is for the caller to try.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Retry};
use cofferdam_linux::kvm::{Device, Spin};
use rustix::io::Errno;

pub(crate) mod record;

/// Rounds of the guest: well under a millisecond on a processor, a hundred where they are interpreted.
const ROUNDS: u32 = 200_000;
/// A guest that takes longer than this is interpreted.
const SLOWEST: Duration = Duration::from_millis(20);
/// The shortest of so many counts: the first may have to wait for memory.
const ATTEMPTS: u32 = 3;
/// The one version of the interface that there is.
const API_VERSION: i32 = 12;

/// What `/dev/kvm` is good for.
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
    /// The tiny guest did not come to its end.
    Hung,
    /// This user may not open it.
    NoRight,
    /// It is not there.
    Missing,
    /// It is there and does something else than it should, or there is no tiny guest for this processor.
    Unfit {
        /// What it does.
        why: String,
    },
}

impl Verdict {
    /// Whether guests may be started with it.
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Usable { .. })
    }

    /// Whether trying again before the next boot would come to the same.
    fn lasts(&self) -> bool {
        match self {
            Self::Usable { .. } | Self::Emulated { .. } | Self::Hung => true,
            Self::NoRight | Self::Missing | Self::Unfit { .. } => false,
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Usable { .. } => "nothing is to be done",
            Self::Emulated { .. } | Self::Hung | Self::Unfit { .. } => {
                "use a host with the processor's virtualisation (vmx or svm in /proc/cpuinfo), or have nested \
                 virtualisation switched on for this one; without it, machines are emulated (QEMU's TCG)"
            }
            Self::NoRight => {
                "join the group that owns /dev/kvm (`usermod -aG kvm USER`, then log in again); in a container, pass the device in"
            }
            Self::Missing => {
                "switch virtualisation on in the firmware, or nested virtualisation on this machine's host, and load \
                 the module: `modprobe kvm_intel` or `modprobe kvm_amd`; in a container, pass /dev/kvm in"
            }
        }
    }

    /// Fails unless guests may be started with it.
    pub fn require(&self, operation: &'static str) -> cofferdam_contract::Result<()> {
        if self.is_usable() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, operation, self.to_string())
            .with_retry(Retry::Never)
            .with_remedy(self.remedy()))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usable { took } => write!(f, "hardware virtualisation works (the probe took {took:.1?})"),
            Self::Emulated { took } => {
                let least = SLOWEST.as_millis();
                write!(f, "KVM is there, but interprets guests: the probe took {took:.1?}, {least} ms is the most")
            }
            Self::Hung => f.write_str("KVM is there, but the probe's guest did not end in time"),
            Self::NoRight => f.write_str("KVM is there, but this user may not open it"),
            Self::Missing => f.write_str("there is no KVM on this host"),
            Self::Unfit { why } => write!(f, "KVM is of no use: {why}"),
        }
    }
}

/// How to look.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The device.
    pub device: PathBuf,
    /// A directory for what was found, made if it is not there. None remembers nothing.
    pub cache: Option<PathBuf>,
    /// Time for one count.
    pub limit: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Self { device: "/dev/kvm".into(), cache: None, limit: Duration::from_secs(5) }
    }
}

impl Probe {
    /// Looks, or remembers. Blocks its thread for no longer than three times the limit and a second each.
    ///
    /// # Behavior
    ///
    /// - The device is opened in any case: what this user may is never remembered.
    /// - What is remembered holds for one boot of one kernel and one device. A file that is damaged, of another user or
    ///   writable by others is ignored, and one that cannot be written is done without.
    pub fn verdict(&self) -> Verdict {
        let device = match open(&self.device) {
            Ok(device) => device,
            Err(verdict) => return verdict,
        };
        let place = self.cache.as_deref().and_then(|cache| record::Place::new(cache, &self.device));
        if let Some(verdict) = place.as_ref().and_then(record::Place::read) {
            return verdict;
        }
        drop(device);
        let verdict = self.look();
        if let (Some(place), true) = (place, verdict.lasts()) {
            // Without a record it is looked again, which is slower and not wrong.
            let _ = place.write(&verdict);
        }
        verdict
    }

    fn look(&self) -> Verdict {
        let mut shortest = None;
        for _ in 0..ATTEMPTS {
            let spin = open(&self.device).map(|device| device.spin(ROUNDS, self.limit));
            let took = match spin {
                Err(verdict) => return verdict,
                Ok(spin) => match judge(spin, self.limit) {
                    Err(verdict) => return verdict,
                    Ok(took) => took,
                },
            };
            let least = shortest.map_or(took, |least: Duration| least.min(took));
            if least <= SLOWEST {
                return Verdict::Usable { took: least };
            }
            shortest = Some(least);
        }
        Verdict::Emulated { took: shortest.unwrap_or_default() }
    }
}

/// The device, if it is one of the right version.
fn open(path: &Path) -> Result<Device, Verdict> {
    let device = Device::open(path).map_err(|error| match Errno::from_io_error(&error) {
        // The last two: there is a file, and no module behind it.
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Verdict::Missing,
        // The last: the container's control group of devices does not list it.
        Some(Errno::ACCESS | Errno::PERM) => Verdict::NoRight,
        _ => Verdict::Unfit { why: error.to_string() },
    })?;
    match device.api_version() {
        API_VERSION => Ok(device),
        other => Err(Verdict::Unfit { why: format!("its interface has version {other}, not {API_VERSION}") }),
    }
}

/// The time that a guest took, or what its end says of the device.
fn judge(spin: io::Result<Spin>, limit: Duration) -> Result<Duration, Verdict> {
    match spin {
        // As exactly as it is remembered.
        Ok(Spin::Halted(took)) => Ok(Duration::from_micros(took.as_micros().try_into().unwrap_or(u64::MAX))),
        Ok(Spin::Stopped(used)) if used < limit / 2 => {
            // It hardly had the processor: other programs, not KVM.
            let why = format!(
                "the probe had {used:.1?} of processor time in {limit:.1?}; look again when there is less to do"
            );
            Err(Verdict::Unfit { why })
        }
        Ok(Spin::Stopped(_) | Spin::Abandoned) => Err(Verdict::Hung),
        Ok(Spin::Strange(how)) => {
            Err(Verdict::Unfit { why: format!("the probe's guest ended in another way ({how})") })
        }
        Err(error) => Err(Verdict::Unfit { why: format!("the probe's guest could not run ({error})") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_guest_has_a_verdict() {
        let (limit, ms) = (Duration::from_secs(5), Duration::from_millis);
        assert_eq!(judge(Ok(Spin::Halted(ms(1))), limit), Ok(ms(1)));
        assert_eq!(judge(Ok(Spin::Stopped(ms(4900))), limit), Err(Verdict::Hung));
        assert_eq!(judge(Ok(Spin::Abandoned), limit), Err(Verdict::Hung));
        let starved = judge(Ok(Spin::Stopped(ms(10))), limit).unwrap_err();
        assert!(!starved.lasts() && starved.to_string().contains("less to do"), "{starved}");
        let strange = judge(Ok(Spin::Strange("Shutdown".to_owned())), limit).unwrap_err();
        assert!(strange.to_string().contains("Shutdown"), "{strange}");
        let refused = judge(Err(io::ErrorKind::OutOfMemory.into()), limit).unwrap_err();
        assert!(!refused.is_usable() && !refused.lasts(), "{refused}");
    }

    #[test]
    fn what_is_not_there_or_no_device_says_what_to_do() {
        let look = |device: &str| Probe { device: device.into(), ..Probe::default() }.verdict();
        assert_eq!(look("/nowhere/kvm"), Verdict::Missing);
        assert!(matches!(look("/dev/null"), Verdict::Unfit { .. }));
        let error = look("/nowhere/kvm").require("create").unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Never));
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("modprobe")), "{error}");
    }

    /// On this host, whatever it is: a verdict comes, in time, and the second look remembers it.
    #[test]
    fn a_verdict_comes_and_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Some(directory.path().join("cache"));
        let probe = Probe { cache, ..Probe::default() };
        let first = probe.verdict();
        println!("this host: {first}");
        if !first.lasts() {
            println!("SKIP a_verdict_comes_and_is_remembered: {first}");
            return;
        }
        assert_eq!(probe.verdict(), first, "times of two looks differ");
        assert_eq!(first.require("create").is_ok(), first.is_usable());
    }
}
