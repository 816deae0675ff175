//! Records of findings about a device, in files that are valid for one boot of one kernel.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::private;
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Verdict;

const FORMAT: u32 = 1;
/// File of the tiny guest's verdict.
const FILE: &str = "kvm.json";
/// Prefix of the files of kernel trials.
const KERNEL_FILE: &str = "kvm-kernel";
/// Maximum length of a record.
const MAX_LENGTH: u64 = 4096;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The subject of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    format: u32,
    boot: String,
    /// Release and version of the kernel.
    kernel: String,
    device: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record<T> {
    subject: Subject,
    found: T,
}

/// The result of booting a whole kernel once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct KernelTrial {
    /// Name and version of the VMM.
    pub vmm: String,
    /// The image that was booted.
    pub image: String,
    /// Milliseconds until its agent connected, or the reason why it did not.
    pub outcome: Result<u64, String>,
}

/// The cacheable verdicts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Found {
    Usable { microseconds: u64 },
    Emulated { microseconds: u64 },
    Hung,
}

/// The records of this boot.
#[derive(Debug)]
pub(crate) struct Records {
    directory: PathBuf,
    subject: Subject,
}

impl Records {
    /// Returns `None` if the boot has no ID.
    pub(crate) fn new(directory: &Path, device: &Path) -> Option<Self> {
        let mut boot = String::new();
        File::open(BOOT_ID).ok()?.take(MAX_LENGTH).read_to_string(&mut boot).ok()?;
        let boot = boot.trim().to_owned();
        let system = rustix::system::uname();
        let kernel = format!("{} {}", system.release().to_str().ok()?, system.version().to_str().ok()?);
        let subject = Subject { format: FORMAT, boot, kernel, device: device.to_owned() };
        (!subject.boot.is_empty()).then(|| Self { directory: directory.to_owned(), subject })
    }

    /// Returns the recorded verdict, if it is of this boot and only this user can have written it.
    pub(super) fn read(&self) -> Option<Verdict> {
        Some(match self.read_from::<Found>(FILE)? {
            Found::Usable { microseconds } => Verdict::Usable { took: Duration::from_micros(microseconds) },
            Found::Emulated { microseconds } => Verdict::Emulated { took: Duration::from_micros(microseconds) },
            Found::Hung => Verdict::Hung,
        })
    }

    /// Records a verdict atomically. Verdicts that are not cacheable are not written.
    pub(super) fn write(&self, verdict: &Verdict) -> io::Result<()> {
        let microseconds = |took: &Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let found = match verdict {
            Verdict::Usable { took } => Found::Usable { microseconds: microseconds(took) },
            Verdict::Emulated { took } => Found::Emulated { microseconds: microseconds(took) },
            Verdict::Hung => Found::Hung,
            Verdict::NoRight | Verdict::Missing | Verdict::Unfit { .. } => return Ok(()),
        };
        self.write_to(FILE, found)
    }

    /// Returns the result of booting a whole kernel with a VMM since the host booted.
    pub(crate) fn kernel_trial(&self, vmm: &str) -> Option<KernelTrial> {
        self.read_from(&kernel_file(vmm))
    }

    /// Records the result of booting a whole kernel.
    pub(crate) fn write_kernel_trial(&self, vmm: &str, trial: KernelTrial) -> io::Result<()> {
        self.write_to(&kernel_file(vmm), trial)
    }

    fn read_from<T: DeserializeOwned>(&self, file: &str) -> Option<T> {
        let record: Record<T> = serde_json::from_slice(&own_bytes(&self.directory.join(file))?).ok()?;
        (record.subject == self.subject).then_some(record.found)
    }

    fn write_to<T: Serialize>(&self, name: &str, found: T) -> io::Result<()> {
        private::create_directory(&self.directory)?;
        let temporary = self.directory.join(format!("{name}.making"));
        let Some(mut file) = open_exclusive(&temporary)? else { return Ok(()) };
        file.set_len(0)?;
        file.write_all(&serde_json::to_vec(&Record { subject: self.subject.clone(), found })?)?;
        fs::rename(&temporary, self.directory.join(name))
    }
}

/// Opens a temporary file for writing. It always has the same name, so that a killed writer leaves at most one file.
/// The next writer reuses it. Returns `None` if another process, with the same finding, writes it at this moment.
/// Other users can neither read nor write it.
fn open_exclusive(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // The previous holder of the lock may have renamed the file meanwhile.
    let (ours, found) = (file.metadata()?, fs::symlink_metadata(path));
    let is_there = found.is_ok_and(|found| (ours.dev(), ours.ino()) == (found.dev(), found.ino()));
    Ok((is_there && ours.is_file() && ours.uid() == rustix::process::geteuid().as_raw()).then_some(file))
}

/// Returns the file name for a VMM; `vmm` is its name without a version.
fn kernel_file(vmm: &str) -> String {
    format!("{KERNEL_FILE}-{vmm}.json")
}

