//! Firecracker in a jail: started by its own jailer, as an unprivileged user, with a root directory of its own.
//!
//! ```text
//! BASE/PROGRAM/ID/root/          the root directory of Firecracker, owned by its user
//!                     api.sock   its API
//!                     PROGRAM    a copy of it
//! GROUPS/PARENT/ID               its control groups
//! ```
//!
//! The name of a jail identifies its owner, so that jails of killed supervisors can be distinguished from those in use.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_linux::child::Start;

use super::ids::InstanceId;
use super::owner::Owner;
use super::process::{API_SOCKET, Firecracker, Launch, Remains, Running, Tie, View, os};
use super::version;

/// The version of the control group interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupVersion {
    /// One hierarchy for each controller.
    V1,
    /// One unified hierarchy.
    V2,
}

/// The control groups of a jailed Firecracker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// Version of the interface.
    pub version: GroupVersion,
    /// Parent group, relative to the root of the hierarchy.
    pub parent: PathBuf,
    /// Settings, as file and value: `memory.max` and `536870912`. At least one.
    pub settings: Vec<(String, String)>,
}

/// A configuration of the jailer. Needs root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jail {
    /// The jailer, of the same version as Firecracker.
    pub jailer: PathBuf,
    /// User of Firecracker; not 0.
    pub user: u32,
    /// Group of Firecracker; not 0.
    pub group: u32,
    /// Absolute path of the directory of jails. Only root may write there.
    pub base: PathBuf,
    /// Its control groups, if the jailer is to create some.
    pub groups: Option<Groups>,
    /// Maximum size of a file that it writes, in bytes.
    pub file_size: Option<u64>,
    /// Maximum number of open descriptors.
    pub open_files: u64,
}

/// Paths of a jail.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    top: PathBuf,
    root: PathBuf,
}

impl Jail {
    /// Starts Firecracker in a new jail.
    pub async fn start(&self, launch: &Launch) -> Result<Firecracker> {
        self.check()?;
        let program = canonical(&launch.program)?;
        let ours = version::of_program("create", &program, launch.ready).await?;
        let jailers = version::of_program("create", &self.jailer, launch.ready).await?;
        if ours != jailers {
            let message = format!("the jailer has version {jailers} and Firecracker {ours}");
            return Err(
                Error::new(ErrorKind::Unavailable, "create", message).with_remedy("install both from the same release")
            );
        }
        let id = Owner::this().map_err(|error| os("name a jail", &self.base, error))?.name()?;
        let layout = self.layout(&program, &id)?;
        let groups = self.group_paths(&program, &id)?;
        let remains = Remains { directory: Some(layout.top), groups, enclosure: None };
        let mut command = Command::new(&self.jailer);
        command.args(self.arguments(&program, &id)).current_dir("/");
        let view = View { outside: layout.root, inside: "/".into(), owner: Some((self.user, self.group)), tree: None };
        launch.begin((command, Start::default()), Tie::Namespace, view, Running::new(remains), &id).await
    }

    /// Removes the jails of owners that are gone, and returns their number. Their processes died with them.
    pub fn sweep(&self, program: &Path) -> Result<usize> {
        let program = canonical(program)?;
        let jails = self.base.join(file_name(&program)?);
        let entries = match fs::read_dir(&jails) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            other => other.map_err(|error| os("list jails", &jails, error))?,
        };
        let here = Owner::this().map_err(|error| os("list jails", &jails, error))?;
        let mut swept = 0;
        for entry in entries {
            let name = entry.map_err(|error| os("list jails", &jails, error))?.file_name();
            let Some(name) = name.to_str().filter(|name| Owner::of(name).is_some_and(|owner| owner.is_dead(&here)))
            else {
                continue;
            };
            let id = InstanceId::new(name)?;
            let groups = self.group_paths(&program, &id)?;
            let remains = Remains { directory: Some(jails.join(name)), groups, enclosure: None };
            remains.remove(Duration::from_secs(1)).map_err(|error| os("remove a jail", &jails.join(name), error))?;
            swept += 1;
        }
        Ok(swept)
    }

    fn check(&self) -> Result<()> {
        let invalid = |message: &str| Err(Error::invalid("create", message));
        if self.user == 0 || self.group == 0 {
            return invalid("a jailed Firecracker cannot run as root: name another user and group");
        }
        if !self.base.is_absolute() || !self.jailer.is_absolute() {
            return invalid("the paths of the jailer and of the directory of jails must be absolute");
        }
        let Some(groups) = &self.groups else { return Ok(()) };
        let plain = |part| matches!(part, Component::Normal(_));
        if groups.parent.as_os_str().is_empty() || !groups.parent.components().all(plain) {
            return invalid("the parent of control groups must be a relative path without '..'");
        }
        if groups.settings.is_empty() || !groups.settings.iter().all(|(file, value)| is_setting(file, value)) {
            return invalid("a setting of a control group must be a file such as 'memory.max' and a value on one line");
        }
        Ok(())
    }

    fn layout(&self, program: &Path, id: &InstanceId) -> Result<Layout> {
        let top = self.base.join(file_name(program)?).join(id.as_str());
        Ok(Layout { root: top.join("root"), top })
    }

    fn arguments(&self, program: &Path, id: &InstanceId) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        option("--id", id.as_str().into());
        option("--exec-file", program.into());
        option("--uid", self.user.to_string().into());
        option("--gid", self.group.to_string().into());
        option("--chroot-base-dir", self.base.clone().into());
        if let Some(groups) = &self.groups {
            let version = match groups.version {
                GroupVersion::V1 => "1",
                GroupVersion::V2 => "2",
            };
            option("--cgroup-version", version.into());
            option("--parent-cgroup", groups.parent.clone().into());
            for (file, value) in &groups.settings {
                option("--cgroup", format!("{file}={value}").into());
            }
        }
        if let Some(bytes) = self.file_size {
            option("--resource-limit", format!("fsize={bytes}").into());
        }
        option("--resource-limit", format!("no-file={}", self.open_files).into());
        arguments.extend(["--new-pid-ns", "--", "--api-sock"].map(Into::into));
        arguments.push(format!("/{API_SOCKET}").into());
        arguments
    }

    /// Returns the control groups that the jailer creates.
    fn group_paths(&self, program: &Path, id: &InstanceId) -> Result<Vec<PathBuf>> {
        let Some(groups) = &self.groups else { return Ok(Vec::new()) };
        let mounts = fs::read_to_string("/proc/self/mounts");
        let mounts = mounts.map_err(|error| os("list control groups", program, error))?;
        Ok(hierarchies(&mounts, groups).into_iter().map(|tree| tree.join(&groups.parent).join(id.as_str())).collect())
    }
}

