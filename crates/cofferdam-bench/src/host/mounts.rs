//! Mounts in the namespaces of processes.

use std::collections::BTreeSet;

use super::read;

/// Returns the number of mounts in a process's own namespace.
pub fn count(pid: u32) -> usize {
    read(&format!("/proc/{pid}/mountinfo")).lines().count()
}

/// Returns the number of distinct tmpfs mounts in the namespaces of these processes.
pub fn tmpfs(pids: &[u32]) -> usize {
    let mut devices = BTreeSet::new();
    for pid in pids {
        devices.extend(read(&format!("/proc/{pid}/mountinfo")).lines().filter_map(tmpfs_device).map(str::to_owned));
    }
    devices.len()
}

/// Returns the device of a line of `mountinfo`, if it describes a tmpfs.
fn tmpfs_device(line: &str) -> Option<&str> {
    let (front, back) = line.split_once(" - ")?;
    (back.split(' ').next() == Some("tmpfs")).then(|| front.split(' ').nth(2))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tmpfs_is_known_by_its_device() {
        let line = |kind: &str| format!("36 35 0:98 / /tmp rw,noatime master:1 - {kind} none rw,size=64k");
        assert_eq!(tmpfs_device(&line("tmpfs")), Some("0:98"));
        assert_eq!(tmpfs_device(&line("ext4")), None);
        assert_eq!(tmpfs_device("broken"), None);
    }
}
