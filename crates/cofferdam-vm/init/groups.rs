//! The control group of agent and guests. Inside, it is the root of all that is seen of control groups.
//!
//! Below it is one more, without bounds of its own, in which both live: guests are stopped by it. The agent is taken out
//! for that time, and what it does then runs.

use super::failure::{Failure, Step};
use super::options::{CPU_PERIOD, Options};
use super::sys::{self, Fd, Res};
use super::text::Text;
use super::texts;

/// Where the whole tree is mounted for a moment.
const TREE: &[u8] = b"/groups\0";
const CONTROLLERS: &[u8] = b"/groups/cgroup.subtree_control\0";
const GROUP: &[u8] = b"/groups/sandbox\0";
const GUESTS: &[u8] = b"/groups/sandbox/guests\0";
/// How often to look whether all have stopped, how long to wait between looks.
const LOOKS: usize = 3000;
const LOOK_MICROS: u64 = 1000;
const EBUSY: i32 = 16;

/// The group, for who can stop it.
pub struct Group {
    directory: Fd,
}

/// Makes the group with its bounds.
pub fn make(options: &Options<'_>) -> Result<Group, Failure> {
    sys::make_directory(sys::AT_FDCWD, TREE, 0o700).step("make", TREE)?;
    let flags = sys::MS_NOSUID | sys::MS_NODEV | sys::MS_NOEXEC;
    sys::mount(b"cgroup2\0", TREE, b"cgroup2\0", flags, b"").step("mount", TREE)?;
    write(CONTROLLERS, b"+memory +pids +cpu")?;
    sys::make_directory(sys::AT_FDCWD, GROUP, 0o755).step("make", GROUP)?;
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
    sys::make_directory(sys::AT_FDCWD, GUESTS, 0o755).step("make", GUESTS)?;
    // It is reached by this when the tree is not to be seen any more.
    let directory = sys::open_directory(GROUP).step("open", GROUP)?;
    Ok(Group { directory })
}

impl Group {
    /// Takes the agent out of the group and stops all others, or lets them go on and puts it back.
    pub fn freeze(&self, agent: i32, on: bool) -> Res<()> {
        if !on {
            self.write(b"guests/cgroup.freeze\0", b"0")?;
            return self.write_number(b"guests/cgroup.procs\0", agent);
        }
        self.write_number(b"cgroup.procs\0", agent)?;
        let stopped = self.write(b"guests/cgroup.freeze\0", b"1").and_then(|()| self.wait_until_stopped());
        if stopped.is_err() {
            // What could not be stopped goes on.
            let _ = self.freeze(agent, false);
        }
        stopped
    }

    fn wait_until_stopped(&self) -> Res<()> {
        for _ in 0..LOOKS {
            let mut text = [0; 256];
            let events = sys::open_at(self.directory.number(), b"guests/cgroup.events\0", 0, 0)?;
            let length = sys::read_all(events.number(), &mut text)?;
            if texts::field(text.get(..length).unwrap_or_default(), b"frozen ") == Some(1) {
                return Ok(());
            }
            sys::poll(&mut [], Some(LOOK_MICROS))?;
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

/// Puts this process, from which all of the sandbox's come, into the group.
pub fn join() -> Result<(), Failure> {
    write(b"/groups/sandbox/cgroup.procs\0", b"0")?;
    sys::unshare_groups().step("have a view of its own on", b"control groups")?;
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
