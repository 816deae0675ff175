//! The command killed by SIGKILL while it has a VM. Its processes die at once, the next start removes its other
//! objects, and the output file is complete or absent.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::vms::with_vms;
use super::{WEAKER, cofferdam, outcome, run};

/// Seed of the random kill times, for repetition.
const SEED: &str = "COFFERDAM_TEST_SEED";
/// Timeout after which a command counts as hung.
const NO_HANG: Duration = Duration::from_secs(120);
/// Maximum depth of searched control groups.
const GROUPS_DEPTH: usize = 12;
/// A program that prints a line and runs forever.
const STAYS: &str = "echo more > /workspace/file; echo ready; while :; do echo less > /workspace/other; done";

fn moments(test: &str) -> fastrand::Rng {
    let configured = std::env::var(SEED).ok().map(|seed| seed.parse().expect("a number"));
    let seed = configured.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: {SEED}={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Returns the live processes of a session, with their names.
fn session(leader: u32) -> BTreeSet<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        // Other threads may still run after the first thread of a process has ended.
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().count();
        let has_ended = ["Z", "X"].contains(&fields[0]) && threads() <= 1;
        (fields[3] == leader.to_string() && !has_ended).then(|| name.to_owned())
    };
    pids.filter_map(of).collect()
}

/// Returns the control groups named after processes of the session.
fn groups_of(owner: u32, parent: &Path, depth: usize) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut found = BTreeSet::new();
    for path in directories.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbers = name.strip_prefix("cofferdam-").unwrap_or_default();
        if numbers.split('-').nth(1) == Some(&*owner.to_string()) {
            found.insert(path.clone());
        }
        if depth > 1 {
            found.extend(groups_of(owner, &path, depth - 1));
        }
    }
    found
}

/// A command in a separate session.
struct Started {
    child: Child,
}

impl Started {
    fn new(command: &Command) -> Self {
        let mut wrapped = Command::new("setsid");
        wrapped.arg(command.get_program()).args(command.get_args()).env_clear();
        wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(directory) = command.get_current_dir() {
            wrapped.current_dir(directory);
        }
        wrapped.stdin(Stdio::null()).stdout(Stdio::piped());
        Self { child: wrapped.spawn().expect("setsid is installed") }
    }

    fn has_vmm(&self) {
        let begun = Instant::now();
        while !session(self.child.id()).iter().any(|name| name.contains("qemu-system")) {
            assert!(begun.elapsed() < NO_HANG, "it starts no VMM");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn has_printed(&mut self, text: &str) {
        let out = self.child.stdout.take().expect("its output");
        let printed = BufReader::new(out).lines().map_while(Result::ok).any(|line| line == text);
        assert!(printed, "it never printed {text}");
    }

    /// Kills the command if it still runs, and waits until no process of its session is left.
    fn kill(mut self, after: Duration) {
        let owner = self.child.id();
        std::thread::sleep(after);
        self.child.kill().expect("it can be killed");
        let status = self.child.wait().expect("it ends");
        println!("   killed after {after:?}: {status}");
        assert!(status.signal() == Some(9) || status.success(), "{status}");
        let begun = Instant::now();
        while !session(owner).is_empty() {
            assert!(begun.elapsed() < NO_HANG, "of a killed command is left: {:?}", session(owner));
            std::thread::sleep(Duration::from_millis(2));
        }
        let groups = groups_of(owner, Path::new("/sys/fs/cgroup"), GROUPS_DEPTH);
        if !groups.is_empty() {
            let home = tempfile::tempdir().expect("a directory");
            let (_, report, _) = outcome(cofferdam().args(["doctor", "--backend", "vm"]).env("HOME", home.path()));
            let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
            assert!(left.is_empty(), "{left:?} {report}");
        }
    }
}

/// Directories for a command that shares only the image with other tests.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["tmp", "cache", "out"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, command: Command, test: &str) -> Option<Command> {
        let mut command = with_vms(command, test)?;
        command.env("XDG_CACHE_HOME", self.path().join("cache")).env("TMPDIR", self.path().join("tmp"));
        Some(command)
    }

    fn snapshot(&self, words: &[&str], test: &str) -> Option<Command> {
        let mut command = cofferdam();
        command.arg("snapshot").args(words).current_dir(self.path().join("out"));
        self.command(command, test)
    }

