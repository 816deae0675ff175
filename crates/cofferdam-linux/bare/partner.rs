//! Requests of an unprivileged process 1 of a VM to the VM's privileged init: messages of fixed size over a private
//! socket pair. Both sides are compiled from this file.

/// The size of a request.
pub const REQUEST: usize = 192;
/// The size of an answer.
pub const ANSWER: usize = 12;
/// The descriptor of the requesting side's end.
pub const DESCRIPTOR: i32 = 3;
/// The descriptor of a socket that accepts the host's connections, if the host connects by a socket.
pub const LISTENER: i32 = 4;
/// The maximum length of a VM's host name.
pub const MAX_NAME: usize = 63;

const MAGIC: [u8; 4] = *b"CFDp";
/// The number of bytes before the body of a reseed request.
const HEAD: usize = 9;

/// New identity and randomness for a restored VM, so that it differs from other copies of the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reseed<'a> {
    /// The time of day in seconds and nanoseconds.
    pub now: (u64, u32),
    /// Entropy for the kernel's random number generator.
    pub entropy: &'a [u8; 64],
    /// The VM's machine id.
    pub machine_id: &'a [u8; 16],
    /// The boot id.
    pub boot_id: &'a [u8; 16],
    /// The VM's host name.
    pub hostname: &'a [u8],
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Freeze or resume all guests.
    Freeze { on: bool },
    /// Replace the VM's identity and randomness.
    Reseed(Reseed<'a>),
    /// Route all IPv4 addresses to the loopback interface.
    Route,
}

/// Returns true if a VM may have this host name.
pub fn is_name(name: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    (1..=MAX_NAME).contains(&name.len()) && name.iter().all(plain)
}

/// Encodes a request with its number. Returns `None` if the host name is not valid.
pub fn encode(number: u32, request: &Request<'_>, into: &mut [u8; REQUEST]) -> Option<()> {
    into.fill(0);
    let (head, rest) = into.split_at_mut_checked(HEAD)?;
    let (magic, number_and_kind) = head.split_at_mut_checked(4)?;
    magic.copy_from_slice(&MAGIC);
    let (number_bytes, kind) = number_and_kind.split_at_mut_checked(4)?;
    number_bytes.copy_from_slice(&number.to_le_bytes());
    let (code, reseed) = match request {
        Request::Freeze { on: true } => (1, None),
        Request::Freeze { on: false } => (2, None),
        Request::Reseed(it) => (3, Some(it)),
        Request::Route => (4, None),
    };
    kind.fill(code);
    let Some(it) = reseed else { return Some(()) };
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

/// Decodes a request and its number. Returns `None` for a message that no encoder writes.
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
            Request::Reseed(Reseed { now, entropy, machine_id, boot_id, hostname })
        }
        4 => Request::Route,
        _ => return None,
    };
    // No other bytes may follow.
    rest.iter().all(|byte| *byte == 0).then_some((number, request))
}

/// Encodes the answer to a request: 0 or an error number.
pub fn answer(number: u32, errno: i32) -> [u8; ANSWER] {
    let mut answer = [0; ANSWER];
    let parts = MAGIC.into_iter().chain(number.to_le_bytes()).chain(errno.to_le_bytes());
    answer.iter_mut().zip(parts).for_each(|(slot, byte)| *slot = byte);
    answer
}

/// Decodes an answer into the request's number and an error number.
pub fn read_answer(message: &[u8]) -> Option<(u32, i32)> {
    let (magic, rest) = message.split_first_chunk::<4>()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (errno, rest) = rest.split_first_chunk()?;
    let good = magic == &MAGIC && rest.is_empty();
    good.then(|| (u32::from_le_bytes(*number), i32::from_le_bytes(*errno)))
}
