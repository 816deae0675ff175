//! Requests about files that take several steps.
//!
//! ```text
//! free --Read--> reading --end, failure, Forget--> free
//! free --Write--> writing --Finish, failure, Forget--> free
//! free --List, Mark, Remove--> active --end, failure, Forget--> free
//! free --Watch--> watching --failure, Forget--> free
//! ```
//!
//! Each job advances only while the outbox has space for its answers.

use super::buffers::{Cursor, Outbox};
use super::remove::{Removal, aside};
use super::sys::{self, Fd, Res, Stat};
use super::texts;
use super::walk::{ELOOP, EXDEV, Links, Name, Parents, walk};
use super::watch;
use super::wire::{Answer, Entry, HEAD, MAX_DATA, MAX_JOBS, MAX_PATH, MAX_WATCHES, Make, WINDOW};

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
/// The answer to a rename between file systems.
const ENOTUNIQ: i32 = 76;
const EMFILE: i32 = 24;
/// Space in the outbox that jobs leave for answers to other requests.
const RESERVE: usize = 3 * (HEAD + MAX_DATA);
/// The number of attempts to open a path that changes at the same time.
const TRIES: usize = 32;
/// The size of the buffer for directory entries.
const ENTRIES: usize = 2048;
/// The space for events below which none are read, more than any event has.
const EVENTS: u64 = 1024;
/// The maximum length of an encoded entry: its numbers, a name and a target.
const MAX_ENTRY: usize = 44 + 256 + MAX_PATH;

enum Job {
    Free,
    Read { file: Fd, left: u64 },
    Write { dir: Fd, name: Name, draft: Name, file: Fd, credit: usize },
    List { dir: Fd },
    Remove(Removal),
    Watch { instance: Fd, left: u64 },
}

struct Slot {
    id: u64,
    job: Job,
}

/// All jobs.
pub struct Jobs {
    slots: [Slot; MAX_JOBS],
}

/// A failure, with the type of the file if it is not a regular file.
pub struct Failure {
    pub errno: i32,
    pub kind: u32,
}

impl From<i32> for Failure {
    fn from(errno: i32) -> Self {
        Self { errno, kind: 0 }
    }
}

type Done<T> = Result<T, Failure>;

fn plain(stat: &Stat) -> Done<()> {
    let kind = stat.mode & sys::S_IFMT;
    if kind == sys::S_IFREG { Ok(()) } else { Err(Failure { errno: EEXIST, kind }) }
}

impl Jobs {
    /// A list without jobs.
    pub const NEW: Self = Self { slots: [const { Slot { id: 0, job: Job::Free } }; MAX_JOBS] };

    fn add(&mut self, id: u64, job: Job) -> Done<()> {
        let slot = self.slots.iter_mut().find(|slot| matches!(slot.job, Job::Free)).ok_or(EMFILE)?;
        *slot = Slot { id, job };
        Ok(())
    }

