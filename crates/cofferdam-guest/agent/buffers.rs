//! Buffers of received frames and of frames to send.

use super::sys::{self, Fd, Mapping, Res};
use super::wire::{self, Answer, Frame, HEAD, MAX_BODY, MAX_REQUEST, Sink, Split, WINDOW};

const INBOX: usize = 2 * (HEAD + MAX_BODY);
const OUTBOX: usize = 512 * 1024;

/// A buffer of received frames.
pub struct Inbox {
    bytes: [u8; INBOX],
    begin: usize,
    end: usize,
}

impl Inbox {
    /// An empty inbox.
    pub const NEW: Self = Self { bytes: [0; INBOX], begin: 0, end: 0 };

    /// Reads once. Returns false at the end of the stream.
    pub fn fill(&mut self) -> Res<bool> {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        let Some(rest) = self.bytes.get_mut(self.end..).filter(|rest| !rest.is_empty()) else { return Ok(true) };
        match sys::read(0, rest) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.end += length;
                Ok(true)
            }
            Err(sys::EAGAIN) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Discards all received bytes.
    pub fn clear(&mut self) {
        *self = Self::NEW;
    }

    /// Returns true if there is space for more bytes.
    pub fn has_space(&self) -> bool {
        self.end - self.begin < INBOX
    }

    /// Takes the next frame, if it is complete.
    pub fn next(&mut self) -> Res<Option<Frame<'_>>> {
        match wire::split(self.bytes.get(self.begin..self.end).unwrap_or_default()) {
            Split::Frame(frame, length) => {
                self.begin += length;
                Ok(Some(frame))
            }
            Split::More => Ok(None),
            Split::Invalid => Err(sys::EBADMSG),
        }
    }

    /// Overwrites the bytes of handled frames.
    pub fn wipe(&mut self) {
        for (at, byte) in self.bytes.iter_mut().enumerate() {
            if !(self.begin..self.end).contains(&at) {
                *byte = 0;
            }
        }
    }

    /// Returns true if a complete or invalid frame is next.
    pub fn has_frame(&self) -> bool {
        !matches!(wire::split(self.bytes.get(self.begin..self.end).unwrap_or_default()), Split::More)
    }
}

/// A buffer for a request that arrives in parts.
pub struct Assembly {
    parts: Option<Mapping>,
    length: usize,
}

impl Assembly {
    /// A buffer without a part.
    pub const NEW: Self = Self { parts: None, length: 0 };

    /// Adds a part.
    pub fn add(&mut self, part: &[u8]) -> Res<()> {
        if self.parts.is_none() {
            self.parts = Some(Mapping::anonymous(MAX_REQUEST)?);
            self.length = 0;
        }
        let end = self.length + part.len();
        let parts = self.parts.as_mut().ok_or(sys::EBADMSG)?;
        parts.bytes_mut().get_mut(self.length..end).ok_or(sys::EBADMSG)?.copy_from_slice(part);
        self.length = end;
        Ok(())
    }

    /// Returns true if no part was added.
    pub fn is_empty(&self) -> bool {
        self.parts.is_none()
    }

    /// Returns all parts.
    pub fn bytes(&self) -> &[u8] {
        self.parts.as_ref().and_then(|parts| parts.bytes().get(..self.length)).unwrap_or_default()
    }
}

/// A buffer of bytes from the host that a guest has not read yet, at most one window. It uses memory only while it has
/// bytes.
pub struct Pending {
    bytes: Option<Mapping>,
    begin: usize,
    end: usize,
}

