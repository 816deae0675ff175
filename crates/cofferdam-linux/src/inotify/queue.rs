//! Events as the kernel encodes them, from this host or from a guest agent.

pub(super) const MODIFY: u32 = 0x2;
pub(super) const ATTRIB: u32 = 0x4;
pub(super) const MOVED_FROM: u32 = 0x40;
pub(super) const MOVED_TO: u32 = 0x80;
pub(super) const CREATE: u32 = 0x100;
pub(super) const DELETE: u32 = 0x200;
pub(super) const DELETE_SELF: u32 = 0x400;
pub(super) const MOVE_SELF: u32 = 0x800;
pub(super) const UNMOUNT: u32 = 0x2000;
pub(super) const OVERFLOW: u32 = 0x4000;
pub(super) const IGNORED: u32 = 0x8000;
pub(super) const DIRECTORY: u32 = 0x4000_0000;

/// The length of an event without its name.
const HEAD: usize = 16;
/// The maximum length of a name with its padding.
const MAX_NAME: usize = 256 + 16;

/// An event of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawEvent {
    /// The watch.
    pub wd: i32,
    /// The kinds of change.
    pub mask: u32,
    /// The number that both events of a rename have.
    pub cookie: u32,
    /// The name in the watched directory. Empty for the directory itself.
    pub name: Vec<u8>,
}

/// Received bytes, and the events in them.
#[derive(Debug, Default)]
pub struct Queue {
    bytes: Vec<u8>,
    begin: usize,
}

impl Queue {
    /// Adds bytes. Events may be cut anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next complete event. Fails for bytes that no kernel sends.
    pub fn take(&mut self) -> Result<Option<RawEvent>, Invalid> {
        let rest = &self.bytes[self.begin..];
        let Some((head, rest)) = rest.split_first_chunk::<HEAD>() else { return Ok(None) };
        let word = |at: usize| {
            let bytes = [head[at], head[at + 1], head[at + 2], head[at + 3]];
            u32::from_ne_bytes(bytes)
        };
        let length = word(12) as usize;
        if length > MAX_NAME {
            return Err(Invalid);
        }
        let Some(name) = rest.get(..length) else { return Ok(None) };
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        if name.contains(&b'/') || name == b"." || name == b".." || name.len() > 255 {
            return Err(Invalid);
        }
        let raw = RawEvent { wd: word(0) as i32, mask: word(4), cookie: word(8), name: name.to_vec() };
        self.begin += HEAD + length;
        Ok(Some(raw))
    }
}

/// Bytes that are no events.
#[derive(Debug, PartialEq, Eq)]
pub struct Invalid;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(raw: &RawEvent) -> Vec<u8> {
        let padded = if raw.name.is_empty() { 0 } else { (raw.name.len() + 1).next_multiple_of(16) };
        let words = [raw.wd as u32, raw.mask, raw.cookie, padded as u32];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend_from_slice(&raw.name);
        bytes.resize(HEAD + padded, 0);
        bytes
    }

    proptest! {
        #[test]
        fn events_are_read_from_any_parts(
            all in prop::collection::vec((any::<i32>(), any::<u32>(), any::<u32>(), "[a-z]{0,255}"), 1..20),
            cuts in prop::collection::vec(1usize..50, 1..50),
        ) {
            let all: Vec<RawEvent> = all.into_iter().map(|(wd, mask, cookie, name)| RawEvent { wd, mask, cookie, name: name.into() }).collect();
            let bytes: Vec<u8> = all.iter().flat_map(encoded).collect();
            let (mut queue, mut read, mut rest) = (Queue::default(), Vec::new(), &bytes[..]);
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (part, more) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                queue.push(part);
                rest = more;
                while let Some(raw) = queue.take().unwrap() {
                    read.push(raw);
                }
            }
            prop_assert_eq!(read, all);
        }

        /// Promise (Files): Hostile events of a guest agent are refused, or have a single name.
        #[test]
        fn any_bytes_are_refused_or_plain_names(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut queue = Queue::default();
            queue.push(&bytes);
            while let Ok(Some(raw)) = queue.take() {
                prop_assert!(!raw.name.contains(&b'/') && raw.name != b".." && raw.name.len() < 256);
            }
            prop_assert!(queue.bytes.len() <= 600);
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [&b".."[..], b".", b"a/b", b"/etc"] {
            let mut queue = Queue::default();
            queue.push(&encoded(&RawEvent { wd: 1, mask: CREATE, cookie: 0, name: name.to_vec() }));
            assert_eq!(queue.take(), Err(Invalid), "{name:?}");
        }
        let mut queue = Queue::default();
        queue.push(&[0xff; 32]);
        assert_eq!(queue.take(), Err(Invalid));
    }
}
