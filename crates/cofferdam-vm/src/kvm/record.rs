//! What was found about a device, in a file that holds for one boot of one kernel.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_linux::trust::{self, Secrecy};
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Verdict;

const FORMAT: u32 = 1;
/// The verdict of the tiny guest.
const FILE: &str = "kvm.json";
/// How a whole kernel fared.
const KERNEL_FILE: &str = "kvm-kernel";
/// No record is longer.
const LONGEST: u64 = 4096;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What a record is about.
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

/// How a whole kernel fared when it was started, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct KernelTrial {
    /// The monitor's name and version.
    pub monitor: String,
    /// The image that was started.
    pub image: String,
    /// Milliseconds until its agent greeted; why it did not, otherwise.
    pub outcome: Result<u64, String>,
}

/// The verdicts that last.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Found {
    Usable { microseconds: u64 },
    Emulated { microseconds: u64 },
    Hung,
}

/// Where a record of this boot is.
#[derive(Debug)]
pub(crate) struct Place {
    directory: PathBuf,
    subject: Subject,
}

impl Place {
    /// `None` where the boot has no name.
    pub(crate) fn new(directory: &Path, device: &Path) -> Option<Self> {
        let mut boot = String::new();
        File::open(BOOT_ID).ok()?.take(LONGEST).read_to_string(&mut boot).ok()?;
        let boot = boot.trim().to_owned();
        let system = rustix::system::uname();
        let kernel = format!("{} {}", system.release().to_str().ok()?, system.version().to_str().ok()?);
        let subject = Subject { format: FORMAT, boot, kernel, device: device.to_owned() };
        (!subject.boot.is_empty()).then(|| Self { directory: directory.to_owned(), subject })
    }

    /// The verdict on record, if it is about this boot and only this user can have written it.
    pub(super) fn read(&self) -> Option<Verdict> {
        Some(match self.read_from::<Found>(FILE)? {
            Found::Usable { microseconds } => Verdict::Usable { took: Duration::from_micros(microseconds) },
            Found::Emulated { microseconds } => Verdict::Emulated { took: Duration::from_micros(microseconds) },
            Found::Hung => Verdict::Hung,
        })
    }

    /// Puts a verdict on record in one step. Those that do not last are not written.
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

    /// How a whole kernel fared with a monitor on this boot.
    pub(crate) fn kernel_trial(&self, monitor: &str) -> Option<KernelTrial> {
        self.read_from(&kernel_file(monitor))
    }

    /// Puts that on record.
    pub(crate) fn keep_kernel_trial(&self, monitor: &str, trial: KernelTrial) -> io::Result<()> {
        self.write_to(&kernel_file(monitor), trial)
    }

    fn read_from<T: DeserializeOwned>(&self, file: &str) -> Option<T> {
        let record: Record<T> = serde_json::from_slice(&own_bytes(&self.directory.join(file))?).ok()?;
        (record.subject == self.subject).then_some(record.found)
    }

    fn write_to<T: Serialize>(&self, name: &str, found: T) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let making = self.directory.join(format!("{name}.making"));
        let Some(mut file) = sole(&making)? else { return Ok(()) };
        file.set_len(0)?;
        file.write_all(&serde_json::to_vec(&Record { subject: self.subject.clone(), found })?)?;
        fs::rename(&making, self.directory.join(name))
    }
}

/// A file to be written, always under the same name, so that a writer who is killed leaves no more than the next one takes over.
/// `None` where another one writes at this moment, who found out the same. Nobody else may read or write it.
fn sole(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // It may have got its name meanwhile from whoever had the lock before.
    let (ours, there) = (file.metadata()?, fs::symlink_metadata(path));
    let is_there = there.is_ok_and(|there| (ours.dev(), ours.ino()) == (there.dev(), there.ino()));
    Ok((is_there && ours.is_file() && ours.uid() == rustix::process::geteuid().as_raw()).then_some(file))
}

/// `monitor` is a name without its version.
fn kernel_file(monitor: &str) -> String {
    format!("{KERNEL_FILE}-{monitor}.json")
}

