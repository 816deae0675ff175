//! Users that run the tests.

use std::fs::{File, Permissions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use crate::temporary_directory::{self, Temporary};

/// The ordinary user's id. No distribution assigns it.
pub const ORDINARY: u32 = 65_533;
/// The search path of an ordinary user.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A user, with a directory of its own if it is not the current one.
#[derive(Debug)]
pub struct User {
    home: Option<PathBuf>,
}

impl User {
    /// Returns the user that started this program.
    pub fn current() -> Self {
        Self { home: None }
    }

    /// Creates a user without privileges. Requires root.
    pub fn ordinary() -> Result<Self> {
        // The name does not contain "cofferdam": tests search for directories that do, to find leftovers.
        let home = temporary_directory::make(Path::new("/tmp"), "xtask-user-", 0o700, &[0, ORDINARY])?;
        let user = Self { home: Some(home.clone()) };
        for directory in [home.clone(), home.join("tmp")] {
            if directory != home {
                std::fs::create_dir(&directory)?;
            }
            std::fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
            std::os::unix::fs::chown(&directory, Some(ORDINARY), Some(ORDINARY))?;
        }
        Ok(user)
    }

    /// Returns a name for display.
    pub fn name(&self) -> String {
        match (&self.home, crate::command::is_root()) {
            (Some(_), _) => format!("an ordinary user (uid {ORDINARY})"),
            (None, true) => "root".to_owned(),
            (None, false) => "the current user".to_owned(),
        }
    }

    /// Returns true if it is the user that started this program.
    pub fn is_current(&self) -> bool {
        self.home.is_none()
    }

    /// Returns a command of this user. Setting the user id also drops root's supplementary groups. Signals have their
    /// default actions, even if this program was started in the background, where a shell ignores some.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal").arg(program);
        if let Some(home) = &self.home {
            command.uid(ORDINARY).gid(ORDINARY).env_clear();
            command.env("PATH", PATH).env("LANG", "C.UTF-8").env("HOME", home).env("TMPDIR", home.join("tmp"));
            for name in ["RUST_BACKTRACE", "RUST_TEST_THREADS", "TERM"] {
                command.envs(std::env::var_os(name).map(|value| (name, value)));
            }
        }
        command
    }

    /// Creates an empty directory of this user, which is removed on drop.
    pub fn directory(&self, prefix: &str) -> Result<Temporary> {
        let parent = self.home.as_ref().map_or_else(std::env::temp_dir, |home| home.join("tmp"));
        let directory = Temporary::create(&parent, prefix, 0o700)?;
        if self.home.is_some() {
            std::os::unix::fs::chown(directory.path(), Some(ORDINARY), Some(ORDINARY))?;
        }
        Ok(directory)
    }

    /// Creates an unnamed file for output.
    pub fn log(&self) -> Result<Log> {
        /// Suites that run at the same time use the same name.
        static CREATING: Mutex<()> = Mutex::new(());
        let _creating = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
        let me = Path::new("/proc/self").metadata()?.uid();
        let directory = temporary_directory::make(&std::env::temp_dir(), "xtask-log-", 0o700, &[me])?;
        let file = File::options().read(true).write(true).create_new(true).open(directory.join("log"))?;
        std::fs::remove_dir_all(&directory)?;
        Ok(Log(file))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(home) = &self.home
            && let Err(error) = std::fs::remove_dir_all(home)
        {
            println!("cannot remove {}: {error}", home.display());
        }
    }
}

/// The output of one command.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Returns an end to write to.
    pub fn writer(&self) -> Result<Stdio> {
        Ok(Stdio::from(self.0.try_clone()?))
    }

    /// Returns everything written.
    pub fn read(mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.0.seek(SeekFrom::Start(0))?;
        self.0.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
