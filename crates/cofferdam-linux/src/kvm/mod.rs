//! A tiny guest under `/dev/kvm`. It counts down in ring 0 and halts, and is stopped from outside if it does not.
//!
//! The callers decide what its time means.

use std::io;
use std::path::Path;
use std::time::Duration;

use kvm_ioctls::Kvm;

#[cfg(target_arch = "x86_64")]
mod guest;
#[cfg(target_arch = "x86_64")]
mod stop;

/// The open device.
#[derive(Debug)]
pub struct Device(Kvm);

/// The end of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spin {
    /// It counted to the end, with this much processor time.
    Halted(Duration),
    /// It was stopped at the time limit, after this much processor time.
    Stopped(Duration),
    /// It could not be stopped: its thread is left behind, and may never end.
    Abandoned,
    /// It ended in a way that its program cannot.
    Strange(String),
}

impl Device {
    /// Opens the device.
    pub fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
        Ok(Self(Kvm::new_with_path(path)?))
    }

    /// Returns the version of the interface. It has been 12 since 2007 and will stay.
    pub fn api_version(&self) -> i32 {
        self.0.get_api_version()
    }

    /// Runs a guest that counts down from `rounds`, in its own thread. Returns within `limit` and one second, whatever
    /// the guest does. The error is that of the first call that the kernel refused.
    #[cfg(target_arch = "x86_64")]
    pub fn spin(self, rounds: u32, limit: Duration) -> io::Result<Spin> {
        // Time for a guest to stop.
        const STOP_TIMEOUT: Duration = Duration::from_secs(1);
        let (report, reports) = std::sync::mpsc::channel();
        let stop = stop::Stop::new();
        let request = stop.clone();
        let thread = std::thread::Builder::new().name("kvm-probe".to_owned()).spawn(move || {
            // There is no receiver any more if it was abandoned.
            let _ = report.send(guest::count_down(&self.0, rounds, &request));
        })?;
        if let Ok(outcome) = reports.recv_timeout(limit) {
            return outcome;
        }
        let begun = std::time::Instant::now();
        while begun.elapsed() < STOP_TIMEOUT {
            // Repeat the request: a thread that has just started would miss the first one.
            stop.request(&thread);
            if let Ok(outcome) = reports.recv_timeout(Duration::from_millis(10)) {
                return outcome;
            }
        }
        Ok(Spin::Abandoned)
    }

    /// Fails: there is no guest for this architecture yet.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn spin(self, _rounds: u32, _limit: Duration) -> io::Result<Spin> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn device(test: &str) -> Option<Device> {
        match Device::open(Path::new("/dev/kvm")) {
            Ok(device) => Some(device),
            Err(error) => {
                println!("SKIP {test}: no /dev/kvm for this user ({error})");
                None
            }
        }
    }

    #[test]
    fn a_guest_counts_to_the_end() {
        let Some(device) = device("a_guest_counts_to_the_end") else { return };
        assert_eq!(device.api_version(), 12);
        let spin = device.spin(1000, Duration::from_secs(20)).unwrap();
        assert!(matches!(spin, Spin::Halted(_)), "{spin:?}");
    }

    #[test]
    fn a_guest_that_does_not_end_is_stopped() {
        let Some(device) = device("a_guest_that_does_not_end_is_stopped") else { return };
        // Even at full speed this takes far longer than the limit.
        let spin = device.spin(u32::MAX, Duration::from_millis(200)).unwrap();
        assert!(matches!(spin, Spin::Stopped(_)), "{spin:?}");
    }

    #[test]
    fn other_files_are_refused_as_kvm_device() {
        assert_eq!(Device::open(Path::new("/nowhere/kvm")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let other = Device::open(Path::new("/dev/null")).unwrap();
        assert!(other.api_version() < 0);
        assert!(other.spin(1, Duration::from_secs(20)).is_err());
    }
}
