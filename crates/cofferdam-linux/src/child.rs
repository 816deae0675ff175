//! Start of long-running programs: they get only the intended descriptors, and do not outlive this process.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use crate::landlock::Ruleset;
use crate::namespace::{self, kind};
use crate::process::{self, Resource, die_with_parent};
use crate::relay::{self, OpenedFiles};
use crate::seccomp::{self, Arch, compile_lone};

/// The error number by which a child reports that it may create no namespaces. Executing a program never fails with it.
const NO_NAMESPACES: i32 = libc::ENONET;

/// Settings to start a program, besides its [`Command`].
#[derive(Debug, Default)]
pub struct Start {
    /// Descriptors that it keeps, under the same numbers. They are closed here once it runs.
    pub keep: Vec<OwnedFd>,
    /// The user and group that it runs as. `None` means the caller's.
    pub user: Option<(u32, u32)>,
    /// Landlock rules that apply to it.
    pub rules: Option<Ruleset>,
    /// Its own network and System V namespaces.
    pub seclusion: Seclusion,
    /// Files of control groups that it joins before it runs, as [`Group::entrances`] returns them.
    ///
    ///
    /// [`Group::entrances`]: crate::cgroup::Group::entrances
    pub groups: Vec<OwnedFd>,
    /// Resource limits. A limit above the current one changes nothing.
    pub limits: Vec<(Resource, u64)>,
    /// The size of its memory pages.
    pub pages: Pages,
    /// The system calls that it may make.
    pub calls: Calls,
    /// For [`start_in_namespace`]: files that it finds under names, in its own mount namespace.
    pub held_files: Option<HeldFiles>,
}

/// A file system that only a program in a namespace sees; and the namespace's init, which keeps
/// [`Start::keep`] open instead of the program: the program can open these files again by their numbers, even if it
/// closes them.
///
/// Nothing of it has a name outside, so it disappears with the namespace and this process's descriptors.
#[derive(Debug)]
pub struct HeldFiles {
    /// A detached mount of the file system.
    pub tree: OwnedFd,
    /// The absolute path of the mount point.
    pub at: CString,
    /// The absolute path of the directory with the descriptors.
    pub shown: CString,
    /// The user and group of the init, which may open the descriptors.
    pub user: (u32, u32),
    /// The init's program, readable by all users. It waits until it has no children, and exits with the status of the
    /// last one.
    pub init: OwnedFd,
}

/// The size of memory pages that the kernel gives a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pages {
    /// The host's setting. If the host always gives huge pages, a program may use some megabytes that it never needs.
    #[default]
    Any,
    /// Never huge pages, for programs with many instances.
    Small,
}

/// The system calls that a program may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// All system calls.
    #[default]
    Any,
    /// Those of [`compile_lone`]'s list, and signals only to itself.
    Lone,
}

/// The reach of a program on the host, besides files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seclusion {
    /// Everything that its user can reach.
    #[default]
    None,
    /// No network and no System V objects. Without root this needs a user namespace. If the host grants none to its
    /// users, the program is not started.
    Apart,
}

/// The process whose end kills the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// The program has a parent-death signal itself.
    Own,
    /// The init of a pid namespace around it has one.
    Namespace,
}

struct Job {
    command: Command,
    start: Start,
    lifetime: Lifetime,
    answer: Sender<io::Result<Child>>,
}

/// Starts a program that is killed when this process ends in any way.
///
///
/// The kernel's parent-death signal refers to the thread that started the program. So one thread starts all programs,
/// and lives as long as the process. The program is in its own process group, gains no privileges, and writes no core
/// file.
///
///
/// A program that changes its user loses the signal: see [`start_in_namespace`].
pub fn start(command: Command, start: Start) -> io::Result<Child> {
    request_start(command, start, Lifetime::Own)
}

/// Starts a program as [`start`] does, in its own pid namespace. The program and all its children are killed when this
/// process ends, whatever the program does. Requires root.
///
///
/// The returned child ends once all processes in the namespace have ended, with the status of the program (with a
/// [`HeldFiles`], of the last process). Killing it kills them all, shortly after. To wait for that, use [`init_of`].
pub fn start_in_namespace(command: Command, start: Start) -> io::Result<Child> {
    request_start(command, start, Lifetime::Namespace)
}

/// Returns the init of the namespace of a child of [`start_in_namespace`], by the child's process id. When the init is
/// killed, the child ends after all other processes in the namespace. Returns `None` if the kernel does not show it.
pub fn init_of(child: u32) -> Option<OwnedFd> {
    relay::init_of(child)
}

/// Returns true if a program was not started because this host grants no namespaces, which [`Seclusion::Apart`]
/// requires.
pub fn lacks_namespaces(error: &io::Error) -> bool {
    error.raw_os_error() == Some(NO_NAMESPACES)
}

