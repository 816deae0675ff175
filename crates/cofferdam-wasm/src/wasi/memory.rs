//! A guest's memory during a call. Every pointer and length comes from the guest and is untrusted.

use super::abi::Errno;

/// The maximum number of buffers of one read or write.
const MAX_BUFFERS: u32 = 1024;
/// The maximum length of a string argument.
const MAX_TEXT: u32 = 8192;

/// A guest's memory.
pub(crate) struct Memory<'a>(pub(crate) &'a mut [u8]);

type Result<T> = std::result::Result<T, Errno>;

impl Memory<'_> {
    pub(crate) fn slice(&self, at: u32, length: u32) -> Result<&[u8]> {
        let end = (at as usize).checked_add(length as usize).ok_or(Errno::Fault)?;
        self.0.get(at as usize..end).ok_or(Errno::Fault)
    }

    pub(crate) fn slice_mut(&mut self, at: u32, length: u32) -> Result<&mut [u8]> {
        let end = (at as usize).checked_add(length as usize).ok_or(Errno::Fault)?;
        self.0.get_mut(at as usize..end).ok_or(Errno::Fault)
    }

    fn array<const N: usize>(&self, at: u32) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.slice(at, N as u32)?);
        Ok(bytes)
    }

    pub(crate) fn u8(&self, at: u32) -> Result<u8> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    pub(crate) fn u16(&self, at: u32) -> Result<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&self, at: u32) -> Result<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&self, at: u32) -> Result<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub(crate) fn put(&mut self, at: u32, bytes: &[u8]) -> Result<()> {
        let length = u32::try_from(bytes.len()).map_err(|_| Errno::Overflow)?;
        self.slice_mut(at, length)?.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn put_u32(&mut self, at: u32, value: u32) -> Result<()> {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn put_u64(&mut self, at: u32, value: u64) -> Result<()> {
        self.put(at, &value.to_le_bytes())
    }

    pub(crate) fn text(&self, at: u32, length: u32) -> Result<String> {
        if length > MAX_TEXT {
            return Err(Errno::Nametoolong);
        }
        std::str::from_utf8(self.slice(at, length)?).map(str::to_owned).map_err(|_| Errno::Ilseq)
    }

    /// Returns the addresses and lengths of buffers, truncated to `max` bytes in total.
    pub(crate) fn buffers(&self, at: u32, count: u32, max: u32) -> Result<Vec<(u32, u32)>> {
        if count > MAX_BUFFERS {
            return Err(Errno::Inval);
        }
        let mut left = max;
        let mut buffers = Vec::with_capacity(count as usize);
        for number in 0..count {
            let entry = at.checked_add(number * 8).ok_or(Errno::Fault)?;
            let (start, length) = (self.u32(entry)?, self.u32(entry.checked_add(4).ok_or(Errno::Fault)?)?);
            self.slice(start, length)?;
            let taken = length.min(left);
            left -= taken;
            if taken > 0 {
                buffers.push((start, taken));
            }
        }
        Ok(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Promise (WebAssembly): No pointer of a module leads out of its memory.
        #[test]
        fn no_pointer_reaches_outside(at: u32, length: u32, size in 0usize..200) {
            let mut bytes = vec![0; size];
            let memory = Memory(&mut bytes);
            let inside = u64::from(at) + u64::from(length) <= size as u64;
            prop_assert_eq!(memory.slice(at, length).is_ok(), inside);
            let _ = memory.text(at, length);
            let _ = memory.u64(at);
            if let Ok(buffers) = memory.buffers(at % 256, length % 32, 64) {
                prop_assert!(buffers.iter().map(|(_, length)| length).sum::<u32>() <= 64);
            }
        }
    }
}
