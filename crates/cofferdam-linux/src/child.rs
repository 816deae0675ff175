//! Programs that are started for a long time: they get the descriptors that they are meant to have and no others, and do
//! not outlive this process.

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
use crate::relay::{self, Stocked};
use crate::seccomp::{self, Arch, compile_lone};

/// The error number by which a child says that it may have no namespaces: no execution of a program fails with it.
const NO_NAMESPACES: i32 = libc::ENONET;

/// How a program is started, besides what a [`Command`] says.
#[derive(Debug, Default)]
pub struct Start {
    /// Descriptors that it keeps, under their numbers. They are closed here once it runs.
    pub keep: Vec<OwnedFd>,
    /// User and group that it runs as; it stays the caller's without.
    pub user: Option<(u32, u32)>,
    /// Rules on files that it is under, if any.
    pub rules: Option<Ruleset>,
    /// Whether it has a network and System V objects of its own, and so none.
    pub seclusion: Seclusion,
    /// Files of control groups in which it puts itself before it runs, as [`Group::entrances`] gives them.
    ///
    /// [`Group::entrances`]: crate::cgroup::Group::entrances
    pub groups: Vec<OwnedFd>,
    /// Resource limits; one that is above what it is allowed anyway changes nothing.
    pub limits: Vec<(Resource, u64)>,
    /// How large the pages of its memory may be.
    pub pages: Pages,
    /// Which system calls it may make.
    pub calls: Calls,
    /// For [`start_in_namespace`]: files that it finds under names, in a mount namespace of its own.
    pub stock: Option<Stock>,
}

/// A file system that a program in a namespace finds somewhere, and nobody else; and a keeper, the namespace's init, who has
/// [`Start::keep`] open in the program's place: the program can open them once more by their numbers, whatever it closes.
///
/// Nothing of it has a name outside, so it is gone with the namespace and this process's descriptors.
#[derive(Debug)]
pub struct Stock {
    /// A detached mount of it.
    pub tree: OwnedFd,
    /// The directory of this host where the program finds it, by its whole path.
    pub at: CString,
    /// The directory in it where the program finds the descriptors, by its whole path.
    pub shown: CString,
    /// As whom the keeper runs: the user and group that may open them.
    pub user: (u32, u32),
    /// What the keeper executes, readable by everybody: a program that waits until it has no child any more, and ends as the
    /// last one did.
    pub keeper: OwnedFd,
}

/// How large the pages are that the kernel gives a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pages {
    /// As the host has it: where huge ones are always given, a program may take some megabytes that it never uses.
    #[default]
    Any,
    /// Never huge, for programs of which there are many.
    Small,
}

/// Which system calls a program may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calls {
    /// All.
    #[default]
    Any,
    /// Those of [`compile_lone`]'s list, on itself.
    Lone,
}

/// What of the host's besides files a program can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seclusion {
    /// All that its user can.
    #[default]
    None,
    /// No network and no System V objects. Without root it takes a user namespace; where the host lets its users have none,
    /// the program is not started.
    Apart,
}

/// What the program's life is tied to this process by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tie {
    /// Itself.
    Own,
    /// The init of a process namespace around it.
    Namespace,
}

struct Job {
    command: Command,
    start: Start,
    tie: Tie,
    answer: Sender<io::Result<Child>>,
}

/// Starts a program that is killed when this process ends, however it ends.
///
/// The kernel ties that to the thread which started it. So one thread starts them all, and lives as long as the process.
/// The program is in a process group of its own, gains no privileges, and leaves no core file.
///
/// A program that changes its user is no longer tied to this process: see [`start_in_namespace`].
pub fn start(command: Command, start: Start) -> io::Result<Child> {
    order(command, start, Tie::Own)
}

/// As [`start`], in a process namespace of its own. Whatever the program does to itself, it is killed when this process
/// ends, and everything that it started is. Needs root.
///
/// The child that is given back ends when all in the namespace have, as the program did (with a [`Stock`], as the last of
/// them). Killing it kills them all, soon after; [`init_of`] is for those who have to wait for that.
pub fn start_in_namespace(command: Command, start: Start) -> io::Result<Child> {
    order(command, start, Tie::Namespace)
}

/// The init of the namespace of what [`start_in_namespace`] gave, by its number. When that is killed, the child ends after
/// everything else in the namespace has. None where the kernel does not tell.
pub fn init_of(child: u32) -> Option<OwnedFd> {
    relay::init_of(child)
}

/// Whether a program was not started because this host gives it no namespaces, which [`Seclusion::Apart`] takes.
pub fn lacks_namespaces(error: &io::Error) -> bool {
    error.raw_os_error() == Some(NO_NAMESPACES)
}

fn order(command: Command, start: Start, tie: Tie) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Job>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts programs has ended");
    let starter = match STARTER.get() {
        Some(starter) => starter,
        None => {
            let (jobs, waiting) = channel::<Job>();
            std::thread::Builder::new().name("cofferdam-start".to_owned()).spawn(move || {
                for job in waiting {
                    // Whoever asked may be gone: what was started is then ended.
                    if let Err(unheard) = job.answer.send(spawn(job.command, job.start, job.tie))
                        && let Ok(mut child) = unheard.0
                    {
                        let _ = child.kill();
                        let _ = child.wait();
                    }
                }
            })?;
            // Of two that came first, one thread is told nothing, ever.
            STARTER.get_or_init(|| jobs)
        }
    };
    let (answer, answered) = channel();
    starter.send(Job { command, start, tie, answer }).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

