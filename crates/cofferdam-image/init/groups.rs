//! The control group of agent and guests. For them, it is the root of the visible hierarchy.
//!
//! Below it is another group without limits, which contains both: freezing it stops the guests. The agent is moved out
//! of it meanwhile, so it continues to run.

use super::failure::{Failure, Step};
use super::options::{CPU_PERIOD, Options};
use super::sys::{self, Fd, Res};
use super::text::Text;
use super::texts;

/// Temporary mount point of the hierarchy.
const TREE: &[u8] = b"/groups\0";
const CONTROLLERS: &[u8] = b"/groups/cgroup.subtree_control\0";
const GROUP: &[u8] = b"/groups/sandbox\0";
const GUESTS: &[u8] = b"/groups/sandbox/guests\0";
/// Maximum number of polls until all have stopped, and the interval between two polls.
const MAX_POLLS: usize = 3000;
const POLL_INTERVAL_MICROS: u64 = 1000;
const EBUSY: i32 = 16;

/// The group, with which it can be frozen.
pub struct Group {
    directory: Fd,
}

/// Creates the group with its limits.
pub fn make(options: &Options<'_>) -> Result<Group, Failure> {
    sys::make_directory(sys::AT_FDCWD, TREE, 0o700).step("create", TREE)?;
    let flags = sys::MS_NOSUID | sys::MS_NODEV | sys::MS_NOEXEC;
    sys::mount(b"cgroup2\0", TREE, b"cgroup2\0", flags, b"").step("mount", TREE)?;
    write(CONTROLLERS, b"+memory +pids +cpu")?;
    sys::make_directory(sys::AT_FDCWD, GROUP, 0o755).step("create", GROUP)?;
    if let Some(bytes) = options.memory {
        write_number(b"/groups/sandbox/memory.max\0", bytes)?;
    }
    write(b"/groups/sandbox/memory.swap.max\0", b"0")?;
    if let Some(tasks) = options.tasks {
        write_number(b"/groups/sandbox/pids.max\0", tasks)?;
    }
    if let Some(micros) = options.cpu {
        let mut text = Text::<48>::new();
        let _ = text.push_number(micros).and_then(|text| text.push(b" ")).and_then(|text| text.push_number(CPU_PERIOD));
        write(b"/groups/sandbox/cpu.max\0", text.bytes())?;
    }
    sys::make_directory(sys::AT_FDCWD, GUESTS, 0o755).step("create", GUESTS)?;
    // The descriptor remains valid after the hierarchy is unmounted.
    let directory = sys::open_directory(GROUP).step("open", GROUP)?;
    Ok(Group { directory })
}

impl Group {
    /// Moves the agent out of the group and freezes the others, or thaws them and moves it back.
    pub fn freeze(&self, agent: i32, on: bool) -> Res<()> {
        if !on {
            self.write(b"guests/cgroup.freeze\0", b"0")?;
            return self.write_number(b"guests/cgroup.procs\0", agent);
        }
        self.write_number(b"cgroup.procs\0", agent)?;
        let stopped = self.write(b"guests/cgroup.freeze\0", b"1").and_then(|()| self.wait_until_stopped());
        if stopped.is_err() {
            // If freezing fails, the guests continue.
            let _ = self.freeze(agent, false);
        }
        stopped
    }

    fn wait_until_stopped(&self) -> Res<()> {
        for _ in 0..MAX_POLLS {
            let mut text = [0; 256];
            let events = sys::open_at(self.directory.number(), b"guests/cgroup.events\0", 0, 0)?;
            let length = sys::read_all(events.number(), &mut text)?;
            if texts::field(text.get(..length).unwrap_or_default(), b"frozen ") == Some(1) {
                return Ok(());
            }
            sys::poll(&mut [], Some(POLL_INTERVAL_MICROS))?;
        }
        Err(EBUSY)
    }

    fn write_number(&self, name: &[u8], number: i32) -> Res<()> {
        let mut text = Text::<24>::new();
        let number = u64::try_from(number).map_err(|_| sys::EINVAL)?;
        text.push_number(number).ok_or(sys::EINVAL)?;
        self.write(name, text.bytes())
    }

    fn write(&self, name: &[u8], text: &[u8]) -> Res<()> {
        let file = sys::open_at(self.directory.number(), name, sys::O_WRONLY, 0)?;
        sys::write(file.number(), text).map(drop)
    }
}

/// Moves this process, the ancestor of all processes of the sandbox, into the group.
pub fn join() -> Result<(), Failure> {
    write(b"/groups/sandbox/cgroup.procs\0", b"0")?;
    sys::unshare_groups().step("create a namespace of", b"control groups")?;
    write(b"/groups/sandbox/guests/cgroup.procs\0", b"0")?;
    sys::unmount(TREE).step("unmount", TREE)
}

fn write_number(path: &[u8], number: u64) -> Result<(), Failure> {
    let mut text = Text::<24>::new();
    let _ = text.push_number(number);
    write(path, text.bytes())
}

fn write(path: &[u8], text: &[u8]) -> Result<(), Failure> {
    let file = sys::open_at(sys::AT_FDCWD, path, sys::O_WRONLY, 0).step("open", path)?;
    sys::write(file.number(), text).map(drop).step("write to", path)
}
