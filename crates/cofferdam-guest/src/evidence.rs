//! Measurements from inside, taken before any command runs there.

use std::collections::BTreeMap;

/// A system call that the isolation must refuse, and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForbiddenCall {
    /// The name of the call.
    pub name: &'static str,
    /// The error number; 0 if the call succeeded.
    pub errno: i32,
}

impl ForbiddenCall {
    /// Returns true if the filter did not refuse the call.
    pub fn was_let_through(&self) -> bool {
        self.errno != 1
    }
}

/// A trial of an operation on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// The path.
    pub path: String,
    /// True if it succeeded: a file was created or opened for writing, or a masked file was read.
    pub worked: bool,
    /// The error number; 0 for none.
    pub errno: i32,
}

/// The space of a file system. All numbers are 0 if it has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// The type, as `statfs` numbers them.
    pub kind: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The free bytes.
    pub bytes_free: u64,
    /// The number of inodes.
    pub files: u64,
    /// The number of free inodes.
    pub files_free: u64,
}

/// A mount that is visible inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub path: String,
    /// The file system's type.
    pub kind: String,
    /// The root of the mount in its file system.
    pub root: String,
    /// The file system's source.
    pub source: String,
    /// True if the mount is read-only.
    pub read_only: bool,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
    /// The space, for a writable mount.
    pub space: Option<Space>,
}

/// The bounds of the enclosure's control groups, as read inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The version of the control groups; 0 if none belong to the enclosure alone.
    pub version: u8,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of swap, in addition to memory.
    pub swap: Option<u64>,
    /// Tasks, including the agent.
    pub tasks: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
}

/// The identity of a file inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its inode number.
    pub inode: u64,
    /// Major and minor number of its device, for a directory.
    pub device: Option<(u32, u32)>,
}

/// The measurements. A value that could not be read is empty, absent or `false`, and counts as not enforced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// The pid of the agent in its own namespace.
    pub pid: u32,
    /// The release of the kernel inside; empty if it could not be read.
    pub kernel: String,
    /// The boot id of that kernel; empty if it could not be read.
    pub boot: String,
    /// The inode number of the workspace.
    pub workspace_inode: Option<u64>,
    /// Major and minor number of the workspace's device.
    pub workspace_device: Option<(u32, u32)>,
    /// The identities of [`Settings::identified`](crate::Settings::identified), in its order. `None` for what could not
    /// be read.
    pub identities: Vec<Option<Identity>>,
    /// Real, effective, saved and file-system user.
    pub uids: Vec<u32>,
    /// Real, effective, saved and file-system group.
    pub gids: Vec<u32>,
    /// The supplementary groups; `None` if they could not be read.
    pub groups: Option<Vec<u32>>,
    /// Effective, permitted, inheritable, bounding and ambient capabilities; `None` if a set could not be read.
    pub capabilities: [Option<u64>; 5],
    /// True if executing a program cannot gain privileges (`no_new_privs`).
    pub no_new_privileges: bool,
    /// True if a system call filter is active.
    pub seccomp_filtered: bool,
    /// The number of filters, if the kernel reports it.
    pub seccomp_filters: Option<u32>,
    /// The trials of forbidden calls.
    pub calls: Vec<ForbiddenCall>,
    /// Identities of the namespaces, by name (`user`, `mnt`, `pid`, `net`, `ipc`, `uts`, `cgroup`).
    pub namespaces: BTreeMap<String, u64>,
    /// The mapping of users: inside, outside, count.
    pub uid_map: Vec<[u64; 3]>,
    /// The mapping of groups.
    pub gid_map: Vec<[u64; 3]>,
    /// All mounts, in the kernel's order; `None` if they could not be read.
    pub mounts: Option<Vec<Mount>>,
    /// Trials of writes that must fail.
    pub writes: Vec<Trial>,
    /// Trials of reads of files that should be masked.
    pub masked: Vec<Trial>,
    /// Sockets of engines and buses that are visible.
    pub sockets: Vec<String>,
    /// Network interfaces except the loopback; `None` if they could not be read.
    pub interfaces: Option<Vec<String>>,
    /// The bounds of the control groups.
    pub bounds: Bounds,
    /// True if a control group counts CPU time.
    pub counts_cpu: bool,
    /// True if a control group counts memory. If it is false, the agent enforces the limit.
    pub counts_memory: bool,
    /// The Landlock version of the kernel; 0 for none.
    pub landlock_abi: u32,
    /// True if guests run under the rules of the settings, and the kernel refuses everything else.
    pub landlock: bool,
    /// True if guests can create files in the workspace; `None` if the trial was not possible.
    pub workspace_writable: Option<bool>,
    /// True if exec tags work, so that every process that an exec starts is found. Without them, a kill may also reach
    /// processes of other execs.
    pub exec_tags: bool,
    /// The number of processors that guests can use at once.
    pub processors: u32,
}

