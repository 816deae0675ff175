//! Names under which `config.rs` and `doctor.rs` refer to images.

pub(crate) use cofferdam_image::{Images, Listed, Source};

/// File systems on disks.
pub(crate) mod ext4 {
    use crate::error::Result;

    /// Returns the version of mkfs, without which no disk can be created.
    pub(crate) fn version() -> Result<String> {
        Ok(cofferdam_image::ext4::version()?)
    }
}
