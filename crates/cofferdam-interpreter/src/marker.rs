//! Detection of the line that an interpreter writes when it is ready, after any output of its modules.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Returns a random token for the start of a line, which other output is very unlikely to contain.
pub fn token() -> String {
    let half = |seed: u8| RandomState::new().hash_one(seed);
    format!("\u{1}{:016x}{:016x}", half(0), half(1))
}

/// A search for a token and the rest of its line in a stream.
#[derive(Debug)]
pub struct Marker {
    token: String,
    seen: Vec<u8>,
    max: usize,
}

/// An error for more output before the line than the maximum.
#[derive(Debug, PartialEq, Eq)]
pub struct OutputTooLarge;

impl Marker {
    /// Creates a search for `token` within the first `max` bytes.
    pub fn new(token: &str, max: usize) -> Self {
        Self { token: token.to_owned(), seen: Vec::new(), max }
    }

    /// Adds data of the stream. Returns the text after the token on its line once the line is complete.
    pub fn push(&mut self, data: &[u8]) -> Result<Option<String>, OutputTooLarge> {
        if self.seen.len() + data.len() > self.max {
            return Err(OutputTooLarge);
        }
        self.seen.extend_from_slice(data);
        let token = self.token.as_bytes();
        let Some(at) = self.seen.windows(token.len()).position(|window| window == token) else { return Ok(None) };
        let rest = &self.seen[at + token.len()..];
        let line = rest.split_inclusive(|&byte| byte == b'\n').next().and_then(|line| line.strip_suffix(b"\n"));
        Ok(line.map(|line| String::from_utf8_lossy(line).trim().to_owned()))
    }

    /// Returns the end of the output before the line.
    pub fn noise(&self) -> String {
        let at = self.seen.windows(self.token.len()).position(|window| window == self.token.as_bytes());
        let noise = &self.seen[..at.unwrap_or(self.seen.len())];
        String::from_utf8_lossy(&noise[noise.len().saturating_sub(2000)..]).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn too_much_noise_is_refused() {
        let mut marker = Marker::new("T", 4);
        assert_eq!(marker.push(b"abc"), Ok(None));
        assert_eq!(marker.push(b"de"), Err(OutputTooLarge));
        assert_ne!(token(), token());
    }

    proptest! {
        /// Promise (Warm interpreters): The end of the preparation output is found wherever the stream is split.
        #[test]
        fn a_line_is_found_wherever_the_stream_is_cut(noise in "[a-z\\n]{0,40}", cuts in prop::collection::vec(1usize..9, 1..40)) {
            let token = token();
            let text = format!("{noise}{token} ready 12\n");
            let mut rest = text.as_bytes();
            let mut marker = Marker::new(&token, 1000);
            let mut cuts = cuts.into_iter().cycle();
            let mut found = None;
            while !rest.is_empty() {
                prop_assert_eq!(&found, &None);
                let (now, later) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                found = marker.push(now).unwrap();
                rest = later;
            }
            prop_assert_eq!(found.as_deref(), Some("ready 12"));
            prop_assert_eq!(marker.noise(), noise.trim());
        }
    }
}