/// Returns the mount points of the hierarchies that settings are written in.
fn hierarchies(mounts: &str, groups: &Groups) -> Vec<PathBuf> {
    let controllers: Vec<&str> = groups.settings.iter().filter_map(|(file, _)| file.split('.').next()).collect();
    let mut found: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, mount, kind, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let wanted = match groups.version {
                GroupVersion::V1 => kind == "cgroup" && options.split(',').any(|option| controllers.contains(&option)),
                GroupVersion::V2 => kind == "cgroup2",
            };
            wanted.then(|| mount.into())
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn is_setting(file: &str, value: &str) -> bool {
    let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    file.contains('.')
        && !file.starts_with('.')
        && file.chars().all(named)
        && !value.is_empty()
        && !value.contains(|c: char| c.is_control() || c == '=')
}

/// Returns the canonical path, from which the jailer takes the program's name.
fn canonical(program: &Path) -> Result<PathBuf> {
    fs::canonicalize(program).map_err(|error| os("find Firecracker", program, error))
}

fn file_name(program: &Path) -> Result<&std::ffi::OsStr> {
    program.file_name().ok_or_else(|| Error::invalid("create", "Firecracker's path has no file name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jail() -> Jail {
        Jail {
            jailer: "/opt/jailer".into(),
            user: 4000,
            group: 4001,
            base: "/srv/jails".into(),
            groups: Some(Groups {
                version: GroupVersion::V2,
                parent: "cofferdam/vm".into(),
                settings: vec![("memory.max".to_owned(), "1024".to_owned())],
            }),
            file_size: Some(1 << 30),
            open_files: 256,
        }
    }

    /// Promise (Virtual machines): The jailer receives the root, the user, the control groups and the limits of a VM.
    #[test]
    fn jailer_arguments_are_complete() {
        let id = InstanceId::new("vm-1").unwrap();
        let arguments = jail().arguments(Path::new("/opt/firecracker"), &id).join(" ".as_ref());
        assert_eq!(
            arguments.to_str().unwrap(),
            "--id vm-1 --exec-file /opt/firecracker --uid 4000 --gid 4001 --chroot-base-dir /srv/jails \
             --cgroup-version 2 --parent-cgroup cofferdam/vm --cgroup memory.max=1024 \
             --resource-limit fsize=1073741824 --resource-limit no-file=256 --new-pid-ns -- --api-sock /api.sock"
        );
        let layout = jail().layout(Path::new("/opt/firecracker"), &id).unwrap();
        assert_eq!(layout.root, Path::new("/srv/jails/firecracker/vm-1/root"));
    }

    #[test]
    fn jailer_that_cannot_isolate_is_refused() {
        jail().check().expect("a valid jail");
        let changes: [fn(&mut Jail); 7] = [
            |jail| jail.user = 0,
            |jail| jail.group = 0,
            |jail| jail.base = "jails".into(),
            |jail| jail.groups.as_mut().unwrap().parent = "/root".into(),
            |jail| jail.groups.as_mut().unwrap().parent = "a/../../b".into(),
            |jail| jail.groups.as_mut().unwrap().settings.clear(),
            |jail| jail.groups.as_mut().unwrap().settings[0].1.push('\n'),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut jail = jail();
            change(&mut jail);
            assert!(jail.check().is_err(), "change {number}");
        }
        for (file, value) in [("../x.y", "1"), ("memory", "1"), ("memory.max", ""), ("memory.max", "1=2"), (".x", "1")]
        {
            assert!(!is_setting(file, value), "{file}={value}");
        }
    }

    #[test]
    fn the_trees_are_those_with_the_controllers() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n";
        let mut groups = jail().groups.unwrap();
        assert_eq!(hierarchies(mounts, &groups), [Path::new("/sys/fs/cgroup/unified")]);
        groups.version = GroupVersion::V1;
        groups.settings.push(("cpu.shares".to_owned(), "1".to_owned()));
        groups.settings.push(("cpuacct.usage".to_owned(), "0".to_owned()));
        assert_eq!(hierarchies(mounts, &groups), [Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup/memory")]);
    }
}