    fn find(&mut self, id: u64) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id && !matches!(slot.job, Job::Free))
    }

    /// Opens a file to read. The answer has its size and mode.
    pub fn read(&mut self, id: u64, root: &Fd, path: &[u8], window: u32, out: &mut Outbox) -> Done<()> {
        for _ in 0..TRIES {
            let (dir, name) = walk(root, path, Links::Follow, Parents::Expect)?;
            // Checked before opening, so that a fifo never blocks and a device is never accessed.
            plain(&sys::stat_at(dir.number(), name.bytes())?)?;
            let file = match sys::open_at(dir.number(), name.bytes(), sys::O_NOFOLLOW | sys::O_NONBLOCK, 0) {
                Err(ELOOP) => continue,
                other => other?,
            };
            let stat = sys::stat_at(file.number(), b"\0")?;
            plain(&stat)?;
            self.add(id, Job::Read { file, left: window.into() })?;
            out.answer(id, &Answer::Opened { size: stat.size, mode: stat.mode });
            return Ok(());
        }
        Err(ELOOP.into())
    }

    /// Allows more bytes of a file to be sent.
    pub fn more(&mut self, id: u64, bytes: u32) {
        if let Some(Slot { job: Job::Read { left, .. } | Job::Watch { left, .. }, .. }) = self.find(id) {
            *left = left.saturating_add(bytes.into());
        }
    }

    /// Creates a draft in the directory of the file.
    pub fn write(&mut self, id: u64, root: &Fd, path: &[u8], strict: bool) -> Done<()> {
        let links = if strict { Links::Refuse } else { Links::Follow };
        let (dir, name) = walk(root, path, links, Parents::Make)?;
        match sys::stat_at(dir.number(), name.bytes()) {
            // A link at the end of the path is replaced, not followed.
            Ok(stat) if strict && stat.mode & sys::S_IFMT == sys::S_IFLNK => {}
            Ok(stat) => plain(&stat)?,
            Err(ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let draft = aside(b".cofferdam-draft-", id)?;
        let flags = sys::O_CREAT | sys::O_EXCL | sys::O_WRONLY | sys::O_NOFOLLOW;
        let file = sys::open_at(dir.number(), draft.bytes(), flags, 0o644)?;
        self.add(id, Job::Write { dir, name, draft, file, credit: WINDOW })
    }

    /// Writes contents to a draft. Ignores contents for a job that has ended.
    pub fn data(&mut self, id: u64, mut data: &[u8], out: &mut Outbox) -> Res<()> {
        let Some(slot) = self.find(id) else { return Ok(()) };
        let Job::Write { file, credit, .. } = &mut slot.job else { return Err(sys::EBADMSG) };
        *credit = credit.checked_sub(data.len()).ok_or(sys::EBADMSG)?;
        let length = data.len();
        while !data.is_empty() {
            match sys::write(file.number(), data) {
                Ok(written) => data = data.get(written..).unwrap_or_default(),
                Err(errno) => {
                    slot.give_up();
                    out.answer(id, &Answer::Done { errno, kind: 0 });
                    return Ok(());
                }
            }
        }
        *credit += length;
        out.answer(id, &Answer::Credit { bytes: length as u32 });
        Ok(())
    }

    /// Renames a complete draft to the file's name.
    pub fn finish(&mut self, id: u64, mode: u32, modified: Option<(i64, u32)>, out: &mut Outbox) {
        let Some(slot) = self.find(id) else { return };
        let Job::Write { dir, name, draft, file, .. } = &mut slot.job else { return };
        let finished = sys::set_mode(file, mode & 0o7777)
            .and_then(|()| match modified {
                Some((seconds, nanoseconds)) => {
                    sys::set_time_at(dir.number(), draft.bytes(), seconds, nanoseconds)
                }
                None => Ok(()),
            })
            .and_then(|()| sys::rename(dir.number(), draft.bytes(), dir.number(), name.bytes()));
        match finished {
            Ok(()) => slot.job = Job::Free,
            Err(_) => slot.give_up(),
        }
        out.answer(id, &Answer::Done { errno: finished.err().unwrap_or(0), kind: 0 });
    }

    /// Cancels a job.
    pub fn forget(&mut self, id: u64) {
        if let Some(slot) = self.find(id) {
            slot.give_up();
        }
    }

    /// Cancels all jobs.
    pub fn forget_all(&mut self) {
        self.slots.iter_mut().for_each(Slot::give_up);
    }

    /// Returns true if there is no job but watches, which wait.
    pub fn is_empty(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot.job, Job::Free | Job::Watch { .. }))
    }

    /// Starts listing a directory.
    pub fn list(&mut self, id: u64, root: &Fd, path: &[u8]) -> Done<()> {
        let dir = open_directory(root, path, Links::Follow)?;
        self.add(id, Job::List { dir })
    }

    /// Creates an inotify instance.
    pub fn watch(&mut self, id: u64, window: u32, out: &mut Outbox) -> Done<()> {
        if self.slots.iter().filter(|slot| matches!(slot.job, Job::Watch { .. })).count() >= MAX_WATCHES {
            return Err(EMFILE.into());
        }
        self.add(id, Job::Watch { instance: sys::inotify()?, left: window.into() })?;
        out.answer(id, &Answer::Opened { size: 0, mode: 0 });
        Ok(())
    }

    /// Watches a directory. Returns true if it is not listed.
    pub fn mark(&mut self, id: u64, watch: u64, (root, path): (&Fd, &[u8]), mask: u32, list: bool, out: &mut Outbox) -> Done<bool> {
        let dir = open_directory(root, path, Links::Refuse)?;
        let Some(Slot { job: Job::Watch { instance, .. }, .. }) = self.find(watch) else { return Err(ENOENT.into()) };
        // A path of the descriptor, so that no other directory is watched.
        let path = texts::Path::new("/proc/self/fd/", dir.number() as u32, "");
        let wd = sys::inotify_add(instance, path.bytes(), mask)?;
        if list {
            self.add(id, Job::List { dir })?;
        }
        out.answer(id, &Answer::Marked { wd });
        Ok(!list)
    }

    /// Ends a watch of an inotify instance.
    pub fn unmark(&mut self, id: u64, wd: i32) {
        if let Some(Slot { job: Job::Watch { instance, .. }, .. }) = self.find(id) {
            sys::inotify_remove(instance, wd);
        }
    }

    /// Returns the inotify instances whose events can be sent.
    pub fn watches(&self, out: &Outbox) -> impl Iterator<Item = i32> {
        let has_space = out.free() > RESERVE;
        self.slots.iter().filter_map(move |slot| match &slot.job {
            Job::Watch { instance, left } if has_space && *left >= EVENTS => Some(instance.number()),
            _ => None,
        })
    }

    /// Starts removing a path. Returns true if it is already removed.
    pub fn remove(&mut self, id: u64, root: &Fd, path: &[u8]) -> Done<bool> {
        let (dir, name) = walk(root, path, Links::KeepLast, Parents::Expect)?;
        match Removal::begin(dir, name)? {
            None => Ok(true),
            Some(removal) => self.add(id, Job::Remove(removal)).map(|()| false),
        }
    }

    /// Returns true if a job can advance without a request.
    pub fn is_busy(&self, out: &Outbox) -> bool {
        let has_space = out.free() > RESERVE;
        self.slots.iter().any(|slot| match &slot.job {
            Job::Free | Job::Write { .. } | Job::Watch { .. } => false,
            Job::Read { left, .. } => *left > 0 && has_space,
            Job::List { .. } => has_space,
            Job::Remove(_) => true,
        })
    }

    /// Advances every job by one step.
    pub fn advance(&mut self, out: &mut Outbox) {
        for slot in &mut self.slots {
            let has_space = out.free() > RESERVE;
            let done = match &mut slot.job {
                Job::Read { file, left } if *left > 0 && has_space => send(slot.id, file, left, out),
                Job::Watch { instance, left } if *left >= EVENTS && has_space => {
                    match send(slot.id, instance, left, out) {
                        Ok(_) | Err(sys::EAGAIN) => continue,
                        Err(errno) => Err(errno),
                    }
                }
                Job::List { dir } if has_space => list(slot.id, dir, out),
                Job::Remove(removal) if has_space => removal.step(),
                _ => continue,
            };
            let errno = match done {
                Ok(false) => continue,
                Ok(true) => 0,
                Err(errno) => errno,
            };
            slot.job = Job::Free;
            out.answer(slot.id, &Answer::Done { errno, kind: 0 });
        }
    }
}

