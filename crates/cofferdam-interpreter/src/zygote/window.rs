//! How much output of a fork may be on its way. Pure.
//!
//! Each fork has a window of its own: the relay reads as much of a fork's output as its window holds, and what the host
//! has read opens it again. So one fork's output cannot take the place of another's, and what the host keeps of all of
//! them has a bound. A frame costs more than its bytes, so that many small ones have a bound, too.

/// Bytes that a fork's output, and its input, may be ahead of who reads it.
pub const WINDOW: u32 = 1 << 18;
/// What a frame costs besides its bytes.
const COST: u32 = 16;

/// More came than the window held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun;

/// The window of one fork's output.
#[derive(Debug)]
pub struct Room {
    left: u32,
    read: u32,
}

impl Default for Room {
    fn default() -> Self {
        Self { left: WINDOW, read: 0 }
    }
}

impl Room {
    /// Notes a frame of so many bytes that came and was read. Gives the room to tell the relay of, when it is worth it.
    pub fn read(&mut self, bytes: usize) -> Result<Option<u32>, Overrun> {
        let cost = u32::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(COST)).ok_or(Overrun)?;
        self.left = self.left.checked_sub(cost).ok_or(Overrun)?;
        self.read += cost;
        if self.read < WINDOW / 4 {
            return Ok(None);
        }
        let opened = std::mem::take(&mut self.read);
        self.left += opened;
        Ok(Some(opened))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn more_than_the_window_is_an_overrun() {
        assert_eq!(Room::default().read(WINDOW as usize), Err(Overrun));
        assert_eq!(Room::default().read(usize::MAX), Err(Overrun));
    }

    proptest! {
        /// A relay that keeps to its window is never refused and never stuck.
        #[test]
        fn a_relay_that_keeps_to_its_window_goes_on(frames in prop::collection::vec(1u32..40_000, 1..200)) {
            let (mut host, mut relay) = (Room::default(), WINDOW);
            for want in frames {
                prop_assert!(relay > COST);
                let bytes = want.min(relay - COST);
                relay -= bytes + COST;
                relay += host.read(bytes as usize).unwrap().unwrap_or(0);
                prop_assert_eq!(relay, host.left);
            }
        }
    }
}