fn spawn(mut command: Command, start: Start, tie: Tie) -> io::Result<Child> {
    let Start { keep, user, mut rules, seclusion, groups, limits, pages, calls, stock } = start;
    let mut filter = (calls == Calls::Lone).then(|| compile_lone(Arch::native()));
    let numbers: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    let mut stocked = stock.map(|stock| Stocked::new(stock, &numbers));
    if stocked.is_some() && tie != Tie::Namespace {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "only a program in a namespace has a stock"));
    }
    let parent = std::process::id();
    command.process_group(0);
    let prepare = move || {
        // First of all, so that nothing of it is counted elsewhere.
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
            // A kernel without huge pages gives none.
            let _ = rustix::thread::disable_transparent_huge_pages(true);
        }
        if let Some(rules) = rules.take() {
            rules.enforce()?;
        }
        // After the user: changing that takes it back.
        die_with_parent()?;
        if rustix::process::getppid().is_none_or(|now| now.as_raw_nonzero().get().cast_unsigned() != parent) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if tie == Tie::Namespace {
            relay::enter_namespace(stocked.as_mut())?;
        }
        // So late, because the copies of this process's descriptors leave no room below a limit.
        limits.iter().try_for_each(|(resource, most)| process::cap_limit(*resource, *most))?;
        // What this process itself was given by whoever started it is open in every program, unless it is told not to be.
        process::keep_none_on_exec()?;
        // A stock is the keeper's.
        if stocked.is_none() {
            numbers.iter().try_for_each(|fd| process::keep_on_exec(*fd))?;
        }
        let Some(filter) = &mut filter else { return Ok(()) };
        filter.belongs_to(std::process::id());
        seccomp::install(filter)
    };
    // SAFETY: what runs between fork and exec makes system calls only, and allocates nothing.
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
        let (mut kept, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (other, inherited) = std::os::unix::net::UnixStream::pair().unwrap();
        // As one that a shell left open for this process.
        process::keep_on_exec(inherited.as_raw_fd()).unwrap();
        let number = theirs.as_raw_fd();
        let mut command = Command::new("/bin/sh");
        let absent = |fd: RawFd| format!("test ! -e /proc/self/fd/{fd}");
        let script =
            format!("echo hello >&{number}; {} && {}", absent(other.as_raw_fd()), absent(inherited.as_raw_fd()));
        command.args(["-c", &script]).env_clear().stdin(Stdio::null());
        let mut child = start(command, Start { keep: vec![theirs.into()], ..Start::default() }).unwrap();
        let mut said = String::new();
        kept.read_to_string(&mut said).unwrap();
        assert_eq!(said, "hello\n");
        assert!(child.wait().unwrap().success());
    }

    fn outcome(script: &str, start_with: Start) -> bool {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
        start(command, start_with).unwrap().wait().unwrap().success()
    }

    #[test]
    fn a_program_under_rules_reaches_only_what_they_allow() {
        let abi = crate::landlock::abi();
        if abi == 0 {
            println!("SKIP a_program_under_rules_reaches_only_what_they_allow: no Landlock here");
            return;
        }
        let rules = Ruleset::new(abi).unwrap();
        for path in ["/usr", "/lib", "/lib64", "/bin"] {
            if let Ok(place) = std::fs::File::open(path) {
                rules.allow(place.as_fd(), access::READ | access::EXECUTE).unwrap();
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
        // The other is this user's own, and so could be killed.
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
        // Whatever is in it ends with it.
        owner.discard(&group).unwrap();
        assert!(!child.wait().unwrap().success());
        owner.close();
    }

    #[test]
    fn a_program_of_which_there_are_many_has_small_pages() {
        if !outcome("grep -q ^THP_enabled: /proc/self/status", Start::default()) {
            println!("SKIP a_program_of_which_there_are_many_has_small_pages: this kernel does not say");
            return;
        }
        let says = "grep -q 'THP_enabled:.*0' /proc/self/status";
        assert!(outcome(says, Start { pages: Pages::Small, ..Start::default() }));
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        assert!(start(Command::new("/no/such/program"), Start::default()).is_err());
        // One that may not be executed is told from a host without namespaces.
        let refused = start(Command::new("/etc/passwd"), Start::default()).unwrap_err();
        assert!(refused.kind() == io::ErrorKind::PermissionDenied && !lacks_namespaces(&refused), "{refused}");
        assert!(lacks_namespaces(&io::Error::from_raw_os_error(NO_NAMESPACES)));
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (at, shown) = (CString::default(), CString::default());
        let stock = Some(Stock { tree: file(), at, shown, user: (1, 1), keeper: file() });
        let alone = start(Command::new("/bin/true"), Start { stock, ..Start::default() });
        assert_eq!(alone.unwrap_err().kind(), io::ErrorKind::InvalidInput, "nobody would keep it");
    }
}
