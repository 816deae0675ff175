//! A file's content, in pieces that are allocated when they are written. Holes read as zeros and take no memory.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The maximum piece size.
const PIECE: usize = 64 << 10;
/// The minimum piece size. The sizes are powers of two.
const MIN_PIECE: usize = 256;
/// The cost of a piece besides its bytes.
const PIECE_COST: u64 = 64;
/// The maximum file length, holes included: 1 TiB.
pub(crate) const MAX_LENGTH: u64 = 1 << 40;

/// A file's content. A copy shares its pieces until one of the two changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    pieces: BTreeMap<u64, Arc<Vec<u8>>>,
    length: u64,
}

impl Contents {
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the cost of all pieces.
    pub(crate) fn cost(&self) -> u64 {
        self.pieces.values().map(|piece| piece.len() as u64 + PIECE_COST).sum()
    }

    /// Returns the pieces with their numbers. They are shared with this file.
    pub(crate) fn pieces(&self) -> Vec<(u64, Arc<Vec<u8>>)> {
        self.pieces.iter().map(|(number, piece)| (*number, Arc::clone(piece))).collect()
    }

    /// Creates a file of these pieces, or returns nothing if they are invalid.
    pub(crate) fn of_pieces(length: u64, pieces: &[(u64, Arc<Vec<u8>>)]) -> Option<Self> {
        let whole = pieces.iter().all(|(number, piece)| {
            let inside = number.checked_mul(PIECE as u64).is_some_and(|start| start < length);
            inside && piece.len() == piece_size(piece.len())
        });
        let by_number: BTreeMap<_, _> = pieces.iter().cloned().collect();
        let mut contents = Self { pieces: by_number, length };
        if !whole || contents.pieces.len() != pieces.len() {
            return None;
        }
        // The bytes behind the end must be zeros.
        contents.clear_behind();
        Some(contents)
    }

    fn clear_behind(&mut self) {
        let (number, within) = locate(self.length);
        if let Some(piece) = self.pieces.get_mut(&number)
            && piece.get(within..).is_some_and(|rest| rest.iter().any(|byte| *byte != 0))
        {
            Arc::make_mut(piece)[within..].fill(0);
        }
    }

    /// Copies bytes from `offset` into `buffer`, and returns their number.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let total = buffer.len().min(left);
        let mut done = 0;
        while done < total {
            let (number, within) = locate(offset + done as u64);
            let size = (total - done).min(PIECE - within);
            let target = &mut buffer[done..done + size];
            let have = self.pieces.get(&number).map_or(&[][..], |piece| piece.get(within..).unwrap_or_default());
            let copied = have.len().min(size);
            target[..copied].copy_from_slice(&have[..copied]);
            target[copied..].fill(0);
            done += size;
        }
        total
    }

    /// Returns the additional cost of writing `length` bytes at `offset`.
    pub(crate) fn cost_of_write(&self, offset: u64, length: usize) -> u64 {
        let mut cost = 0;
        let mut done = 0;
        while done < length {
            let (number, within) = locate(offset + done as u64);
            let size = (length - done).min(PIECE - within);
            let wanted = piece_size(within + size);
            cost += match self.pieces.get(&number) {
                Some(piece) => wanted.saturating_sub(piece.len()) as u64,
                None => wanted as u64 + PIECE_COST,
            };
            done += size;
        }
        cost
    }

    /// Writes bytes at `offset`. Their end must be at most [`MAX_LENGTH`].
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let (number, within) = locate(offset + done as u64);
            let size = (data.len() - done).min(PIECE - within);
            let piece = Arc::make_mut(self.pieces.entry(number).or_default());
            let wanted = piece_size(within + size);
            if piece.len() < wanted {
                piece.reserve_exact(wanted - piece.len());
                piece.resize(wanted, 0);
            }
            piece[within..within + size].copy_from_slice(&data[done..done + size]);
            done += size;
        }
        self.length = self.length.max(offset + data.len() as u64);
    }

    /// Truncates or extends the file, and returns the freed cost. An extension is a hole.
    pub(crate) fn set_length(&mut self, length: u64) -> u64 {
        if length >= self.length {
            self.length = length;
            return 0;
        }
        let (number, within) = locate(length);
        let first_gone = if within == 0 { number } else { number + 1 };
        let gone = self.pieces.split_off(&first_gone);
        if within > 0
            && let Some(piece) = self.pieces.get_mut(&number)
        {
            let piece = Arc::make_mut(piece);
            let from = within.min(piece.len());
            piece[from..].fill(0);
        }
        self.length = length;
        gone.values().map(|piece| piece.len() as u64 + PIECE_COST).sum()
    }
}

/// Returns the number of the piece at an offset, and the offset within it.
fn locate(offset: u64) -> (u64, usize) {
    (offset / PIECE as u64, (offset % PIECE as u64) as usize)
}

fn piece_size(bytes: usize) -> usize {
    bytes.next_power_of_two().clamp(MIN_PIECE, PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Write(u64, Vec<u8>),
        Length(u64),
        Read(u64, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let offset = 0u64..200_000;
        prop_oneof![
            (offset.clone(), prop::collection::vec(1u8.., 0..90_000)).prop_map(|(at, data)| Step::Write(at, data)),
            offset.clone().prop_map(Step::Length),
            (offset, 0usize..150_000).prop_map(|(at, size)| Step::Read(at, size)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Promise (WebAssembly): File contents in memory behave like one vector of bytes.
        #[test]
        fn pieces_are_the_same_as_one_vector(steps in prop::collection::vec(step(), 0..12)) {
            let (mut contents, mut model, mut cost) = (Contents::default(), Vec::<u8>::new(), 0u64);
            for step in steps {
                match step {
                    Step::Write(at, data) => {
                        cost += contents.cost_of_write(at, data.len());
                        contents.write(at, &data);
                        let at = at as usize;
                        model.resize(model.len().max(at + data.len()), 0);
                        model[at..at + data.len()].copy_from_slice(&data);
                    }
                    Step::Length(length) => {
                        cost -= contents.set_length(length);
                        model.resize(length as usize, 0);
                    }
                    Step::Read(at, size) => {
                        let mut buffer = vec![7; size];
                        let got = contents.read(at, &mut buffer);
                        let from = (at as usize).min(model.len());
                        let expected = &model[from..(from + size).min(model.len())];
                        prop_assert_eq!(&buffer[..got], expected);
                    }
                }
                prop_assert_eq!(contents.length(), model.len() as u64);
                prop_assert_eq!(contents.cost(), cost);
            }
        }
    }

    #[test]
    fn a_hole_costs_nothing() {
        let mut contents = Contents::default();
        contents.set_length(MAX_LENGTH);
        assert_eq!(contents.cost(), 0);
        contents.write(MAX_LENGTH - 1, b"x");
        assert_eq!(contents.cost(), (PIECE as u64) + PIECE_COST);
    }
}
