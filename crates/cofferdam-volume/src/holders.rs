//! The users of a volume, for messages. The locks decide, and need no list.
//!
//! The lock file has one line for each user: process id, start time of the process, access, purpose. A line of a
//! process that has ended is ignored, and removed by the next change.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use cofferdam_linux::loop_device::Access;
use cofferdam_linux::process::Life;

/// Maximum size of the list.
const MAX_LIST: u64 = 256 << 10;
/// Maximum length of a purpose.
const MAX_PURPOSE: usize = 100;

/// A user of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Start time of the process, in the kernel's ticks.
    start: u64,
    /// Access to the volume.
    pub access: Access,
    /// The purpose, such as the id of a sandbox.
    pub purpose: String,
}

impl Holder {
    /// Returns this process as a user.
    pub(crate) fn new(access: Access, purpose: &str) -> Self {
        let pid = std::process::id();
        let purpose = purpose.chars().filter(|c| !c.is_control()).take(MAX_PURPOSE).collect();
        Self { pid, start: Life::of(pid).map_or(0, |life| life.start), access, purpose }
    }

    fn line(&self) -> String {
        let access = if self.access == Access::ReadWrite { "rw" } else { "ro" };
        format!("{} {} {access} {}\n", self.pid, self.start, self.purpose)
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(4, ' ');
        let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let access = match parts.next()? {
            "rw" => Access::ReadWrite,
            "ro" => Access::ReadOnly,
            _ => return None,
        };
        Some(Self { pid, start, access, purpose: parts.next()?.to_owned() })
    }

    fn is_alive(&self) -> bool {
        !Life::is_over(self.pid, self.start)
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verb = if self.access == Access::ReadWrite { "writes to it" } else { "reads it" };
        write!(f, "process {} ({}), which {verb}", self.pid, self.purpose)
    }
}

/// Returns the living users in a list.
pub(crate) fn read(list: &File) -> io::Result<Vec<Holder>> {
    let mut text = String::new();
    let mut list = list;
    list.seek(SeekFrom::Start(0))?;
    list.take(MAX_LIST).read_to_string(&mut text)?;
    Ok(text.lines().filter_map(Holder::parse).filter(Holder::is_alive).collect())
}

/// Adds a user, and removes those that have ended. The caller holds the lock of the store.
pub(crate) fn add(list: &File, holder: &Holder) -> io::Result<()> {
    let mut holders = read(list)?;
    holders.push(holder.clone());
    write(list, &holders)
}

/// Removes one entry of a user. The caller holds the lock of the store.
pub(crate) fn remove(list: &File, holder: &Holder) -> io::Result<()> {
    let mut holders = read(list)?;
    if let Some(at) = holders.iter().position(|found| found == holder) {
        holders.remove(at);
    }
    write(list, &holders)
}

fn write(mut list: &File, holders: &[Holder]) -> io::Result<()> {
    let text: String = holders.iter().map(Holder::line).collect();
    if text.len() as u64 > MAX_LIST {
        return Err(io::Error::other("the volume has too many users"));
    }
    list.set_len(0)?;
    list.seek(SeekFrom::Start(0))?;
    list.write_all(text.as_bytes())
}

/// Describes users for a message.
pub(crate) fn describe(holders: &[Holder]) -> String {
    const MAX: usize = 3;
    let shown: Vec<String> = holders.iter().take(MAX).map(ToString::to_string).collect();
    match (holders.len(), holders.len().saturating_sub(MAX)) {
        (0, _) => "a process that is ending, or one of another PID namespace".to_owned(),
        (_, 0) => shown.join(" and "),
        (_, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_users_are_listed_and_others_are_dropped() {
        let list = tempfile::tempfile().unwrap();
        let one = Holder::new(Access::ReadOnly, "sandbox 1\n2 2 rw forged");
        assert!(one.start > 0 && one.is_alive());
        let ended = Holder { start: one.start + 1, ..one.clone() };
        add(&list, &ended).unwrap();
        add(&list, &one).unwrap();
        add(&list, &one).unwrap();
        assert_eq!(read(&list).unwrap(), [one.clone(), one.clone()]);
        remove(&list, &one).unwrap();
        assert_eq!(read(&list).unwrap(), std::slice::from_ref(&one));
        let text = describe(&read(&list).unwrap());
        assert_eq!(text, format!("process {} (sandbox 12 2 rw forged), which reads it", one.pid));
        (&list).write_all(b"rubbish\n1 x rw y\n").unwrap();
        assert_eq!(read(&list).unwrap().len(), 1);
    }

    #[test]
    fn a_user_that_was_killed_but_not_reaped_has_ended() {
        let list = tempfile::tempfile().unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let start = Life::of(child.id()).unwrap().start;
        let user = Holder { pid: child.id(), start, access: Access::ReadWrite, purpose: "sandbox".to_owned() };
        add(&list, &user).unwrap();
        assert_eq!(read(&list).unwrap(), [user]);
        child.kill().unwrap();
        while !Life::of(child.id()).unwrap().over {
            std::thread::yield_now();
        }
        assert_eq!(read(&list).unwrap(), [], "a zombie");
        child.wait().unwrap();
    }
}