fn request_start(command: Command, start: Start, lifetime: Lifetime) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Job>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts programs has ended");
    let starter = match STARTER.get() {
        Some(starter) => starter,
        None => {
            let (jobs, waiting) = channel::<Job>();
            std::thread::Builder::new().name("cofferdam-start".to_owned()).spawn(move || {
                for job in waiting {
                    // If the requester is gone, end the started program.
                    if let Err(unheard) = job.answer.send(spawn(job.command, job.start, job.lifetime))
                        && let Ok(mut child) = unheard.0
                    {
                        let _ = child.kill();
                        let _ = child.wait();
                    }
                }
            })?;
            // If two threads come first, one of the channels gets no requests.
            STARTER.get_or_init(|| jobs)
        }
    };
    let (answer, answered) = channel();
    starter.send(Job { command, start, lifetime, answer }).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

fn spawn(mut command: Command, start: Start, lifetime: Lifetime) -> io::Result<Child> {
    let Start { keep, user, mut rules, seclusion, groups, limits, pages, calls, held_files } = start;
    let mut filter = (calls == Calls::Lone).then(|| compile_lone(Arch::native()));
    let numbers: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    let mut opened_files = held_files.map(|held_files| OpenedFiles::new(held_files, &numbers));
    if opened_files.is_some() && lifetime != Lifetime::Namespace {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "held files require a program in a namespace"));
    }
    let parent = std::process::id();
    command.process_group(0);
    let prepare = move || {
        // This is first, so that all resource use is counted in the group.
        groups.iter().try_for_each(|group| rustix::io::write(group, b"0").map(drop))?;
        if seclusion == Seclusion::Apart {
            seclude().map_err(|_| io::Error::from_raw_os_error(NO_NAMESPACES))?;
        }
        if let Some((uid, gid)) = user {
            process::become_user(uid, gid)?;
        }
        process::set_limit(Resource::CORE, 0)?;
        process::set_no_new_privileges()?;
        if pages == Pages::Small {
            // A kernel without huge pages never gives them.
            let _ = rustix::thread::disable_transparent_huge_pages(true);
        }
        if let Some(rules) = rules.take() {
            rules.enforce()?;
        }
        // This follows the change of the user, which clears it.
        die_with_parent()?;
        if rustix::process::getppid().is_none_or(|now| now.as_raw_nonzero().get().cast_unsigned() != parent) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if lifetime == Lifetime::Namespace {
            relay::enter_namespace(opened_files.as_mut())?;
        }
        // This is late, because the copies of this process's descriptors may exceed a limit.
        limits.iter().try_for_each(|(resource, max)| process::cap_limit(*resource, *max))?;
        // Descriptors that this process inherited are open in every program unless they are marked close-on-exec.
        process::keep_none_on_exec()?;
        // Held files belong to the init.
        if opened_files.is_none() {
            numbers.iter().try_for_each(|fd| process::keep_on_exec(*fd))?;
        }
        let Some(filter) = &mut filter else { return Ok(()) };
        filter.belongs_to(std::process::id());
        seccomp::install(filter)
    };
    // SAFETY: the code between fork and exec makes only system calls, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

