//! Values that make a copy of a VM differ from all other copies of the same VM.

use std::fmt;
use std::time::SystemTime;

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_linux::process;

/// The maximum length of a host name.
const MAX_NAME: usize = 63;

/// Values that a copied guest receives before its programs resume in another VM.
#[derive(Clone)]
pub struct Reseed {
    /// The time to which the VM's clock is set.
    pub now: SystemTime,
    /// The new seed of the kernel's random number generator.
    pub entropy: [u8; 64],
    /// The contents of `/etc/machine-id`, if the root file system has such a file.
    pub machine_id: [u8; 16],
    /// The contents of `/proc/sys/kernel/random/boot_id`.
    pub boot_id: [u8; 16],
    /// The VM's host name: lower-case letters, digits, `-` and `.`, at most 63 characters.
    pub hostname: String,
}

impl Reseed {
    /// Creates the values with this host's time, and with random numbers of this host's kernel.
    ///
    /// # Errors
    ///
    /// `Io` if the kernel returns no random numbers.
    pub fn new(hostname: impl Into<String>) -> Result<Self> {
        Ok(Self {
            now: SystemTime::now(),
            entropy: random()?,
            machine_id: random()?,
            boot_id: random()?,
            hostname: hostname.into(),
        })
    }

    /// Returns an error if no guest can use the values.
    pub(crate) fn check(&self) -> Result<()> {
        let name = self.hostname.as_bytes();
        let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
        if !(1..=MAX_NAME).contains(&name.len()) || !name.iter().all(plain) {
            let what = format!("{:?} is not a valid host name of a VM", self.hostname);
            return Err(
                Error::invalid("restore", what).with_remedy("use at most 63 lower-case letters, digits, '-' and '.'")
            );
        }
        if self.entropy == [0; 64] {
            return Err(Error::invalid("restore", "the values for the copy have no entropy"));
        }
        Ok(())
    }
}

impl fmt::Debug for Reseed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reseed").field("now", &self.now).field("hostname", &self.hostname).finish_non_exhaustive()
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    for slot in bytes.chunks_mut(8) {
        let word = process::random().map_err(|error| {
            Error::new(ErrorKind::Io, "restore", "cannot read random numbers from the kernel").with_source(error)
        })?;
        slot.copy_from_slice(&word.to_ne_bytes()[..slot.len()]);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_get_different_values_and_debug_hides_secrets() {
        let (one, other) = (Reseed::new("a").unwrap(), Reseed::new("a").unwrap());
        assert!(one.entropy != other.entropy && one.machine_id != other.machine_id && one.boot_id != other.boot_id);
        assert!(one.entropy.chunks(8).all(|word| word != [0; 8]));
        let shown =
            format!("{:?}", Reseed { now: SystemTime::UNIX_EPOCH, entropy: [0xab; 64], machine_id: [0xcd; 16], ..one });
        assert!(!shown.contains("171") && !shown.contains("205"), "{shown}");
    }

    #[test]
    fn names_have_bounds() {
        for (name, good) in [("a-1.b", true), ("", false), ("A", false), ("a b", false), (&"a".repeat(64), false)] {
            assert_eq!(Reseed::new(name).unwrap().check().is_ok(), good, "{name}");
        }
        assert!(Reseed { entropy: [0; 64], ..Reseed::new("a").unwrap() }.check().is_err());
    }
}