/// The content of a short plain file that belongs to this user and that nobody else may write to.
fn own_bytes(path: &Path) -> Option<Vec<u8>> {
    trust::check(path.parent()?, Secrecy::Public).ok()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let about = file.metadata().ok()?;
    let own = about.is_file() && about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0;
    if !own || about.len() > LONGEST {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place(directory: &Path) -> Place {
        Place::new(directory, Path::new("/dev/kvm")).expect("this boot has a name")
    }

    #[test]
    fn verdicts_that_last_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(&directory.path().join("a/b"));
        assert_eq!(place.read(), None);
        let took = Duration::from_micros(1234);
        for verdict in [Verdict::Usable { took }, Verdict::Emulated { took }, Verdict::Hung] {
            place.write(&verdict).unwrap();
            assert_eq!(place.read(), Some(verdict));
        }
        assert_eq!(fs::read_dir(directory.path().join("a/b")).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_a_killed_writer_left_is_taken_over_and_what_a_living_one_has_is_not_touched() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        let making = directory.path().join("kvm.json.making");
        let living = sole(&making).unwrap().unwrap();
        (&living).write_all(&[b'x'; 3000]).unwrap();
        place.write(&Verdict::Hung).unwrap();
        assert_eq!((place.read(), fs::read(&making).unwrap().len()), (None, 3000));
        // It is killed.
        drop(living);
        place.write(&Verdict::Hung).unwrap();
        assert_eq!(place.read(), Some(Verdict::Hung));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "something is left");
        std::os::unix::fs::symlink("elsewhere", &making).unwrap();
        assert!(place.write(&Verdict::Hung).is_err() && !directory.path().join("elsewhere").exists());
    }

    #[test]
    fn verdicts_that_do_not_last_are_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        for verdict in [Verdict::NoRight, Verdict::Missing, Verdict::Unfit { why: "x".to_owned() }] {
            place.write(&verdict).unwrap();
            assert_eq!(place.read(), None);
        }
    }

    #[test]
    fn how_a_kernel_fared_is_another_record() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        assert_eq!(place.kernel_trial("qemu"), None);
        for outcome in [Ok(700), Err("silence".to_owned())] {
            let trial = KernelTrial { monitor: "qemu 7.2".to_owned(), image: "x".to_owned(), outcome };
            place.keep_kernel_trial("qemu", trial.clone()).unwrap();
            assert_eq!((place.kernel_trial("qemu"), place.read()), (Some(trial), None));
            assert_eq!(place.kernel_trial("firecracker"), None);
        }
        place.write(&Verdict::Hung).unwrap();
        fs::copy(directory.path().join(FILE), directory.path().join(kernel_file("qemu"))).unwrap();
        assert_eq!(place.kernel_trial("qemu"), None);
    }

    #[test]
    fn records_of_something_else_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        let changes: [fn(&mut Subject); 4] = [
            |subject| subject.format += 1,
            |subject| subject.boot.push('x'),
            |subject| subject.kernel.push('x'),
            |subject| subject.device = "/dev/other".into(),
        ];
        for change in changes {
            let mut other = place.subject.clone();
            change(&mut other);
            Place { directory: place.directory.clone(), subject: other }.write(&Verdict::Hung).unwrap();
            assert_eq!(place.read(), None);
        }
    }

    #[test]
    fn damaged_and_foreign_files_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        let file = directory.path().join(FILE);
        place.write(&Verdict::Hung).unwrap();
        let good = fs::read(&file).unwrap();
        for bad in [&b""[..], b"{}", b"\xff\xff", &good[..good.len() - 1], &vec![b' '; 5000]] {
            fs::write(&file, bad).unwrap();
            assert_eq!(place.read(), None, "{bad:?}");
        }
        fs::write(&file, &good).unwrap();
        assert_eq!(place.read(), Some(Verdict::Hung), "the file is good again");
        for mode in [0o620, 0o602] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(place.read(), None, "{mode:o}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&file, directory.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), &file).unwrap();
        assert_eq!(place.read(), None, "a link");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(place.read(), None, "a directory");
        assert!(place.write(&Verdict::Hung).is_err());
    }

    #[test]
    fn a_file_of_another_user_is_ignored() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP a_file_of_another_user_is_ignored: only root can give files away");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let place = place(directory.path());
        place.write(&Verdict::Hung).unwrap();
        std::os::unix::fs::chown(directory.path().join(FILE), Some(65534), None).unwrap();
        assert_eq!(place.read(), None);
    }
}
