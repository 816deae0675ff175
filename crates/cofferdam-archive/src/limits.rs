//! Limits on the archives that a caller is willing to restore.

use crate::error::{ArchiveError, Result};
use crate::head::MAX_PARTS;
use crate::part::{Kind, MAX_JSON, MAX_PAGED, MAX_STATE, Part};

/// Maximum sizes of an archive and its parts, in bytes unless stated otherwise. The bounds of the format apply in
/// addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of parts.
    pub parts: u32,
    /// Size of each document.
    pub json: u64,
    /// Size of each device state.
    pub state: u64,
    /// Size of each memory.
    pub memory: u64,
    /// Size of each disk.
    pub disk: u64,
    /// Size of all parts together.
    pub total: u64,
}

impl Default for Limits {
    /// Returns limits for VMs of ordinary size: 16 parts, 1 MiB for each document, 64 MiB for each device state, 64 GiB
    /// for each memory and each disk, and 256 GiB in total.
    fn default() -> Self {
        Self { parts: 16, json: 1 << 20, state: 64 << 20, memory: 64 << 30, disk: 64 << 30, total: 256 << 30 }
    }
}

impl Limits {
    /// The bounds of the format. Documents are held in memory, 4 MiB each.
    pub const FORMAT: Self = Self {
        parts: MAX_PARTS,
        json: MAX_JSON,
        state: MAX_STATE,
        memory: MAX_PAGED,
        disk: MAX_PAGED,
        total: MAX_PARTS as u64 * MAX_PAGED,
    };

    /// Refuses the first part that is too large by itself or makes the total too large.
    pub(crate) fn check(&self, parts: &[Part]) -> Result<()> {
        if parts.len() as u64 > u64::from(self.parts) {
            return Err(ArchiveError::TooManyParts { found: parts.len() as u64, max: self.parts.into() });
        }
        let mut left = self.total;
        for part in parts {
            let max = self.of(part.kind).min(left);
            if part.size > max {
                return Err(ArchiveError::TooLarge { part: part.name.to_string(), size: part.size, max });
            }
            left -= part.size;
        }
        Ok(())
    }

    fn of(&self, kind: Kind) -> u64 {
        let max = match kind {
            Kind::Json => self.json,
            Kind::State => self.state,
            Kind::Memory => self.memory,
            Kind::Disk => self.disk,
        };
        max.min(kind.max_size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::Name;

    #[test]
    fn each_and_all_are_bounded() {
        let part = |kind, size| Part { name: Name::new("p").unwrap(), kind, size, base: None };
        let limits = Limits { parts: 3, json: 1, state: 2, memory: 10, disk: 20, total: 25 };
        let good = |parts: &[Part]| limits.check(parts).is_ok();
        assert!(good(&[part(Kind::Memory, 10), part(Kind::Disk, 15)]));
        assert!(!good(&[part(Kind::Memory, 10), part(Kind::Disk, 16)]));
        assert!(!good(&[part(Kind::Memory, 11)]));
        assert!(!good(&[part(Kind::State, 3)]));
        assert!(!good(&[part(Kind::Json, 2)]));
        assert!(!good(&vec![part(Kind::Json, 0); 4]));
        let all = Limits { total: u64::MAX, memory: u64::MAX, ..limits };
        assert!(all.check(&[part(Kind::Memory, MAX_PAGED + 1)]).is_err());
    }
}
