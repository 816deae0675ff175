//! Random numbers: the host's, or of a seed, by the same rule for all three interfaces.

use super::bindings::random::{insecure, insecure_seed, random};
use super::error::trap;
use crate::wasi::Host;

/// The most bytes of one call.
const MOST: u64 = 16 << 20;
/// Bytes between two looks at whether the guest may go on.
const PIECE: usize = 1 << 20;

impl Host {
    fn random_bytes(&mut self, length: u64) -> wasmtime::Result<Vec<u8>> {
        if length > MOST {
            return Err(trap("too many random bytes at once"));
        }
        let mut bytes = vec![0; length as usize];
        for piece in bytes.chunks_mut(PIECE) {
            self.random().fill(piece).map_err(|_| trap("the host has no random bytes"))?;
            self.check().map_err(wasmtime::Error::new)?;
        }
        Ok(bytes)
    }

    fn random_number(&mut self) -> wasmtime::Result<u64> {
        let mut bytes = [0; 8];
        self.random().fill(&mut bytes).map_err(|_| trap("the host has no random bytes"))?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl random::Host for Host {
    fn get_random_bytes(&mut self, length: u64) -> wasmtime::Result<Vec<u8>> {
        self.random_bytes(length)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        self.random_number()
    }
}

impl insecure::Host for Host {
    fn get_insecure_random_bytes(&mut self, length: u64) -> wasmtime::Result<Vec<u8>> {
        self.random_bytes(length)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        self.random_number()
    }
}

impl insecure_seed::Host for Host {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        Ok((self.random_number()?, self.random_number()?))
    }
}
