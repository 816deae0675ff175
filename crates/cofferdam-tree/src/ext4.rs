//! Creation of file systems from directories, as an ordinary user.
//!
//! `mkfs.ext4 -d` copies owners and times from the directory. The user who unpacked it owns all of it, and its inodes
//! were just changed. So they are set afterwards. In an image, which is read-only, every inode belongs to root and has
//! one fixed time, so that images are reproducible. A [`Writable`] file system has a journal and metadata checksums,
//! and every file has the owner that its user wants.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_linux::programs;

use super::error::{Result, TreeError, io};
use super::inodes::{self, Uniform};
use super::tool;

/// The time of all inodes: 1 January 2020.
const EPOCH: u32 = 1_577_836_800;
/// A fixed UUID, so that nothing in an image is random.
const IDENTITY: &str = "c0ffe4da-0000-4000-8000-000000000001";
const BLOCK: u64 = 4096;
const INODE: u64 = 256;
/// Features of a file system to write to. They are listed, since the defaults depend on the host, and old kernels of
/// guests and readers do not know all of them.
const WRITABLE: &str = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,\
                        huge_file,dir_nlink,extra_isize,metadata_csum";
/// Time for a file system of the largest size on a slow disk.
const MKFS_TIMEOUT: Duration = Duration::from_secs(600);
/// Paths of distributions; an ordinary user's PATH may lack these directories.
const TOOLS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "mkfs.ext4"];

/// Space that a directory needs in a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Blocks of contents.
    pub blocks: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

impl Needs {
    /// Counts one more entry of this size.
    pub fn add(&mut self, bytes: u64) {
        self.blocks = self.blocks.saturating_add(bytes.div_ceil(BLOCK) + 1);
        self.inodes += 1;
    }

    /// Returns the size of the blocks in bytes.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        self.blocks.saturating_mul(BLOCK)
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
        true => TreeError::MissingTool { tool: TOOLS[2] },
        false => distrust.into(),
    })
}

/// Returns the version of mkfs, which is part of an image's key.
///
/// # Errors
///
/// [`TreeError::MissingTool`], and those of starting it.
pub fn version() -> Result<String> {
    let mut command = tool()?;
    command.arg("-V").stdin(Stdio::null());
    let finished = tool::finish(command, "mkfs.ext4", Duration::from_secs(10))?;
    Ok(finished.output.lines().next().unwrap_or_default().to_owned())
}

/// Writes an image of `directory`.
pub fn make(directory: &Path, image: &Path, needs: Needs) -> Result<()> {
    let file = File::options().create_new(true).read(true).write(true).open(image).map_err(io("create", image))?;
    file.set_len(needs.bytes()).map_err(io("write", image))?;
    let mut command = options(needs.inodes + 64)?;
    command.arg("-d").arg(directory).arg(image);
    tool::finish(command, "mkfs.ext4", MKFS_TIMEOUT)?.ok()?;
    let uniform = Uniform { owner: (0, 0), time: Some(EPOCH) };
    inodes::unify(&file, &uniform).map_err(io("normalize", image))?;
    file.sync_all().map_err(io("write", image))
}

/// Creates an empty file system for so many files on a whole file, which needs no name.
///
/// # Errors
///
/// [`TreeError::MissingTool`], [`TreeError::ToolFailed`], and those of the operating system.
pub fn make_empty(file: &File, files: u64) -> Result<()> {
    let passed = file.try_clone().map_err(io("copy the descriptor of", "a disk"))?;
    let mut command = options(files.max(64) + 16)?;
    // The file is empty, so tables without contents are zero already.
    command.args(["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"]);
    command.arg(format!("/proc/self/fd/{}", passed.as_raw_fd()));
    tool::finish_with(command, "mkfs.ext4", MKFS_TIMEOUT, vec![passed.into()])?.ok()
}

/// A file system to write to, which survives crashes.
#[derive(Debug, Clone, Copy)]
pub struct Writable<'a> {
    /// Maximum number of files.
    pub files: u64,
    /// User and group of all its files.
    pub owner: (u32, u32),
    /// The directory whose files it has, with their modes and times. `None` means no files.
    pub from: Option<&'a Path>,
}