impl Pending {
    /// An empty buffer.
    pub const NEW: Self = Self { bytes: None, begin: 0, end: 0 };

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Adds bytes. Fails if they exceed the window.
    pub fn add(&mut self, data: &[u8]) -> Res<()> {
        let length = self.end - self.begin;
        if length + data.len() > WINDOW {
            return Err(sys::EBADMSG);
        }
        if self.bytes.is_none() {
            self.bytes = Some(Mapping::anonymous(2 * WINDOW)?);
        }
        let Some(bytes) = &mut self.bytes else { return Err(sys::EBADMSG) };
        let bytes = bytes.bytes_mut();
        if self.end + data.len() > bytes.len() {
            bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, length);
        }
        let space = bytes.get_mut(self.end..self.end + data.len()).ok_or(sys::EBADMSG)?;
        space.copy_from_slice(data);
        self.end += data.len();
        Ok(())
    }

    /// Writes as many bytes as a non-blocking descriptor takes. Returns their number, and the error if it is broken.
    pub fn write_to(&mut self, fd: &Fd) -> (usize, Res<()>) {
        let mut written = 0;
        let mut result = Ok(());
        while let Some(bytes) = self.bytes.as_ref().and_then(|all| all.bytes().get(self.begin..self.end)) {
            if bytes.is_empty() {
                break;
            }
            match sys::write(fd.number(), bytes) {
                Ok(length) => {
                    self.begin += length;
                    written += length;
                }
                Err(sys::EAGAIN) => break,
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            }
        }
        if self.is_empty() {
            self.clear();
        }
        (written, result)
    }

    /// Discards all bytes. Returns their number.
    pub fn clear(&mut self) -> usize {
        let length = self.end - self.begin;
        *self = Self::NEW;
        length
    }
}

/// A buffer of frames to send.
pub struct Outbox {
    bytes: [u8; OUTBOX],
    begin: usize,
    end: usize,
    overflowed: bool,
}

impl Outbox {
    /// An empty outbox.
    pub const NEW: Self = Self { bytes: [0; OUTBOX], begin: 0, end: 0, overflowed: false };

    /// Returns the number of free bytes.
    pub fn free(&self) -> usize {
        OUTBOX - (self.end - self.begin)
    }

    /// Returns true if all frames are sent.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Overwrites the sent bytes, if all are sent.
    pub fn wipe(&mut self) {
        if self.is_empty() {
            *self = Self::NEW;
        }
    }

    /// Returns true if an answer was lost because the buffer was full. The callers check the space, so this is a bug.
    pub fn is_broken(&self) -> bool {
        self.overflowed
    }

    /// Returns a free part of this length at the end.
    fn space(&mut self, length: usize) -> Option<&mut [u8]> {
        if self.is_empty() {
            (self.begin, self.end) = (0, 0);
        } else if self.end + length > OUTBOX {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        self.bytes.get_mut(self.end..self.end + length)
    }

    /// Adds an answer.
    pub fn answer(&mut self, id: u64, answer: &Answer<'_>) {
        let mut length = Length(0);
        answer.encode(&mut length);
        let body = length.0;
        match self.space(HEAD + body) {
            Some(space) => {
                let mut cursor = Cursor { space, length: 0 };
                cursor.put(&wire::head(answer.kind(), id, body));
                answer.encode(&mut cursor);
                self.end += HEAD + body;
            }
            None => self.overflowed = true,
        }
    }

    /// Adds a frame of this kind. Its body consists of `before` and of the bytes that `fill` writes into at most `max`
    /// bytes. Adds no frame if `fill` writes nothing.
    pub fn fill(
        &mut self,
        kind: u8,
        id: u64,
        before: &[u8],
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Res<usize>,
    ) -> Res<usize> {
        let start = HEAD + before.len();
        let space = self.space(start + max).ok_or(sys::EAGAIN)?;
        let length = fill(space.get_mut(start..).unwrap_or_default())?;
        if length > 0 {
            let mut cursor = Cursor { space, length: 0 };
            cursor.put(&wire::head(kind, id, before.len() + length));
            cursor.put(before);
            self.end += start + length;
        }
        Ok(length)
    }

    /// Sends as many bytes as the descriptor takes.
    pub fn flush(&mut self) -> Res<()> {
        while !self.is_empty() {
            match sys::write(1, self.bytes.get(self.begin..self.end).unwrap_or_default()) {
                Ok(length) => self.begin += length,
                Err(sys::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

struct Length(usize);

impl Sink for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// A sink that writes into a slice and drops what exceeds it.
pub struct Cursor<'a> {
    /// The slice.
    pub space: &'a mut [u8],
    /// The number of bytes written.
    pub length: usize,
}

impl Sink for Cursor<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(slot) = self.space.get_mut(self.length..self.length + bytes.len()) {
            slot.copy_from_slice(bytes);
            self.length += bytes.len();
        }
    }
}
