//! From a start order to what `execve` takes: texts with a NUL at their end, and lists of their addresses, laid out in
//! one area of memory.

use super::wire::Start;

/// Where programs are looked for without a PATH.
const DEFAULT_PATH: &[u8] = b"/usr/bin:/bin";
const POINTER: usize = 8;

/// Addresses of what was laid out.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// A list that ends with null.
    pub argv: usize,
    /// A list that ends with null.
    pub env: usize,
    /// A text.
    pub directory: usize,
    /// Bytes of the area that are in use; the rest is free.
    pub used: usize,
}

/// Bytes that an area must have, for the order itself and one candidate.
pub fn room(start: &Start<'_>) -> usize {
    let pointers = (start.argv.count() + start.env.count() / 2 + 2) * POINTER;
    // Each text gets a NUL, or a '=' between name and value.
    let texts = start.argv.size() + start.argv.count() + start.env.size() + start.env.count();
    pointers + texts + start.directory.len() + 1 + candidate_room(start)
}

fn candidate_room(start: &Start<'_>) -> usize {
    search_path(start).len() + start.argv.iter().next().map_or(0, <[u8]>::len) + 2
}

/// The value of PATH that the program is to have.
fn search_path<'a>(start: &Start<'a>) -> &'a [u8] {
    let mut texts = start.env.iter();
    while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
        if name == b"PATH" {
            return value;
        }
    }
    DEFAULT_PATH
}

/// Lays an order out in an area that is aligned to 8 bytes. `None` when a text has a NUL in it, or the area is short.
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

/// Writes a text and what ends it. Gives where the next one goes.
fn put(area: &mut [u8], at: usize, text: &[u8], end: u8) -> Option<usize> {
    if text.contains(&0) {
        return None;
    }
    let after = at.checked_add(text.len())?;
    area.get_mut(at..after)?.copy_from_slice(text);
    *area.get_mut(after)? = end;
    Some(after + 1)
}

/// The files that a program's name may mean: itself if it has a slash, else one in each directory of PATH.
pub struct Candidates<'a> {
    program: &'a [u8],
    /// What is left of PATH; `None` when the name itself is all there is.
    path: Option<&'a [u8]>,
    done: bool,
}

impl<'a> Candidates<'a> {
    /// Those of an order; `None` when it names no program.
    pub fn of(start: &Start<'a>) -> Option<Self> {
        let program = start.argv.iter().next()?;
        let path = (!program.contains(&b'/')).then(|| search_path(start));
        Some(Self { program, path, done: false })
    }

    /// Writes the next one, with a NUL at its end; `false` when there is none.
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
