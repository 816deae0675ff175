//! What was measured from inside, before anything of a request ran there.

use std::collections::BTreeMap;

/// A system call that a wall must refuse, and what it answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForbiddenCall {
    /// The call.
    pub name: &'static str,
    /// The system's error number; 0 when it was carried out.
    pub errno: i32,
}

impl ForbiddenCall {
    /// Whether something else than a filter, or nothing, refused it.
    pub fn was_let_through(&self) -> bool {
        self.errno != 1
    }
}

/// Something that was tried with a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// The path.
    pub path: String,
    /// Whether it worked: a file was made or opened for writing, a masked file was read.
    pub worked: bool,
    /// The system's error number, 0 for none.
    pub errno: i32,
}

/// Room of a file system. A file system without a bound says 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Its kind, as `statfs` numbers them.
    pub kind: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes that are free.
    pub bytes_free: u64,
    /// Files.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
}

/// One mount that is seen inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it is.
    pub path: String,
    /// The file system's type.
    pub kind: String,
    /// What it shows of the file system.
    pub root: String,
    /// The file system's source.
    pub source: String,
    /// Whether nothing can be written through it.
    pub read_only: bool,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
    /// Its room, for one that can be written to.
    pub space: Option<Space>,
}

/// What the enclosure's control groups bound, as read inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Their version; 0 where there are none that are the enclosure's own.
    pub version: u8,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Bytes of swap, besides memory.
    pub swap: Option<u64>,
    /// Tasks, the agent counted.
    pub tasks: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
}

/// What was measured. What could not be read is empty, absent or `false`, and counts as not enforced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    /// The agent's process, as it sees itself.
    pub pid: u32,
    /// The release of the kernel that answers inside; empty when it could not be read.
    pub kernel: String,
    /// What that kernel calls itself from its start to its end; empty when it could not be read.
    pub boot: String,
    /// The number of the workspace's directory.
    pub workspace_inode: Option<u64>,
    /// Major and minor number of the device that holds it.
    pub workspace_device: Option<(u32, u32)>,
    /// Real, effective, saved and file-system user.
    pub uids: Vec<u32>,
    /// The same for groups.
    pub gids: Vec<u32>,
    /// All further groups; `None` when they could not be read.
    pub groups: Option<Vec<u32>>,
    /// Effective, permitted, inheritable, bounding and ambient capabilities; `None` when a set could not be read.
    pub capabilities: [Option<u64>; 5],
    /// Whether privileges cannot be gained by executing.
    pub no_new_privileges: bool,
    /// Whether a filter of system calls is on, and how many if the kernel says.
    pub seccomp_filtered: bool,
    /// How many filters there are, if the kernel says.
    pub seccomp_filters: Option<u32>,
    /// Calls that were tried.
    pub calls: Vec<ForbiddenCall>,
    /// Identities of the namespaces, by name (`user`, `mnt`, `pid`, `net`, `ipc`, `uts`, `cgroup`).
    pub namespaces: BTreeMap<String, u64>,
    /// How users are mapped to those outside: inside, outside, count.
    pub uid_map: Vec<[u64; 3]>,
    /// How groups are.
    pub gid_map: Vec<[u64; 3]>,
    /// All mounts, in the kernel's order; `None` when they could not be read.
    pub mounts: Option<Vec<Mount>>,
    /// Attempts to write where nobody should.
    pub writes: Vec<Trial>,
    /// Attempts to read what should be masked.
    pub masked: Vec<Trial>,
    /// Sockets of engines and buses that can be seen.
    pub sockets: Vec<String>,
    /// Network interfaces but the loopback; `None` when they could not be read.
    pub interfaces: Option<Vec<String>>,
    /// What control groups bound.
    pub bounds: Bounds,
    /// Whether CPU time is counted by a control group.
    pub counts_cpu: bool,
    /// Whether memory is counted by a control group; where it is not, the agent watches.
    pub counts_memory: bool,
    /// The kernel's version of Landlock; 0 for none.
    pub landlock_abi: u32,
    /// Whether guests run under the rules of the settings, and the kernel refuses what no rule allows.
    pub landlock: bool,
    /// Whether guests can make files in the workspace; `None` where that could not be tried.
    pub workspace_writable: Option<bool>,
    /// Whether what an exec starts is found again wherever it goes. Where it is not, a kill reaches rather too much.
    pub marks: bool,
    /// Processors that can be used at once.
    pub processors: u32,
}

impl Evidence {
    /// Whether execs that run at the same time are charged with no CPU time that is known to be another's.
    #[must_use]
    pub fn tells_execs_apart(&self) -> bool {
        self.counts_cpu && self.marks
    }

    /// The mount that a path lies on.
    pub fn mount_of(&self, path: &str) -> Option<&Mount> {
        let below = |mount: &str| {
            mount == "/" || path == mount || path.strip_prefix(mount).is_some_and(|rest| rest.starts_with('/'))
        };
        // The last one covers those before it.
        let found = self.mounts.iter().flatten().filter(|mount| below(&mount.path));
        found.fold(None, |best: Option<&Mount>, mount| match best {
            Some(best) if best.path.len() > mount.path.len() => Some(best),
            _ => Some(mount),
        })
    }
}

/// A line of `/proc/self/status`.
pub fn status<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// The release in `/proc/version`.
pub fn kernel(text: &str) -> Option<&str> {
    text.strip_prefix("Linux version ")?.split_whitespace().next()
}

/// Numbers with spaces between.
pub fn numbers<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// The lines of an id map.
pub fn map(text: &str) -> Vec<[u64; 3]> {
    text.lines().filter_map(|line| numbers(line)?.try_into().ok()).collect()
}

/// The interfaces of `/proc/net/dev`.
pub fn interfaces(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    names.filter(|name| *name != "lo").map(str::to_owned).collect()
}

/// The mounts of `mountinfo`; `None` if a line is not as it should be.
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

/// The kernel writes blanks and backslashes as three octal digits.
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
        fn whatever_stands_there_is_read_or_not(text in "[ -~\n]{0,200}") {
            let _ = (mounts(&text), map(&text), interfaces(&text), status(&text, "Uid"), unescaped(&text));
        }
    }
}