impl Evidence {
    /// Returns the mount of a path.
    pub fn mount_of(&self, path: &str) -> Option<&Mount> {
        let below = |mount: &str| {
            mount == "/" || path == mount || path.strip_prefix(mount).is_some_and(|rest| rest.starts_with('/'))
        };
        // A later mount hides an earlier one at the same path.
        let found = self.mounts.iter().flatten().filter(|mount| below(&mount.path));
        found.fold(None, |best: Option<&Mount>, mount| match best {
            Some(best) if best.path.len() > mount.path.len() => Some(best),
            _ => Some(mount),
        })
    }
}

/// Returns the value of a line of `/proc/self/status`.
pub fn status<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// Returns the release in `/proc/version`.
pub fn kernel(text: &str) -> Option<&str> {
    text.strip_prefix("Linux version ")?.split_whitespace().next()
}

/// Parses numbers separated by spaces.
pub fn numbers<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// Parses the lines of an id map.
pub fn map(text: &str) -> Vec<[u64; 3]> {
    text.lines().filter_map(|line| numbers(line)?.try_into().ok()).collect()
}

/// Returns the interfaces of `/proc/net/dev`, except the loopback.
pub fn interfaces(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    names.filter(|name| *name != "lo").map(str::to_owned).collect()
}

/// Parses the mounts of `mountinfo`. Returns `None` for an invalid line.
pub fn mounts(text: &str) -> Option<Vec<Mount>> {
    text.lines().map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let [_, _, _, root, path, own] = before.split(' ').take(6).collect::<Vec<_>>().try_into().ok()?;
    let [kind, source, all] = after.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let options: Vec<String> = own.split(',').chain(all.split(',')).map(str::to_owned).collect();
    let read_only = options.iter().any(|option| option == "ro");
    Some(Mount {
        path: unescaped(path),
        kind: kind.to_owned(),
        root: unescaped(root),
        source: unescaped(source),
        read_only,
        options,
        space: None,
    })
}

/// Decodes blanks and backslashes, which the kernel writes as three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                whole.push(char::from(byte));
                whole.push_str(&part[3..]);
            }
            None => {
                whole.push('\\');
                whole.push_str(part);
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mounts_are_read_with_all_their_options() {
        let text = "22 28 0:21 / / ro,relatime master:1 - overlay over\\040lay rw,lowerdir=/a\n\
                    23 22 0:22 / /work\\040space rw,nosuid - tmpfs tmpfs rw,size=64k,nr_inodes=9\n";
        let found = mounts(text).unwrap();
        assert_eq!((found[0].path.as_str(), found[0].read_only, found[0].source.as_str()), ("/", true, "over lay"));
        assert_eq!((found[1].path.as_str(), found[1].read_only), ("/work space", false));
        assert!(found[1].options.contains(&"nr_inodes=9".to_owned()));
        let evidence = Evidence { mounts: Some(found), ..Evidence::default() };
        assert_eq!(evidence.mount_of("/work space/a").unwrap().kind, "tmpfs");
        assert_eq!(evidence.mount_of("/work spaces").unwrap().kind, "overlay");
        assert_eq!(mounts("garbage\n"), None);
    }

    #[test]
    fn status_lines_and_maps() {
        let text = "Name:\tx\nUid:\t1\t2\t3\t4\nGroups:\t \nCapEff:\t00ff\n";
        assert_eq!(status(text, "Uid").and_then(numbers::<u32>), Some(vec![1, 2, 3, 4]));
        assert_eq!(status(text, "Groups").and_then(numbers::<u32>), Some(vec![]));
        assert_eq!(status(text, "CapPrm"), None);
        assert_eq!(map("         0     100000      65536\n"), [[0, 100_000, 65_536]]);
        assert_eq!(kernel("Linux version 4.4.0 #1 SMP\n"), Some("4.4.0"));
        assert_eq!(kernel("Windows"), None);
        assert_eq!(interfaces("Inter-| x\n face |\n    lo: 1\n  eth0: 2\n"), ["eth0"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[ -~\n]{0,200}") {
            let _ = (mounts(&text), map(&text), interfaces(&text), status(&text, "Uid"), unescaped(&text));
        }
    }
}
