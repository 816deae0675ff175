//! The control group of agent and guests. Inside, it is the root of all that is seen of control groups.

use super::failure::{Failure, Step};
use super::options::{CPU_PERIOD, Options};
use super::sys;
use super::text::Text;

/// Where the whole tree is mounted for a moment.
const TREE: &[u8] = b"/groups\0";
const CONTROLLERS: &[u8] = b"/groups/cgroup.subtree_control\0";
const GROUP: &[u8] = b"/groups/sandbox\0";

/// Makes the group with its bounds.
pub fn make(options: &Options<'_>) -> Result<(), Failure> {
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
    Ok(())
}

/// Puts this process, from which all of the sandbox's come, into the group.
pub fn join() -> Result<(), Failure> {
    write(b"/groups/sandbox/cgroup.procs\0", b"0")?;
    sys::unshare_groups().step("have a view of its own on", b"control groups")?;
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