impl Slot {
    fn give_up(&mut self) {
        if let Job::Write { dir, draft, .. } = &self.job {
            let _ = sys::unlink(dir.number(), draft.bytes());
        }
        self.job = Job::Free;
    }
}

/// Opens the directory at a path.
fn open_directory(root: &Fd, path: &[u8], links: Links) -> Res<Fd> {
    for _ in 0..TRIES {
        let (dir, name) = walk(root, path, links, Parents::Expect)?;
        match sys::open_at(dir.number(), name.bytes(), sys::O_DIRECTORY | sys::O_NOFOLLOW, 0) {
            Err(ELOOP) => {}
            // Kernels that are not Linux report the missing target of a link.
            Err(sys::ENOTDIR | ENOENT) if is_link(&dir, &name) => {}
            other => return other,
        }
    }
    Err(ELOOP)
}

fn is_link(dir: &Fd, name: &Name) -> bool {
    sys::stat_at(dir.number(), name.bytes()).is_ok_and(|stat| stat.mode & sys::S_IFMT == sys::S_IFLNK)
}

/// Sends a chunk of a file. Returns true at its end.
fn send(id: u64, file: &Fd, left: &mut u64, out: &mut Outbox) -> Res<bool> {
    let max = MAX_DATA.min(usize::try_from(*left).unwrap_or(MAX_DATA));
    let kind = Answer::Data { data: &[] }.kind();
    let length = out.fill(kind, id, &[], max, |space| sys::read(file.number(), space))?;
    *left -= length as u64;
    Ok(length == 0)
}

