//! Creation of file systems from directories, as an ordinary user, reproducibly.
//!
//! `mkfs.ext4 -d` copies owners and times from the directory. The user who unpacked it owns all of it, and its inodes
//! were just changed. So both are normalized afterwards: every inode in the image belongs to root and has one fixed
//! time. That is why these file systems have no metadata checksums.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_linux::programs;

use super::error::{ImageError, Result, io};
use super::tool;

/// The time of all inodes: 1 January 2020.
const EPOCH: u32 = 1_577_836_800;
/// A fixed UUID, so that nothing in an image is random.
const IDENTITY: &str = "c0ffe4da-0000-4000-8000-000000000001";
const BLOCK: u64 = 4096;
const INODE: u64 = 256;
/// Time for a file system of the largest size on a slow disk.
const MKFS_TIMEOUT: Duration = Duration::from_secs(600);
/// Paths of distributions; an ordinary user's PATH may lack these directories.
const TOOLS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "mkfs.ext4"];

/// Space that a directory needs in a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Needs {
    /// Blocks of contents.
    pub blocks: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl Needs {
    /// Counts one more entry of this size.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.blocks += bytes.div_ceil(BLOCK) + 1;
        self.inodes += 1;
    }

    /// Returns the size of an image for it, including tables and a reserve.
    fn bytes(self) -> u64 {
        let inodes = (self.inodes + 64) * INODE;
        let contents = self.blocks * BLOCK;
        (contents + contents / 32 + inodes + inodes / 8 + (4 << 20)).next_multiple_of(1 << 20)
    }
}

fn tool() -> Result<Command> {
    let found = TOOLS.iter().find(|path| path.starts_with('/') && Path::new(path).exists());
    programs::command(found.unwrap_or(&TOOLS[2])).map_err(|distrust| match distrust.is_missing() {
        true => ImageError::MissingTool { tool: TOOLS[2] },
        false => distrust.into(),
    })
}

/// Returns the version of mkfs, which is part of an image's key.
///
/// # Errors
///
/// [`ImageError::MissingTool`], and those of starting it.
pub fn version() -> Result<String> {
    let mut command = tool()?;
    command.arg("-V").stdin(Stdio::null());
    let finished = tool::finish(command, "mkfs.ext4", Duration::from_secs(10))?;
    Ok(finished.output.lines().next().unwrap_or_default().to_owned())
}

/// Writes an image of `directory`.
pub(crate) fn make(directory: &Path, image: &Path, needs: Needs) -> Result<()> {
    let file = File::options().create_new(true).read(true).write(true).open(image).map_err(io("create", image))?;
    file.set_len(needs.bytes()).map_err(io("write", image))?;
    let mut command = options(needs.inodes + 64)?;
    command.arg("-d").arg(directory).arg(image);
    tool::finish(command, "mkfs.ext4", MKFS_TIMEOUT)?.ok()?;
    normalize(&file).map_err(io("normalize", image))?;
    file.sync_all().map_err(io("write", image))
}

/// Creates an empty file system for so many files on a whole file, which needs no name.
///
/// # Errors
///
/// [`ImageError::MissingTool`], [`ImageError::ToolFailed`], and those of the operating system.
pub fn make_empty(file: &File, files: u64) -> Result<()> {
    let passed = file.try_clone().map_err(io("copy the descriptor of", "a disk"))?;
    let mut command = options(files.max(64) + 16)?;
    // The file is empty, so tables without contents are zero already.
    command.args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"]);
    command.arg(format!("/proc/self/fd/{}", passed.as_raw_fd()));
    tool::finish_with(command, "mkfs.ext4", MKFS_TIMEOUT, vec![passed.into()])?.ok()
}

fn options(inodes: u64) -> Result<Command> {
    let mut command = tool()?;
    command.args(["-q", "-F", "-m", "0", "-b", "4096", "-I", "256", "-U", IDENTITY, "-L", "cofferdam"]);
    command.args(["-O", "^has_journal,^metadata_csum,^resize_inode,^uninit_bg,^64bit,^flex_bg"]);
    command.args(["-E", &format!("hash_seed={IDENTITY},root_owner=0:0,lazy_itable_init=0,nodiscard")]);
    command.arg("-N").arg(inodes.to_string());
    command.env("E2FSPROGS_FAKE_TIME", EPOCH.to_string()).env("LC_ALL", "C").stdin(Stdio::null());
    Ok(command)
}

/// The part of a superblock that locates inodes.
struct Layout {
    inodes: u32,
    inodes_per_group: u32,
    inode_size: u64,
    block: u64,
    first_data_block: u64,
}

