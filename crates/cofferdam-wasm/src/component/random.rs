//! Random numbers from the host or from a seed, by the same rule for all three interfaces.

use super::bindings::random::{insecure, insecure_seed, random};
use super::error::trap;
use crate::wasi::Host;

/// The maximum bytes of one call.
const MAX_BYTES: u64 = 16 << 20;
/// Bytes between two checks of the guest's limits.
const PIECE: usize = 1 << 20;

impl Host {
    fn random_bytes(&mut self, length: u64) -> wasmtime::Result<Vec<u8>> {
        if length > MAX_BYTES {
            return Err(trap("too many random bytes at once"));
        }
        let mut bytes = vec![0; length as usize];
        for piece in bytes.chunks_mut(PIECE) {
            self.random().fill(piece).map_err(|_| trap("cannot read random bytes from the host"))?;
            self.check().map_err(wasmtime::Error::new)?;
        }
        Ok(bytes)
    }

    fn random_number(&mut self) -> wasmtime::Result<u64> {
        let mut bytes = [0; 8];
        self.random().fill(&mut bytes).map_err(|_| trap("cannot read random bytes from the host"))?;
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
