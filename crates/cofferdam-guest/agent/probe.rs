//! Probes of the environment. The host chooses them and interprets the results.

use super::buffers::{Cursor, Outbox};
use super::sys::{self, Fd, Res, Stack};
use super::walk::Name;
use super::watch;
use super::wire::{Answer, MAX_DATA, MAX_PATH, Probe, Sink};

/// The highest number of counted directory entries.
const MAX_ENTRIES: u64 = 64;
/// The exec tag that the probe of tags sets.
const TRIAL_TAG: u64 = 0x7e57;
/// The highest number of reported bytes of a link's target.
const MAX_TARGET: usize = 48;
/// The Landlock right to open a file for reading.
const READ_FILE: u64 = 1 << 2;

/// A path with a terminating NUL.
pub struct Path([u8; MAX_PATH + 1], usize);

impl Path {
    /// Copies a path without NUL.
    pub fn new(path: &[u8]) -> Res<Self> {
        if path.contains(&0) {
            return Err(sys::EINVAL);
        }
        let mut created = Self([0; MAX_PATH + 1], path.len());
        created.0.get_mut(..MAX_PATH).and_then(|all| all.get_mut(..path.len())).ok_or(sys::EINVAL)?.copy_from_slice(path);
        Ok(created)
    }

    /// Returns the path with its NUL.
    pub fn bytes(&self) -> &[u8] {
        self.0.get(..=self.1).unwrap_or(b"\0")
    }
}

/// The agent's settings that probes need: Landlock rules for guests, and the key of exec tags.
pub type Own<'a> = (Option<&'a Fd>, Option<(u64, u64)>);

/// Carries out a probe and answers.
pub fn probe(id: u64, probe: &Probe<'_>, stack: &mut Stack, own: Own<'_>, out: &mut Outbox) {
    if let Probe::File { path, from } = *probe {
        return file(id, path, from, out);
    }
    let mut data = [0; 64];
    let mut cursor = Cursor { space: &mut data, length: 0 };
    let found = run(probe, stack, own, &mut cursor);
    let length = cursor.length;
    let (errno, value) = match found {
        Ok(value) => (0, value),
        Err(errno) => (errno, 0),
    };
    out.answer(id, &Answer::Probed { errno, value, data: data.get(..length).unwrap_or_default() });
}

fn file(id: u64, path: &[u8], from: u32, out: &mut Outbox) {
    let kind = Answer::Probed { errno: 0, value: 0, data: &[] }.kind();
    let file = Path::new(path).and_then(|path| sys::open_at(sys::AT_FDCWD, path.bytes(), sys::O_NONBLOCK, 0));
    let read = file.and_then(|file| {
        if from > 0 {
            sys::seek(&file, from.into())?;
        }
        // The numbers before the contents: no error, no value.
        out.fill(kind, id, &[0; 12], MAX_DATA, |space| sys::read_all(file.number(), space))
    });
    match read {
        Ok(0) => out.answer(id, &Answer::Probed { errno: 0, value: 0, data: &[] }),
        Ok(_) => {}
        Err(errno) => out.answer(id, &Answer::Probed { errno, value: 0, data: &[] }),
    }
}

