//! Conversion of a start request to the arguments of `execve`: NUL-terminated texts and lists of their addresses, in
//! one area of memory.

use super::wire::Start;

/// The search path of programs without a PATH.
const DEFAULT_PATH: &[u8] = b"/usr/bin:/bin";
const POINTER: usize = 8;

/// Addresses of the arguments in the area.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The null-terminated list of arguments.
    pub argv: usize,
    /// The null-terminated list of environment variables.
    pub env: usize,
    /// The NUL-terminated working directory.
    pub directory: usize,
    /// The number of used bytes of the area. The rest is free.
    pub used: usize,
}

/// Returns the required size of an area, for the request itself and one candidate.
pub fn room(start: &Start<'_>) -> usize {
    let pointers = (start.argv.count() + start.env.count() / 2 + 2) * POINTER;
    // Each text needs a NUL, or a '=' between name and value.
    let texts = start.argv.size() + start.argv.count() + start.env.size() + start.env.count();
    pointers + texts + start.directory.len() + 1 + candidate_room(start)
}

fn candidate_room(start: &Start<'_>) -> usize {
    search_path(start).len() + start.argv.iter().next().map_or(0, <[u8]>::len) + 2
}

/// Returns the program's value of PATH.
fn search_path<'a>(start: &Start<'a>) -> &'a [u8] {
    let mut texts = start.env.iter();
    while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
        if name == b"PATH" {
            return value;
        }
    }
    DEFAULT_PATH
}

/// Lays a request out in an area that is aligned to 8 bytes. Returns `None` if a text contains a NUL or the area is too
/// small.
pub fn lay(start: &Start<'_>, area: &mut [u8]) -> Option<Plan> {
    let base = area.as_ptr() as usize;
    let argv = 0;
    let env = (start.argv.count() + 1) * POINTER;
    let mut at = env + (start.env.count() / 2 + 1) * POINTER;
    let mut slot = argv;
    for text in start.argv.iter() {
        point(area, &mut slot, base + at)?;
        at = put(area, at, text, 0)?;
    }
    point(area, &mut slot, 0)?;
    let mut texts = start.env.iter();
    while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
        point(area, &mut slot, base + at)?;
        at = put(area, at, name, b'=')?;
        at = put(area, at, value, 0)?;
    }
    point(area, &mut slot, 0)?;
    let directory = base + at;
    let used = put(area, at, start.directory, 0)?;
    Some(Plan { argv: base + argv, env: base + env, directory, used })
}

fn point(area: &mut [u8], slot: &mut usize, address: usize) -> Option<()> {
    area.get_mut(*slot..*slot + POINTER)?.copy_from_slice(&address.to_ne_bytes());
    *slot += POINTER;
    Some(())
}

/// Writes a text and its end. Returns the position after it.
fn put(area: &mut [u8], at: usize, text: &[u8], end: u8) -> Option<usize> {
    if text.contains(&0) {
        return None;
    }
    let after = at.checked_add(text.len())?;
    area.get_mut(at..after)?.copy_from_slice(text);
    *area.get_mut(after)? = end;
    Some(after + 1)
}

/// The files that a program's name may refer to: the name itself if it has a slash, else a file in each directory of
/// PATH.
pub struct Candidates<'a> {
    program: &'a [u8],
    /// The rest of PATH. `None` if the name itself is the only candidate.
    path: Option<&'a [u8]>,
    done: bool,
}

impl<'a> Candidates<'a> {
    /// Returns the candidates of a request, or `None` if it names no program.
    pub fn of(start: &Start<'a>) -> Option<Self> {
        let program = start.argv.iter().next()?;
        let path = (!program.contains(&b'/')).then(|| search_path(start));
        Some(Self { program, path, done: false })
    }

    /// Writes the next candidate with a NUL at its end. Returns false if there is none.
    pub fn next(&mut self, into: &mut [u8]) -> bool {
        while !self.done {
            let Some(path) = self.path else {
                self.done = true;
                return put(into, 0, self.program, 0).is_some();
            };
            let end = path.iter().position(|&byte| byte == b':');
            let directory = path.get(..end.unwrap_or(path.len())).unwrap_or_default();
            self.path = end.and_then(|end| path.get(end + 1..));
            self.done = self.path.is_none();
            let full = put(into, 0, directory, b'/').and_then(|at| put(into, at, self.program, 0));
            if directory.first() == Some(&b'/') && full.is_some() {
                return true;
            }
        }
        false
    }
}
