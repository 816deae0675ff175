//! What an ordinary process 1 of a machine asks of the machine's init, which has the rights: messages of one size each, over
//! a socket pair that nobody else has. Both sides are built from this file.

/// Bytes of a request.
pub const REQUEST: usize = 192;
/// Bytes of an answer.
pub const ANSWER: usize = 12;
/// The descriptor at which whoever asks finds its end.
pub const DESCRIPTOR: i32 = 3;
/// The descriptor at which it finds a socket that takes the host's connections, where the host is reached by one.
pub const LISTENER: i32 = 4;
/// The longest name of a machine.
pub const MAX_NAME: usize = 63;

const MAGIC: [u8; 4] = *b"CFDp";
/// Bytes before what a renewal says.
const HEAD: usize = 9;

/// What makes a machine differ from all others that were the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renew<'a> {
    /// Seconds and nanoseconds of the time of day.
    pub now: (u64, u32),
    /// For the kernel's random numbers.
    pub entropy: &'a [u8; 64],
    /// The machine's id.
    pub machine_id: &'a [u8; 16],
    /// The id of the kernel's start.
    pub boot_id: &'a [u8; 16],
    /// The machine's name.
    pub hostname: &'a [u8],
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Stop all guests, or let them go on.
    Freeze { on: bool },
    /// Make the machine another one.
    Renew(Renew<'a>),
}

/// Whether a machine may have this name.
pub fn is_name(name: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    (1..=MAX_NAME).contains(&name.len()) && name.iter().all(plain)
}

/// Writes a request with its number; `None` if it cannot be put.
pub fn encode(number: u32, request: &Request<'_>, into: &mut [u8; REQUEST]) -> Option<()> {
    into.fill(0);
    let (head, rest) = into.split_at_mut_checked(HEAD)?;
    let (magic, number_and_kind) = head.split_at_mut_checked(4)?;
    magic.copy_from_slice(&MAGIC);
    let (place, kind) = number_and_kind.split_at_mut_checked(4)?;
    place.copy_from_slice(&number.to_le_bytes());
    let Request::Renew(it) = request else {
        kind.fill(if matches!(request, Request::Freeze { on: true }) { 1 } else { 2 });
        return Some(());
    };
    kind.fill(3);
    let length = [u8::try_from(it.hostname.len()).ok().filter(|_| is_name(it.hostname))?];
    let (seconds, nanoseconds) = (it.now.0.to_le_bytes(), it.now.1.to_le_bytes());
    let mut rest = rest;
    for part in [&seconds[..], &nanoseconds, it.entropy, it.machine_id, it.boot_id, &length, it.hostname] {
        let (space, more) = rest.split_at_mut_checked(part.len())?;
        space.copy_from_slice(part);
        rest = more;
    }
    Some(())
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, more) = rest.split_first_chunk()?;
    *rest = more;
    Some(taken)
}

/// Reads a request and its number. What nobody writes is none.
pub fn decode(message: &[u8]) -> Option<(u32, Request<'_>)> {
    if message.len() != REQUEST {
        return None;
    }
    let mut rest = message;
    let it = &mut rest;
    if take::<4>(it)? != &MAGIC {
        return None;
    }
    let number = u32::from_le_bytes(*take(it)?);
    let [kind] = *take(it)?;
    let request = match kind {
        1 => Request::Freeze { on: true },
        2 => Request::Freeze { on: false },
        3 => {
            let now = (u64::from_le_bytes(*take(it)?), u32::from_le_bytes(*take(it)?));
            let (entropy, machine_id, boot_id) = (take(it)?, take(it)?, take(it)?);
            let [length] = *take(it)?;
            let (hostname, more) = it.split_at_checked(length.into())?;
            *it = more;
            if now.1 >= 1_000_000_000 || !is_name(hostname) {
                return None;
            }
            Request::Renew(Renew { now, entropy, machine_id, boot_id, hostname })
        }
        _ => return None,
    };
    // Nothing may follow.
    rest.iter().all(|byte| *byte == 0).then_some((number, request))
}

/// The answer to a request: 0, or an error number.
pub fn answer(number: u32, errno: i32) -> [u8; ANSWER] {
    let mut answer = [0; ANSWER];
    let parts = MAGIC.into_iter().chain(number.to_le_bytes()).chain(errno.to_le_bytes());
    answer.iter_mut().zip(parts).for_each(|(slot, byte)| *slot = byte);
    answer
}

/// Reads an answer: number and error number.
pub fn read_answer(message: &[u8]) -> Option<(u32, i32)> {
    let (magic, rest) = message.split_first_chunk::<4>()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (errno, rest) = rest.split_first_chunk()?;
    let good = magic == &MAGIC && rest.is_empty();
    good.then(|| (u32::from_le_bytes(*number), i32::from_le_bytes(*errno)))
}