fn run(probe: &Probe<'_>, stack: &mut Stack, (rules, key): Own<'_>, more: &mut Cursor<'_>) -> Res<u64> {
    let spawn_key = key.map_or(0, sys::joined_key);
    match *probe {
        Probe::File { .. } => Err(sys::EINVAL),
        Probe::Open { path, flags, confined: false } => open(path, flags),
        Probe::Open { path, flags, confined: true } => {
            let rules = rules.ok_or(sys::EINVAL)?.number();
            in_child(stack, spawn_key, &mut || sys::landlock_restrict(rules).and_then(|()| open(path, flags)))
        }
        Probe::Stat { path } => {
            let path = Path::new(path)?;
            let stat = sys::stat_at(sys::AT_FDCWD, path.bytes())?;
            more.put(&stat.mode.to_le_bytes());
            if stat.mode & sys::S_IFMT == sys::S_IFDIR {
                more.put(&stat.device.0.to_le_bytes());
                more.put(&stat.device.1.to_le_bytes());
            } else {
                let mut target = [0; MAX_TARGET];
                more.put(sys::read_link(sys::AT_FDCWD, path.bytes(), &mut target).unwrap_or_default());
            }
            Ok(stat.inode)
        }
        Probe::Space { path } => {
            let room = sys::room(Path::new(path)?.bytes())?;
            for number in [room.bytes, room.free, room.files, room.files_free] {
                more.put(&number.to_le_bytes());
            }
            Ok(room.kind)
        }
        Probe::Entries { path } => entries(path),
        Probe::Call { number, arguments: [a, b, c, d, e] } => {
            let arguments = [a as usize, b as usize, c as usize, d as usize, e as usize, 0];
            in_child(stack, spawn_key, &mut || sys::attempt(number as usize, arguments).map(|_| 0))
        }
        Probe::Landlock => Ok(sys::landlock_abi().into()),
        Probe::Tag { key } => try_tag(stack, key),
        Probe::ConfiguredTag => try_tag(stack, key.ok_or(sys::EINVAL)?),
        Probe::Confinement => {
            let (no_new_privileges, filtered) = sys::confinement();
            for set in sys::capabilities()? {
                more.put(&set.to_le_bytes());
            }
            more.put(&sys::processors().to_le_bytes());
            Ok(u64::from(no_new_privileges) | u64::from(filtered) << 1)
        }
        Probe::Denial => {
            let rules = sys::landlock_rules(sys::landlock_abi(), READ_FILE, 0)?;
            in_child(stack, spawn_key, &mut || {
                sys::landlock_restrict(rules.number())?;
                match open(b"/proc/self/stat", 0) {
                    Err(sys::EACCES) => Ok(0),
                    Err(errno) => Err(errno),
                    Ok(_) => Err(sys::EINVAL),
                }
            })
        }
    }
}

/// Opens a path. Removes a file that this creates.
fn open(path: &[u8], flags: u32) -> Res<u64> {
    let path = Path::new(path)?;
    let flags = flags as usize | sys::O_NONBLOCK;
    let file = sys::open_at(sys::AT_FDCWD, path.bytes(), flags, 0o600)?;
    let stat = sys::stat_at(file.number(), b"\0")?;
    if flags & (sys::O_CREAT | sys::O_EXCL) == sys::O_CREAT | sys::O_EXCL {
        sys::unlink(sys::AT_FDCWD, path.bytes())?;
    }
    Ok(stat.mode.into())
}

fn entries(path: &[u8]) -> Res<u64> {
    let dir = sys::open_at(sys::AT_FDCWD, Path::new(path)?.bytes(), sys::O_DIRECTORY, 0)?;
    let mut count = 0;
    let mut buffer = [0; 4096];
    loop {
        let some = sys::entries(&dir, &mut buffer)?;
        if some.is_empty() || count >= MAX_ENTRIES {
            return Ok(count);
        }
        watch::each_entry(some, |entry| {
            count += u64::from(Name::new(entry.name).is_ok() && entry.name != b"." && entry.name != b"..");
        });
    }
}

/// Sets a tag on a child. Fails if that is refused, or if the tag is not visible.
fn try_tag(stack: &mut Stack, key: (u64, u64)) -> Res<u64> {
    in_child(stack, sys::joined_key(key), &mut || {
        sys::set_exec_tag(key, TRIAL_TAG)?;
        // Reads the child's tag in the same way as that of any process.
        let (pid, _, _) = sys::identity();
        if sys::exec_tag_of(pid) == Some(TRIAL_TAG) { Ok(0) } else { Err(sys::EINVAL) }
    })
}

/// Runs a function in a separate process, which exits after it.
fn in_child(stack: &mut Stack, key: u64, work: &mut dyn FnMut() -> Res<u64>) -> Res<u64> {
    let mut found = Err(sys::EINVAL);
    // The child shares this process's memory and writes its result there. It has exited when `spawn` returns. It is
    // reaped at once, since a zombie counts as a process.
    let child = sys::spawn(stack, key, &mut || found = work())?;
    sys::reap_ended(child);
    found
}
