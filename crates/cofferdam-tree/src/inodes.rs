//! Changes to all inodes of a file system in a file that only this process uses.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crc::{CRC_32_ISCSI, Crc};

const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
/// Inodes before this one are reserved, except that of the root directory.
const FIRST_ORDINARY: u32 = 11;
const ROOT: u32 = 2;
const CHECKSUM_LOW: usize = 0x7c;
const CHECKSUM_HIGH: usize = 0x82;
const GENERATION: usize = 0x64;

/// The owner and the times of all files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Uniform {
    /// User and group.
    pub owner: (u32, u32),
    /// Time in seconds since 1970. `None` leaves the times of each file.
    pub time: Option<u32>,
}

/// The part of a superblock that locates inodes.
#[derive(Debug)]
pub(crate) struct Layout {
    inodes: u32,
    inodes_per_group: u32,
    inode_size: u64,
    block: u64,
    first_data_block: u64,
    descriptor: u64,
    /// Beginning of the checksum of every inode, if inodes have checksums.
    seed: Option<u32>,
}

impl Layout {
    pub fn read(image: &File) -> io::Result<Self> {
        let mut superblock = [0; 1024];
        image.read_exact_at(&mut superblock, 1024)?;
        let (word, half) = (|at| word(&superblock, at), |at| half(&superblock, at));
        let bad = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if half(0x38) != 0xef53 || word(0x18) > 6 {
            return bad("not an ext4 file system");
        }
        // Checksums of groups without those of inodes; a seed that is not the UUID.
        const GROUP_CHECKSUMS: u32 = 0x10;
        const OWN_SEED: u32 = 0x2000;
        const CHECKSUMS: u32 = 0x400;
        const WIDE: u32 = 0x80;
        let (compatible, incompatible) = (word(0x64), word(0x60));
        let descriptor = if incompatible & WIDE != 0 { half(0xfe).into() } else { 32 };
        let is_expected = compatible & GROUP_CHECKSUMS == 0
            && incompatible & OWN_SEED == 0
            && word(0x28) != 0
            && (160..=4096).contains(&half(0x58))
            && matches!(descriptor, 32 | 64);
        if !is_expected {
            return bad("the file system has unexpected features");
        }
        let has_checksums = compatible & CHECKSUMS != 0;
        Ok(Self {
            inodes: word(0),
            inodes_per_group: word(0x28),
            inode_size: half(0x58).into(),
            block: 1024 << word(0x18),
            first_data_block: word(0x14).into(),
            descriptor,
            seed: has_checksums.then(|| checksum(!0, &superblock[0x68..0x78])),
        })
    }

    /// Returns the offset of a group's inode table, and the number of inodes in it that were ever used.
    pub fn table(&self, image: &File, group: u32) -> io::Result<(u64, u32)> {
        const UNUSED: u16 = 1;
        let mut bytes = [0; 64];
        let at = (self.first_data_block + 1) * self.block + u64::from(group) * self.descriptor;
        image.read_exact_at(&mut bytes[..usize::try_from(self.descriptor).unwrap_or(32)], at)?;
        let block = u64::from(word(&bytes, 0x28)) << 32 | u64::from(word(&bytes, 8));
        // Only with checksums do descriptors say which inodes are unused.
        let used = match self.seed {
            Some(_) if half(&bytes, 0x12) & UNUSED != 0 => 0,
            Some(_) => {
                let unused = u32::from(half(&bytes, 0x32)) << 16 | u32::from(half(&bytes, 0x1c));
                self.inodes_per_group.saturating_sub(unused)
            }
            None => self.inodes_per_group,
        };
        Ok((block * self.block, used))
    }
}

/// Sets owner and times of every file.
pub(crate) fn unify(image: &File, uniform: &Uniform) -> io::Result<()> {
    let layout = Layout::read(image)?;
    let size = usize::try_from(layout.inode_size).unwrap_or(usize::MAX);
    for group in 0..layout.inodes.div_ceil(layout.inodes_per_group) {
        let (at, used) = layout.table(image, group)?;
        if used == 0 {
            continue;
        }
        let mut table = vec![0; size * used as usize];
        image.read_exact_at(&mut table, at)?;
        for (inode, number) in table.chunks_exact_mut(size).zip(group * layout.inodes_per_group + 1..) {
            let is_file = inode[..2] != [0, 0] && (number >= FIRST_ORDINARY || number == ROOT);
            if is_file {
                set(inode, uniform);
                if let Some(seed) = layout.seed {
                    seal(inode, number, seed);
                }
            }
        }
        image.write_all_at(&table, at)?;
    }
    Ok(())
}

fn set(inode: &mut [u8], uniform: &Uniform) {
    let (uid, gid) = (uniform.owner.0.to_le_bytes(), uniform.owner.1.to_le_bytes());
    // Low and high halves.
    for (at, half) in [(0x02, &uid[..2]), (0x18, &gid[..2]), (0x78, &uid[2..]), (0x7a, &gid[2..])] {
        inode[at..at + 2].copy_from_slice(half);
    }
    let Some(time) = uniform.time else { return };
    // Access, change, modification; creation.
    for at in [0x08, 0x0c, 0x10, 0x90] {
        inode[at..at + 4].copy_from_slice(&time.to_le_bytes());
    }
    // Fractions of the times, and the generation number, which distinguishes files with the same inode number.
    for at in [0x84, 0x88, 0x8c, 0x94, GENERATION] {
        inode[at..at + 4].fill(0);
    }
}

/// Sets the checksum of an inode.
fn seal(inode: &mut [u8], number: u32, seed: u32) {
    for at in [CHECKSUM_LOW, CHECKSUM_HIGH] {
        inode[at..at + 2].fill(0);
    }
    let seed = checksum(seed, &number.to_le_bytes());
    let seed = checksum(seed, &inode[GENERATION..GENERATION + 4]);
    let sum = checksum(seed, inode).to_le_bytes();
    inode[CHECKSUM_LOW..CHECKSUM_LOW + 2].copy_from_slice(&sum[..2]);
    inode[CHECKSUM_HIGH..CHECKSUM_HIGH + 2].copy_from_slice(&sum[2..]);
}

/// Returns CRC32C as the kernel computes it: from any beginning, and not inverted at the end.
fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = CRC.digest_with_initial(seed.reverse_bits());
    digest.update(bytes);
    !digest.finalize()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_a_file_system_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0x55; 8192], 0).unwrap();
        assert!(unify(&file, &Uniform { owner: (0, 0), time: None }).is_err());
    }
}