fn seclude() -> io::Result<()> {
    const APART: u64 = kind::NET | kind::IPC | kind::UTS;
    if rustix::process::geteuid().is_root() {
        return namespace::unshare(APART);
    }
    namespace::unshare(APART | kind::USER)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::process::Stdio;

    use super::*;
    use crate::cgroup::{Bounds, Family, Owner, Share};
    use crate::landlock::access;

    #[test]
    fn a_program_has_its_descriptors_and_no_others() {
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (other, inherited) = std::os::unix::net::UnixStream::pair().unwrap();
        // Like a descriptor that a shell left open for this process.
        process::keep_on_exec(inherited.as_raw_fd()).unwrap();
        let number = theirs.as_raw_fd();
        let mut command = Command::new("/bin/sh");
        let closed = |fd: RawFd| format!("test ! -e /proc/self/fd/{fd}");
        let script =
            format!("echo hello >&{number}; {} && {}", closed(other.as_raw_fd()), closed(inherited.as_raw_fd()));
        command.args(["-c", &script]).env_clear().stdin(Stdio::null());
        let mut child = start(command, Start { keep: vec![theirs.into()], ..Start::default() }).unwrap();
        let mut output = String::new();
        ours.read_to_string(&mut output).unwrap();
        assert_eq!(output, "hello\n");
        assert!(child.wait().unwrap().success());
    }

    fn outcome(script: &str, start_with: Start) -> bool {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
        start(command, start_with).unwrap().wait().unwrap().success()
    }

    #[test]
    fn landlock_rules_bound_a_program() {
        let abi = crate::landlock::abi();
        if abi == 0 {
            println!("SKIP landlock_rules_bound_a_program: no Landlock here");
            return;
        }
        let rules = Ruleset::new(abi).unwrap();
        for path in ["/usr", "/lib", "/lib64", "/bin"] {
            if let Ok(target) = std::fs::File::open(path) {
                rules.allow(target.as_fd(), access::READ | access::EXECUTE).unwrap();
            }
        }
        assert!(outcome(
            "test ! -r /etc/passwd || ! cat /etc/passwd",
            Start { rules: Some(rules), ..Start::default() }
        ));
        assert!(outcome("cat /etc/passwd > /dev/null", Start::default()));
    }

    #[test]
    fn a_lone_program_sends_signals_to_itself_only() {
        let lone = || Start { calls: Calls::Lone, ..Start::default() };
        // The other process belongs to this user, so it could be killed.
        let mut other = start(Command::new("/bin/cat"), Start::default()).unwrap();
        assert!(outcome(&format!("kill -0 {}", other.id()), Start::default()));
        assert!(outcome(&format!("! kill -0 {}", other.id()), lone()));
        assert!(!outcome("kill -9 $$; exit 0", lone()), "itself");
        assert!(!outcome("sleep 0.01 & kill -9 0; exit 0", Start::default()) && outcome("kill -9 0; exit 0", lone()));
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_secluded_program_has_no_network() {
        let start = Start { seclusion: Seclusion::Apart, ..Start::default() };
        if !rustix::process::geteuid().is_root() {
            println!("SKIP a_secluded_program_has_no_network: the host may forbid it to ordinary users");
            return;
        }
        assert!(outcome("test \"$(grep -c : /proc/self/net/dev)\" = 1", start));
    }

    #[test]
    fn a_program_has_the_limits_that_it_is_given() {
        let limits = vec![(Resource::FILE_SIZE, 4096), (Resource::OPEN_FILES, 20)];
        let limits = || Start { limits: limits.clone(), ..Start::default() };
        assert!(outcome("test $(ulimit -n) = 20 && test $(ulimit -Hf) -le 8", limits()));
        assert!(!outcome("ulimit -n 21", limits()));
        assert!(outcome("ulimit -n 21", Start::default()));
    }

    /// Promise (Virtual machines): A VMM is in its control group from its start.
    #[test]
    fn a_program_is_in_its_group_from_its_start() {
        let Ok(mut owner) = Owner::new(Share::Many, Family::Own) else {
            println!("SKIP a_program_is_in_its_group_from_its_start: this user can make no groups");
            return;
        };
        let bounds = Bounds { memory: Some(64 << 20), tasks: Some(9), cpu_millis: None };
        let group = owner.make(bounds).unwrap();
        let start_with = Start { groups: group.entrances().unwrap(), ..Start::default() };
        assert!(outcome("grep -q '/cofferdam-[0-9-]*/s1$' /proc/self/cgroup", start_with));
        let sleeper = Start { groups: group.entrances().unwrap(), ..Start::default() };
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").env_clear().stdin(Stdio::null());
        let mut child = start(command, sleeper).unwrap();
        let counting = owner.counting_dir(&group).unwrap();
        assert_eq!(crate::cgroup::members(counting), 1);
        // All its processes end with the group.
        owner.discard(&group).unwrap();
        assert!(!child.wait().unwrap().success());
        owner.close();
    }

    #[test]
    fn a_program_of_which_there_are_many_has_small_pages() {
        if !outcome("grep -q ^THP_enabled: /proc/self/status", Start::default()) {
            println!("SKIP a_program_of_which_there_are_many_has_small_pages: this kernel does not report it");
            return;
        }
        let disabled = "grep -q 'THP_enabled:.*0' /proc/self/status";
        assert!(outcome(disabled, Start { pages: Pages::Small, ..Start::default() }));
    }

    #[test]
    fn failed_start_of_a_program_is_an_error() {
        assert!(start(Command::new("/no/such/program"), Start::default()).is_err());
        // A file that may not be executed is distinguished from a host without namespaces.
        let refused = start(Command::new("/etc/passwd"), Start::default()).unwrap_err();
        assert!(refused.kind() == io::ErrorKind::PermissionDenied && !lacks_namespaces(&refused), "{refused}");
        assert!(lacks_namespaces(&io::Error::from_raw_os_error(NO_NAMESPACES)));
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (at, shown) = (CString::default(), CString::default());
        let held_files = Some(HeldFiles { tree: file(), at, shown, user: (1, 1), init: file() });
        let alone = start(Command::new("/bin/true"), Start { held_files, ..Start::default() });
        assert_eq!(alone.unwrap_err().kind(), io::ErrorKind::InvalidInput, "no process would keep it");
    }
}