impl Layout {
    fn read(image: &File) -> std::io::Result<Self> {
        let mut superblock = [0; 1024];
        image.read_exact_at(&mut superblock, 1024)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| superblock[at + byte]));
        let half = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
        let bad = |what| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
        if half(0x38) != 0xef53 || word(0x18) > 6 {
            return bad("not an ext4 file system");
        }
        const CHECKSUMS: u32 = 0x400 | 0x10;
        const WIDE: u32 = 0x80;
        if word(0x64) & CHECKSUMS != 0 || word(0x60) & WIDE != 0 || word(0x28) == 0 || half(0x58) < 160 {
            return bad("the file system has unexpected features");
        }
        Ok(Self {
            inodes: word(0),
            inodes_per_group: word(0x28),
            inode_size: half(0x58).into(),
            block: 1024 << word(0x18),
            first_data_block: word(0x14).into(),
        })
    }

    /// Returns the offset of a group's inode table.
    fn table(&self, image: &File, group: u32) -> std::io::Result<u64> {
        const DESCRIPTOR: u64 = 32;
        let mut descriptor = [0; DESCRIPTOR as usize];
        let at = (self.first_data_block + 1) * self.block + u64::from(group) * DESCRIPTOR;
        image.read_exact_at(&mut descriptor, at)?;
        Ok(u64::from(u32::from_le_bytes([8, 9, 10, 11].map(|byte: usize| descriptor[byte]))) * self.block)
    }
}

/// Sets owner and time of every inode.
fn normalize(image: &File) -> std::io::Result<()> {
    let layout = Layout::read(image)?;
    let size = usize::try_from(layout.inode_size).unwrap_or(usize::MAX);
    for group in 0..layout.inodes.div_ceil(layout.inodes_per_group) {
        let at = layout.table(image, group)?;
        let mut table = vec![0; size * layout.inodes_per_group as usize];
        image.read_exact_at(&mut table, at)?;
        table.chunks_exact_mut(size).filter(|inode| inode[..2] != [0, 0]).for_each(normalize_inode);
        image.write_all_at(&table, at)?;
    }
    Ok(())
}

fn normalize_inode(inode: &mut [u8]) {
    // User and group, low and high halves.
    for at in [0x02, 0x18, 0x78, 0x7a] {
        inode[at..at + 2].fill(0);
    }
    // Access, change, modification; creation.
    for at in [0x08, 0x0c, 0x10, 0x90] {
        inode[at..at + 4].copy_from_slice(&EPOCH.to_le_bytes());
    }
    // Fractions of the times, and the generation number, which distinguishes files with the same inode number.
    for at in [0x84, 0x88, 0x8c, 0x94, 0x64] {
        inode[at..at + 4].fill(0);
    }
}

/// Refuses an image that would be too large.
pub(crate) fn check_size(needs: Needs, max: u64) -> Result<()> {
    let bytes = needs.bytes();
    if bytes > max { Err(ImageError::TooLarge { bytes, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_same_directory_gives_the_same_image_whose_files_are_roots() {
        if version().is_err() {
            println!("SKIP the_same_directory_gives_the_same_image_whose_files_are_roots: no mkfs.ext4 (e2fsprogs)");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let image_of = |name: &str| {
            let directory = temp.path().join(name);
            fs::create_dir_all(directory.join("a/b")).unwrap();
            fs::write(directory.join("a/b/file"), vec![7; 10_000]).unwrap();
            std::os::unix::fs::symlink("b/file", directory.join("a/link")).unwrap();
            let mut needs = Needs::default();
            [4096, 4096, 10_000, 10].into_iter().for_each(|bytes| needs.add(bytes));
            let image = temp.path().join(format!("{name}.ext4"));
            make(&directory, &image, needs).unwrap();
            fs::read(image).unwrap()
        };
        let first = image_of("one");
        std::thread::sleep(Duration::from_millis(1100));
        assert!(first == image_of("two"), "images differ");
        let file = File::open(temp.path().join("one.ext4")).unwrap();
        let layout = Layout::read(&file).unwrap();
        let mut inode = [0; 256];
        file.read_exact_at(&mut inode, layout.table(&file, 0).unwrap() + 256).unwrap();
        assert_eq!(&inode[8..12], EPOCH.to_le_bytes());
    }

    #[test]
    fn what_is_no_file_system_is_not_touched() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0x55; 8192], 0).unwrap();
        assert!(normalize(&file).is_err());
    }
}
