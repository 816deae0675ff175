//! Control groups of version 1 for callers of Cofferdam.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A group below the one of this process, which is removed on drop.
pub struct CallerGroup(PathBuf);

impl CallerGroup {
    /// Creates a group for processes to count, or prints that the test is skipped.
    pub fn new(test: &str) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = own.lines().find_map(|line| line.split_once(":pids:")).map(|(_, group)| group);
        let Some(group) = group.filter(|_| rustix::process::geteuid().is_root()) else {
            println!("SKIP {test}: root and control groups of version 1 are needed");
            return None;
        };
        let name = format!("{test}-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup/pids").join(group.trim_start_matches('/')).join(name);
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                println!("SKIP {test}: no group can be made at {}: {error}", path.display());
                None
            }
        }
    }

    /// Limits the number of processes.
    pub fn limit(&self, processes: u32) {
        fs::write(self.0.join("pids.max"), processes.to_string()).expect("the group is ours");
    }

    /// Returns a command that enters the group and then becomes the program in its further arguments.
    pub fn enter(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        command
    }

    /// Removes the group. Returns false if it contains a process after five seconds.
    pub fn remove(self) -> bool {
        // The last processes may still be exiting.
        (0..500).any(|_| {
            fs::remove_dir(&self.0).is_ok() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        })
    }
}

impl Drop for CallerGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
