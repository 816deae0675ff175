//! Isolation of direct runs when memory is short and pages are swapped, or when memory is locked. Each test needs its
//! own process.
#![expect(clippy::print_stderr, reason = "a skip is printed with its reason")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::isolation::{checking, load, runs_on_two_threads, spec};

/// The environment variable with the role of a process.
const ROLE: &str = "COFFERDAM_TEST_ROLE";
const GROUPS: &str = "/sys/fs/cgroup/memory";
/// The line that a process prints when it is ready.
const READY: &str = "ready to run";
/// The memory limits of the process: about half of what it needs.
const LIMITS: [u64; 3] = [32, 48, 72];
const SWAP: u64 = 128 << 20;
const TIME: Duration = Duration::from_secs(8);
/// The number of the process's guests. They need more memory than the limit.
const PROGRAMS: usize = 12;

fn is(role: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|set| set == role)
}

/// Returns a command that runs this test in another process with another role.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("memory_pressure::{test}"), "--exact", "--nocapture"]).env(ROLE, role);
    command
}

/// Swap space that was created for a test. It is removed when dropped.
struct Swap(PathBuf);

impl Swap {
    /// Creates swap space if there is none.
    fn make() -> Result<Option<Self>, String> {
        let swaps = fs::read_to_string("/proc/swaps").map_err(|error| error.to_string())?;
        if swaps.lines().count() > 1 {
            return Ok(None);
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("swap-{}", std::process::id()));
        let swap = Self(path);
        let mut options = fs::OpenOptions::new();
        let options = std::os::unix::fs::OpenOptionsExt::mode(options.write(true).create_new(true), 0o600);
        let mut file = options.open(&swap.0).map_err(|error| error.to_string())?;
        // The file must not have holes.
        for _ in 0..SWAP >> 20 {
            file.write_all(&[0; 1 << 20]).map_err(|error| error.to_string())?;
        }
        file.sync_all().map_err(|error| error.to_string())?;
        for tool in ["mkswap", "swapon"] {
            let done = Command::new(tool).arg(&swap.0).output().map_err(|error| format!("{tool}: {error}"))?;
            if !done.status.success() {
                return Err(format!("{tool}: {}", String::from_utf8_lossy(&done.stderr).trim()));
            }
        }
        Ok(Some(swap))
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // Fails if the swap space was never enabled.
        let _ = Command::new("swapoff").arg(&self.0).output();
        let _ = fs::remove_file(&self.0);
    }
}

/// A memory cgroup for one process.
struct Group(PathBuf);

impl Group {
    fn make(megabytes: u64) -> Result<Self, String> {
        let path = Path::new(GROUPS).join(format!("cofferdam-test-{}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|error| format!("cannot create the memory cgroup {}: {error}", path.display()))?;
        let group = Self(path);
        group.set("memory.limit_in_bytes", &(megabytes << 20).to_string())?;
        Ok(group)
    }

    fn set(&self, file: &str, value: &str) -> Result<(), String> {
        fs::write(self.0.join(file), value).map_err(|error| format!("{file}: {error}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns the bytes of guests' memory in swap.
fn swapped(process: &Child) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", process.id())).unwrap_or_default();
    let mut of_guest = false;
    let mut sum = 0;
    for line in maps.lines() {
        if line.contains('-') && line.split(' ').next().is_some_and(|range| range.contains('-')) {
            of_guest = line.contains("wasm-image");
        } else if let (true, Some(value)) = (of_guest, line.strip_prefix("Swap:")) {
            sum += value.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() << 10;
        }
    }
    sum
}

#[test]
fn nothing_is_seen_by_another_run_where_pages_are_swapped() {
    if is("runs") {
        // Compile before memory is short, then wait until this process is in its cgroup.
        let programs: Vec<_> = (0..PROGRAMS).map(|_| load(checking(), spec())).collect();
        eprintln!("{READY}");
        let _ = std::io::stdin().read_line(&mut String::new());
        let (start, mut runs) = (Instant::now(), 0);
        while start.elapsed() < TIME {
            for loaded in &programs {
                runs += runs_on_two_threads(loaded, |round| round == 12);
            }
        }
        eprintln!("{runs} runs");
        return;
    }
    let _swap = match Swap::make() {
        Ok(swap) => swap,
        Err(reason) => return eprintln!("SKIPPED runs under memory pressure: {reason}"),
    };
    // On a busy host pages may not be swapped fast enough, and the kernel kills the process. That proves nothing about
    // the guests.
    for megabytes in LIMITS {
        let (status, stderr, max_swapped) = match under_pressure(megabytes) {
            Ok(seen) => seen,
            Err(reason) => return eprintln!("SKIPPED runs under memory pressure: {reason}"),
        };
        if status.signal() == Some(9) {
            continue;
        }
        assert!(status.success(), "{status}: {stderr}");
        eprintln!("{} KiB of guests' memory were swapped at once", max_swapped >> 10);
        assert!(max_swapped > 0, "no page of a guest was swapped, so the test shows nothing");
        return;
    }

    eprintln!("SKIPPED runs under memory pressure: the kernel killed them with each limit of {LIMITS:?} MiB");
}

/// Runs the guests under this limit. Returns the exit status, the output, and the maximum of swapped guest bytes.
fn under_pressure(megabytes: u64) -> Result<(ExitStatus, String, u64), String> {
    let group = Group::make(megabytes)?;
    let mut command = again("nothing_is_seen_by_another_run_where_pages_are_swapped", "runs");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(READY) {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "the process exited before it was ready");
    }
    // Its memory so far is charged to the parent cgroup, and all later memory to its own.
    group.set("cgroup.procs", &child.id().to_string()).unwrap();
    writeln!(child.stdin.take().unwrap(), "go").unwrap();
    let mut max_swapped = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        max_swapped = max_swapped.max(swapped(&child));
        // Swap out as much as possible. Newer kernels lack this file, and then only the limit causes swapping.
        let _ = group.set("memory.force_empty", "0");
        std::thread::sleep(Duration::from_millis(200));
    };
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    Ok((status, rest, max_swapped))
}

#[test]
fn nothing_is_seen_by_another_run_where_memory_is_locked() {
    use rustix::mm::{MlockAllFlags, mlockall};
    let test = "nothing_is_seen_by_another_run_where_memory_is_locked";
    for (role, before, flags) in [
        ("locked", true, MlockAllFlags::CURRENT | MlockAllFlags::FUTURE),
        ("locked later", false, MlockAllFlags::CURRENT),
        ("locked on fault", true, MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT),
    ] {
        if !is(role) {
            continue;
        }
        let lock = || {
            if let Err(error) = mlockall(flags) {
                eprintln!("SKIPPED {role}: {error}")
            }
        };
        if before {
            lock();
        }
        let loaded = load(checking(), spec());
        runs_on_two_threads(&loaded, |round| round == 60);
        if !before {
            lock();
        }
        runs_on_two_threads(&loaded, |round| round == 60);
        return;
    }
    for role in ["locked", "locked later", "locked on fault"] {
        let status = again(test, role).status().unwrap();
        assert!(status.success(), "{role}: {status}");
    }
}
