//! Counts of what is not kept of a layer's files.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Counts of files of an image of which something is not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Files of other owners or groups than root. All files belong to the owner of the store.
    pub owners: u64,
    /// Files and directories with set-user-ID or set-group-ID bits, which are removed.
    pub set_id: u64,
    /// Files with extended attributes, such as capabilities, which are removed.
    pub attributes: u64,
    /// Devices and FIFOs, which are left out.
    pub special: u64,
}

impl Dropped {
    /// Returns true if everything is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the counts of another layer.
    pub(crate) fn add(&mut self, other: Self) {
        let Self { owners, set_id, attributes, special } = other;
        self.owners = self.owners.saturating_add(owners);
        self.set_id = self.set_id.saturating_add(set_id);
        self.attributes = self.attributes.saturating_add(attributes);
        self.special = self.special.saturating_add(special);
    }
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.owners, "owners of", "files"),
            (self.set_id, "set-id bits of", "files"),
            (self.attributes, "extended attributes of", "files"),
            (self.special, "", "devices or FIFOs"),
        ];
        let parts = counts.into_iter().filter(|(count, ..)| *count > 0);
        let parts: Vec<String> =
            parts.map(|(count, of, what)| format!("{of} {count} {what}").trim().to_owned()).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_added_and_shown_if_they_are_not_zero() {
        let mut all = Dropped::default();
        assert!(all.is_empty() && all.to_string().is_empty());
        all.add(Dropped { owners: 2, special: 1, ..Dropped::default() });
        all.add(Dropped { owners: 1, set_id: 4, ..Dropped::default() });
        assert!(!all.is_empty());
        assert_eq!(all.to_string(), "owners of 3 files, set-id bits of 4 files, 1 devices or FIFOs");
    }
}
