//! Creation of a directory, complete with its owner and permissions, in one step.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, RenameFlags, Stat};
use rustix::io::Errno;

use super::Application;
use super::atomic_replace::{exchange, put_back};
use super::leftovers::random_name;
use crate::change::Change;
use crate::conflict::Cause;
use crate::error::{Result, io};
use crate::fingerprint::Fingerprint;
use crate::tree::{self, Spot};

/// An empty directory or a replaced file with a temporary name, which is removed unless it gets its final one.
struct Aside<'a> {
    parent: &'a OwnedFd,
    name: OsString,
    flags: AtFlags,
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        // The next application tries again.
        let _ = rustix::fs::unlinkat(self.parent, &self.name, self.flags);
    }
}

impl Application<'_> {
    /// Creates a directory, in place of a file if there is one. Its owner may write to it until its contents are
    /// complete. Returns the conflict if another process was faster.
    pub(super) fn create_directory(
        &mut self,
        change: &Change,
        spot: &Spot,
        now: Option<&Stat>,
        mode: u32,
    ) -> Result<Option<Cause>> {
        let failed = || io::<std::io::Error>("create", &change.path);
        let parent = &spot.parent;
        let mut aside = Aside { parent, name: random_name().map_err(failed())?, flags: AtFlags::REMOVEDIR };
        let create = || {
            rustix::fs::mkdirat(parent, &aside.name, Mode::RWXU)?;
            self.chown_name(parent, &aside.name, now)?;
            let directory = tree::subdirectory(parent.as_fd(), &aside.name)?;
            let special = rustix::fs::fstat(&directory)?.st_mode & 0o7000;
            Ok(rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode & 0o777 | 0o700 | special))?)
        };
        create().map_err(failed())?;
        if let Some(now) = now {
            if exchange(parent, &aside.name, &spot.name).map_err(|error| failed()(error.into()))? {
                return self.check_replaced(change, spot, now, &mut aside);
            }
            rustix::fs::unlinkat(parent, &spot.name, AtFlags::empty()).map_err(|error| failed()(error.into()))?;
            self.remember(Some(now));
        }
        let renamed = match rustix::fs::renameat_with(parent, &aside.name, parent, &spot.name, RenameFlags::NOREPLACE) {
            // Some network file systems cannot do this. A directory replaces nothing but an empty directory.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(parent, &aside.name, parent, &spot.name),
            other => other,
        };
        match renamed {
            Ok(()) => Ok(None),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Ok(Some(Cause::Appeared)),
            Err(error) => Err(failed()(error.into())),
        }
    }

    /// Checks the file that was replaced, which has the temporary name now. If the host changed it meanwhile, it gets its
    /// own name back.
    fn check_replaced(
        &mut self,
        change: &Change,
        spot: &Spot,
        expected: &Stat,
        aside: &mut Aside<'_>,
    ) -> Result<Option<Cause>> {
        let found = tree::stat(spot.parent.as_fd(), &aside.name).map_err(io("inspect", &change.path))?;
        let (found, expected_now) = (found.as_ref().map(Fingerprint::of), Fingerprint::of(expected));
        // The new name changed the ctime.
        if found.is_some_and(|found| Fingerprint { ctime: expected_now.ctime, ..found } == expected_now) {
            aside.flags = AtFlags::empty();
            self.remember(Some(expected));
            return Ok(None);
        }
        exchange(&spot.parent, &aside.name, &spot.name)
            .map(drop)
            .or_else(|_| put_back(&spot.parent, &aside.name, &spot.name))
            .map_err(io("restore", &change.path))?;
        Ok(Some(Cause::Changed))
    }
}