/// Returns the content of a short regular file that belongs to this user and that no other user may write to.
fn own_bytes(path: &Path) -> Option<Vec<u8>> {
    trust::check(path.parent()?, Secrecy::Public).ok()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let about = file.metadata().ok()?;
    if !about.is_file() || private::exposure(&about).is_some() || about.len() > MAX_LENGTH {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_LENGTH).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn records(directory: &Path) -> Records {
        Records::new(directory, Path::new("/dev/kvm")).expect("this boot has an ID")
    }

    #[test]
    fn verdicts_that_last_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let records = records(&directory.path().join("a/b"));
        assert_eq!(records.read(), None);
        let took = Duration::from_micros(1234);
        for verdict in [Verdict::Usable { took }, Verdict::Emulated { took }, Verdict::Hung] {
            records.write(&verdict).unwrap();
            assert_eq!(records.read(), Some(verdict));
        }
        assert_eq!(fs::read_dir(directory.path().join("a/b")).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn files_of_killed_writers_are_replaced_and_of_live_ones_kept() {
        let directory = tempfile::tempdir().unwrap();
        let records = records(directory.path());
        let temporary = directory.path().join("kvm.json.making");
        let living = open_exclusive(&temporary).unwrap().unwrap();
        (&living).write_all(&[b'x'; 3000]).unwrap();
        records.write(&Verdict::Hung).unwrap();
        assert_eq!((records.read(), fs::read(&temporary).unwrap().len()), (None, 3000));
        // The writer is killed.
        drop(living);
        records.write(&Verdict::Hung).unwrap();
        assert_eq!(records.read(), Some(Verdict::Hung));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "something is left");
        std::os::unix::fs::symlink("elsewhere", &temporary).unwrap();
        assert!(records.write(&Verdict::Hung).is_err() && !directory.path().join("elsewhere").exists());
    }

    #[test]
    fn verdicts_that_do_not_last_are_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let records = records(directory.path());
        for verdict in [Verdict::NoRight, Verdict::Missing, Verdict::Unfit { why: "x".to_owned() }] {
            records.write(&verdict).unwrap();
            assert_eq!(records.read(), None);
        }
    }

    /// Promise (Virtual machines): The result of a guest kernel under KVM is recorded for that kernel.
    #[test]
    fn how_a_kernel_fared_is_another_record() {
        let directory = tempfile::tempdir().unwrap();
        let records = records(directory.path());
        assert_eq!(records.kernel_trial("qemu"), None);
        for outcome in [Ok(700), Err("silence".to_owned())] {
            let trial = KernelTrial { vmm: "qemu 7.2".to_owned(), image: "x".to_owned(), outcome };
            records.write_kernel_trial("qemu", trial.clone()).unwrap();
            assert_eq!((records.kernel_trial("qemu"), records.read()), (Some(trial), None));
            assert_eq!(records.kernel_trial("firecracker"), None);
        }
        records.write(&Verdict::Hung).unwrap();
        fs::copy(directory.path().join(FILE), directory.path().join(kernel_file("qemu"))).unwrap();
        assert_eq!(records.kernel_trial("qemu"), None);
    }

    #[test]
    fn records_of_something_else_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let records = records(directory.path());
        let changes: [fn(&mut Subject); 4] = [
            |subject| subject.format += 1,
            |subject| subject.boot.push('x'),
            |subject| subject.kernel.push('x'),
            |subject| subject.device = "/dev/other".into(),
        ];
        for change in changes {
            let mut other = records.subject.clone();
            change(&mut other);
            Records { directory: records.directory.clone(), subject: other }.write(&Verdict::Hung).unwrap();
            assert_eq!(records.read(), None);
        }
    }

    #[test]
    fn damaged_and_foreign_files_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let records = records(directory.path());
        let file = directory.path().join(FILE);
        records.write(&Verdict::Hung).unwrap();
        let good = fs::read(&file).unwrap();
        for bad in [&b""[..], b"{}", b"\xff\xff", &good[..good.len() - 1], &vec![b' '; 5000]] {
            fs::write(&file, bad).unwrap();
            assert_eq!(records.read(), None, "{bad:?}");
        }
        fs::write(&file, &good).unwrap();
        assert_eq!(records.read(), Some(Verdict::Hung), "the file is good again");
        for mode in [0o620, 0o602] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(records.read(), None, "{mode:o}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&file, directory.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), &file).unwrap();
        assert_eq!(records.read(), None, "a link");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(records.read(), None, "a directory");
        assert!(records.write(&Verdict::Hung).is_err());
    }

    #[test]
    fn a_file_of_another_user_is_ignored() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP a_file_of_another_user_is_ignored: only root can give files away");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let records = records(directory.path());
        records.write(&Verdict::Hung).unwrap();
        std::os::unix::fs::chown(directory.path().join(FILE), Some(65534), None).unwrap();
        assert_eq!(records.read(), None);
    }
}
