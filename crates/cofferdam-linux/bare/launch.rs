//! The start of a program for an exec.

use super::plan::{self, Candidates, Plan};
use super::sys::{self, Fd, Mapping, Res, Stack};
use super::texts::Path;
use super::wire::{NotStarted, Start, Step};

/// The size of the static area. Larger requests are laid out in a mapping of their own.
const AREA: usize = 8192;

/// Memory in which requests are laid out, and a stack for new processes.
pub struct Desk {
    area: Area,
    stack: Stack,
}

#[repr(C, align(16))]
struct Area([u8; AREA]);

impl Desk {
    /// Cleared memory.
    pub const NEW: Self = Self { area: Area([0; AREA]), stack: Stack::NEW };

    /// Starts a program with these descriptors 0, 1 and 2. With a key, tags it with the exec's number. `confine` runs
    /// in the new process before it closes inherited descriptors.
    pub fn launch(
        &mut self,
        start: &Start<'_>,
        stdio: [i32; 3],
        key: Option<(u64, u64)>,
        confine: &dyn Fn() -> Res<()>,
    ) -> Result<i32, NotStarted> {
        let prepare = |errno| NotStarted { step: Step::Prepare, errno };
        let room = plan::room(start);
        let mut own;
        let area = if room <= AREA {
            &mut self.area.0[..]
        } else {
            own = Mapping::anonymous(room).map_err(prepare)?;
            own.bytes_mut()
        };
        let plan = plan::lay(start, area).ok_or(prepare(sys::EINVAL))?;
        let candidates = Candidates::of(start).ok_or(NotStarted { step: Step::Execute, errno: sys::ENOENT })?;
        let file = area.get_mut(plan.used..).unwrap_or_default();
        let failure = NotStarted { step: Step::Fork, errno: 0 };
        let mut child = Child { start, plan, candidates, file, stdio, key, confine, failure };
        let pid = sys::spawn(&mut self.stack, key.map_or(0, sys::joined_key), &mut || child.live())
            .map_err(|errno| NotStarted { step: Step::Fork, errno })?;
        if child.failure.errno == 0 { Ok(pid) } else { Err(child.failure) }
    }
}

/// A new process until it executes its program. It borrows this process's memory, and stores the reason of a failure
/// there.
struct Child<'a> {
    start: &'a Start<'a>,
    plan: Plan,
    candidates: Candidates<'a>,
    /// Space for the name of a file.
    file: &'a mut [u8],
    stdio: [i32; 3],
    key: Option<(u64, u64)>,
    confine: &'a dyn Fn() -> Res<()>,
    failure: NotStarted,
}

impl Child<'_> {
    /// Runs in the new process. Returns only if no program could be executed.
    fn live(&mut self) {
        let errno = match self.prepare() {
            Ok(()) => self.execute(),
            Err(errno) => errno,
        };
        self.failure.errno = errno;
    }

    fn prepare(&mut self) -> Res<()> {
        self.failure.step = Step::Prepare;
        sys::lead_session()?;
        for (target, fd) in (0..).zip(self.stdio) {
            sys::duplicate_to(fd, target)?;
        }
        if self.start.terminal.is_some() {
            sys::control_terminal()?;
        }
        (self.confine)()?;
        sys::close_range(3, i32::MAX);
        if let Some(key) = self.key {
            sys::set_exec_tag(key, self.start.exec)?;
        }
        sys::unblock_signals()?;
        self.failure.step = Step::Directory;
        sys::enter_directory(self.plan.directory)
    }

    fn execute(&mut self) -> i32 {
        self.failure.step = Step::Execute;
        let mut result = sys::ENOENT;
        while self.candidates.next(self.file) {
            match sys::execute(self.file, self.plan.argv, self.plan.env) {
                sys::ENOENT | sys::ENOTDIR => {}
                // A later directory of PATH may contain an executable file.
                sys::EACCES => result = sys::EACCES,
                other => return other,
            }
        }
        result
    }
}

/// Creates a terminal of the sandbox. Returns its controlling end and the end for programs.
pub fn make_terminal(size: (u16, u16)) -> Res<(Fd, Fd)> {
    let master = sys::open_terminal(b"/dev/pts/ptmx\0")?;
    let number = sys::unlock_terminal(&master)?;
    let slave = sys::open_terminal(Path::new("/dev/pts/", number, "").bytes())?;
    sys::set_size(&slave, size)?;
    Ok((master, slave))
}