/// Sends some entries of a directory. Returns true at its end.
fn list(id: u64, dir: &Fd, out: &mut Outbox) -> Res<bool> {
    let kind = Answer::Entries { entries: &[] }.kind();
    let mut ended = false;
    out.fill(kind, id, &[], MAX_DATA, |space| {
        let mut cursor = Cursor { space, length: 0 };
        while cursor.space.len() - cursor.length > MAX_ENTRY && !ended {
            ended = list_some(dir, &mut cursor)?;
        }
        Ok(cursor.length)
    })?;
    Ok(ended)
}

/// Encodes as many entries as there is space for. Returns true at the end of the directory.
fn list_some(dir: &Fd, cursor: &mut Cursor<'_>) -> Res<bool> {
    let mut buffer = [0; ENTRIES];
    let entries = sys::entries(dir, &mut buffer)?;
    if entries.is_empty() {
        return Ok(true);
    }
    let mut back = None;
    let mut before = None;
    watch::each_entry(entries, |entry| {
        if back.is_some() {
            return;
        }
        if cursor.space.len() - cursor.length < MAX_ENTRY {
            // Read again in the next step.
            back = before;
            return;
        }
        before = Some(entry.next);
        if entry.name == b"." || entry.name == b".." {
            return;
        }
        let Ok(name) = Name::new(entry.name) else { return };
        // Skips an entry that was removed meanwhile.
        let Ok(stat) = sys::stat_at(dir.number(), name.bytes()) else { return };
        let mut target = [0; MAX_PATH];
        let target = match stat.mode & sys::S_IFMT {
            sys::S_IFLNK => sys::read_link(dir.number(), name.bytes(), &mut target).unwrap_or_default(),
            _ => &[],
        };
        let modified = (stat.seconds, stat.nanoseconds);
        let Stat { mode, links, inode, size, .. } = stat;
        Entry { mode, links, inode, size, modified, name: entry.name, target }.encode(cursor);
    });
    if let Some(offset) = back {
        sys::seek(dir, offset)?;
    }
    Ok(false)
}

/// Creates a directory or link.
pub fn make(root: &Fd, path: &[u8], make: Make<'_>) -> Res<()> {
    let (dir, name) = walk(root, path, Links::Refuse, Parents::Make)?;
    let dir = dir.number();
    match make {
        Make::Directory { mode } => match sys::make_directory(dir, name.bytes(), mode & 0o7777) {
            Err(EEXIST) => match sys::stat_at(dir, name.bytes())?.mode & sys::S_IFMT {
                sys::S_IFDIR => Ok(()),
                _ => Err(EEXIST),
            },
            other => other,
        },
        Make::Symlink { target } => {
            let mut text = [0; MAX_PATH + 1];
            let space = text.get_mut(..target.len()).filter(|_| target.len() <= MAX_PATH && !target.contains(&0));
            space.ok_or(sys::EINVAL)?.copy_from_slice(target);
            sys::make_symlink(text.get(..=target.len()).unwrap_or_default(), dir, name.bytes())
        }
        Make::Link { target } => {
            let (from, old) = walk(root, target, Links::Refuse, Parents::Expect)?;
            sys::make_link(from.number(), old.bytes(), dir, name.bytes())
        }
    }
}

/// Renames a file, link or directory. Follows no link at both names.
pub fn rename(root: &Fd, path: &[u8], to: &[u8]) -> Res<()> {
    let (old, old_name) = walk(root, path, Links::KeepLast, Parents::Expect)?;
    let (new, new_name) = walk(root, to, Links::KeepLast, Parents::Expect)?;
    match sys::rename(old.number(), old_name.bytes(), new.number(), new_name.bytes()) {
        // Of a walk, this error means a path that leads outside.
        Err(EXDEV) => Err(ENOTUNIQ),
        other => other,
    }
}

/// Sets permissions and the time of the last change.
pub fn adjust(root: &Fd, path: &[u8], mode: Option<u32>, modified: Option<(i64, u32)>) -> Res<()> {
    let (dir, name) = walk(root, path, Links::Refuse, Parents::Expect)?;
    if let Some(mode) = mode {
        if is_link(&dir, &name) {
            return Err(ELOOP);
        }
        sys::set_mode_at(dir.number(), name.bytes(), mode & 0o7777)?;
    }
    match modified {
        Some((seconds, nanoseconds)) => sys::set_time_at(dir.number(), name.bytes(), seconds, nanoseconds),
        None => Ok(()),
    }
}