    /// Returns the files below the directories, except cached facts about this host.
    fn files(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut todo = vec![self.path().to_owned()];
        while let Some(directory) = todo.pop() {
            for entry in std::fs::read_dir(directory).expect("a list").flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    todo.push(path);
                } else if !path.ends_with("probes/kvm.json") {
                    found.insert(path.strip_prefix(self.path()).expect("below it").display().to_string());
                }
            }
        }
        found
    }
}

/// Promise (Virtual machines): A killed `cofferdam run` in a VM leaves nothing.
#[test]
fn a_killed_run_leaves_nothing() {
    let test = "a_killed_run_leaves_nothing";
    let fixture = Fixture::new();
    let words = ["--level", "vm", "--memory", "96M", "--timeout", "1h", "--", "sh", "-c", STAYS];
    let Some(command) = fixture.command(run(words), test) else { return };
    let mut random = moments(test);
    let mut after = |max: u64| Duration::from_millis(random.u64(..max));
    Started::new(&command).kill(after(300));
    let booting = Started::new(&command);
    booting.has_vmm();
    booting.kill(after(800));
    let mut running = Started::new(&command);
    running.has_printed("ready");
    running.kill(after(100));
    assert_eq!(fixture.files(), BTreeSet::new());
    let words = ["--level", "vm", "--memory", "96M", "--", "echo", "works"];
    let (code, stdout, stderr) = outcome(&mut fixture.command(run(words), test).expect("VMs are available"));
    assert_eq!((code, &*stdout), (0, "works\n"), "{stderr}");
}

/// Promise (Virtual machines): A killed `snapshot save` or `snapshot restore` leaves no partial archive.
#[test]
fn a_killed_save_or_restore_leaves_no_half_archive_and_nothing_else() {
    let test = "a_killed_save_or_restore_leaves_no_half_archive_and_nothing_else";
    let fixture = Fixture::new();
    let save = |words: &[&str]| {
        let fixed = ["save", "--allow-weaker", WEAKER, "--memory", "96M", "--timeout", "1h", "--out", "m"];
        let command = ["--when-prints", "ready", "--", "sh", "-c", STAYS];
        fixture.snapshot(&[&fixed, words, &command].concat(), test)
    };
    let Some(first) = save(&[]) else { return };
    let mut random = moments(test);
    let mut after = |max: u64| Duration::from_millis(random.u64(..max));
    let is_whole = || {
        let (code, _, stderr) = outcome(&mut fixture.snapshot(&["inspect", "--verify", "m"], test).expect("machines"));
        assert_eq!(code, 0, "{stderr}");
    };
    let archive = fixture.path().join("out/m");
    let booting = Started::new(&first);
    booting.has_vmm();
    booting.kill(after(500));
    assert_eq!(fixture.files(), BTreeSet::new());
    for _ in 0..3 {
        let mut saving = Started::new(&first);
        saving.has_printed("ready");
        saving.kill(after(900));
        if archive.exists() {
            is_whole();
            std::fs::remove_file(&archive).expect("it is removed");
        }
        assert_eq!(fixture.files(), BTreeSet::new());
    }
    let (code, _, stderr) = outcome(&mut save(&["--compression", "1"]).expect("VMs are available"));
    assert_eq!(code, 0, "{stderr}");
    // The existing file stays until the new one is complete.
    let mut replacing = Started::new(&save(&["--force"]).expect("VMs are available"));
    replacing.has_printed("ready");
    replacing.kill(after(900));
    is_whole();
    assert_eq!(fixture.files(), BTreeSet::from(["out/m".to_owned()]));
    let restore = |command: &[&str]| {
        fixture
            .snapshot(&[&["restore", "m", "--allow-weaker", WEAKER, "--"], command].concat(), test)
            .expect("machines")
    };
    for max in [400, 900] {
        Started::new(&restore(&["sleep", "600"])).kill(after(max));
        assert_eq!(fixture.files(), BTreeSet::from(["out/m".to_owned()]));
    }
    let restoring = Started::new(&restore(&["sleep", "600"]));
    restoring.has_vmm();
    restoring.kill(after(300));
    assert_eq!(fixture.files(), BTreeSet::from(["out/m".to_owned()]));
    let (code, stdout, stderr) = outcome(&mut restore(&["cat", "file"]));
    assert_eq!((code, &*stdout), (0, "more\n"), "{stderr}");
}
