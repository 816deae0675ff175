//! Texts of limited length, for paths and values in kernel interfaces.

/// A text of less than `N` bytes. There is always space for a NUL after it.
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    /// Creates an empty text.
    pub const fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    /// Adds bytes; returns `None`, and adds nothing, if they do not fit.
    pub fn push(&mut self, text: &[u8]) -> Option<&mut Self> {
        let end = self.length.checked_add(text.len()).filter(|end| *end < N)?;
        self.bytes.get_mut(self.length..end)?.copy_from_slice(text);
        self.length = end;
        Some(self)
    }

    /// Adds a number in decimal digits.
    pub fn push_number(&mut self, number: u64) -> Option<&mut Self> {
        self.push_digits(number, 10)
    }

    /// Adds a number in octal digits.
    pub fn push_octal(&mut self, number: u64) -> Option<&mut Self> {
        self.push_digits(number, 8)
    }

    fn push_digits(&mut self, number: u64, base: u64) -> Option<&mut Self> {
        let mut digits = [0; 24];
        let mut first = digits.len();
        let mut rest = number;
        loop {
            first -= 1;
            *digits.get_mut(first)? = b'0' + (rest % base) as u8;
            rest /= base;
            if rest == 0 {
                break;
            }
        }
        self.push(digits.get(first..)?)
    }

    /// Returns the text.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns the text, followed by a NUL.
    pub fn terminated(&self) -> &[u8] {
        self.bytes.get(..=self.length).unwrap_or(b"\0")
    }
}