/// Creates a file system to write to on a whole empty file, which needs no name. The file stays sparse.
///
/// # Errors
///
/// [`TreeError::MissingTool`], [`TreeError::ToolFailed`], also if the files do not fit, and those of the operating
/// system.
pub fn make_writable(file: &File, writable: &Writable<'_>) -> Result<()> {
    let passed = file.try_clone().map_err(io("copy the descriptor of", "a disk"))?;
    let mut command = tool()?;
    command.args(["-q", "-F", "-m", "0", "-b", "4096", "-I", "256", "-L", "cofferdam", "-O", WRITABLE]);
    // The file is empty, so tables and a journal without contents are zero already.
    command.args(["-E", "root_owner=0:0,lazy_itable_init=1,lazy_journal_init=1,nodiscard"]);
    command.arg("-N").arg((writable.files.max(64) + 16).to_string());
    if let Some(directory) = writable.from {
        command.arg("-d").arg(directory);
    }
    command.arg(format!("/proc/self/fd/{}", passed.as_raw_fd())).env("LC_ALL", "C");
    tool::finish_with(command, "mkfs.ext4", MKFS_TIMEOUT, vec![passed.into()])?.ok()?;
    let uniform = Uniform { owner: writable.owner, time: None };
    inodes::unify(file, &uniform).map_err(io("set the owners in", "a disk"))
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

/// Refuses an image that would be too large.
pub fn check_size(needs: Needs, max: u64) -> Result<()> {
    let bytes = needs.bytes();
    if bytes > max { Err(TreeError::TooLarge { bytes, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;

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
        let layout = inodes::Layout::read(&file).unwrap();
        let mut inode = [0; 256];
        file.read_exact_at(&mut inode, layout.table(&file, 0).unwrap().0 + 256).unwrap();
        assert_eq!(&inode[8..12], EPOCH.to_le_bytes());
    }

    #[test]
    fn a_writable_file_system_has_its_files_with_their_owner_and_is_consistent() {
        let test = "a_writable_file_system_has_its_files_with_their_owner_and_is_consistent";
        let check = ["/usr/sbin/e2fsck", "/sbin/e2fsck"].into_iter().find(|path| Path::new(path).exists());
        let (Ok(_), Some(check)) = (version(), check) else {
            println!("SKIP {test}: no mkfs.ext4 or e2fsck (e2fsprogs)");
            return;
        };
        let temp = tempfile::tempdir().unwrap();
        let directory = temp.path().join("files");
        fs::create_dir_all(directory.join("a/b")).unwrap();
        for name in 0..300 {
            fs::write(directory.join(format!("a/b/{name}")), vec![7; 5000]).unwrap();
        }
        let path = temp.path().join("disk");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        file.set_len(600 << 20).unwrap();
        // User and group have high and low halves.
        make_writable(&file, &Writable { files: 100_000, owner: (70_000, 1000), from: Some(&directory) }).unwrap();
        let output = Command::new(check).arg("-fn").arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let debug = Command::new(check.replace("e2fsck", "debugfs")).args(["-R", "stat a/b/299"]).arg(&path).output();
        let text = String::from_utf8_lossy(&debug.unwrap().stdout).into_owned();
        assert!(text.contains("User: 70000   Group:  1000"), "{text}");
        use std::os::unix::fs::MetadataExt;
        assert!(file.metadata().unwrap().blocks() * 512 < 16 << 20, "the file is sparse");
        // Too many files for the space.
        let small = tempfile::tempfile().unwrap();
        small.set_len(16 << 20).unwrap();
        fs::write(directory.join("large"), vec![7; 20 << 20]).unwrap();
        let full = make_writable(&small, &Writable { files: 64, owner: (0, 0), from: Some(&directory) });
        assert!(matches!(full, Err(TreeError::ToolFailed { .. })), "{full:?}");
    }
}
