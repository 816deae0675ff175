//! The template: a mount namespace with the root that every sandbox of this launcher sees, all of it read-only. A
//! sandbox gets a copy in its own namespace and adds only its own mounts.

mod host_files;
mod host_mounts;
mod image_root;
mod mount_points;

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::{named, namespace};
use rustix::fs::{AtFlags, Mode, OFlags};

use super::masked::{MASKED_DIRS, MASKED_FILES};
use super::{Named, Step};
use host_files::{interpreter_settings, read_once};

use crate::protocol::{Configure, Failure, LayerPlan, RootPlan};
pub use host_mounts::HostMounts;

/// A file that only Landlock forbids to read; see `evidence.rs`.
pub const LANDLOCK_PROBE: &str = "/.landlock-probe";
/// The mount point of the template until it becomes the root.
const BUILD_MOUNT_POINT: &str = "/proc";
const READ_ONLY: u64 = attr::RDONLY | attr::NOSUID | attr::NODEV;
/// The maximum size of a file that is copied. Larger files are bind-mounted, and a mount is copied for each sandbox.
const COPY_LIMIT: u64 = 1 << 20;
/// The same limit for a launcher of a single sandbox, which alone uses the copy.
const SINGLE_COPY_LIMIT: u64 = 16 << 10;
/// Top-level directories of the host that programs need.
const SYSTEM: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Stores of package managers that keep programs outside `/usr`.
const STORES: &[&str] = &["/nix/store", "/gnu/store"];
/// Files of `/etc` that programs need and that hold no secret.
const ETC_FILES: &[&str] = &[
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "timezone",
    "os-release",
    "debian_version",
    "mime.types",
    "services",
    "protocols",
    "magic",
    "inputrc",
    "bash.bashrc",
    "profile",
    "ssl/openssl.cnf",
    // Debian's matplotlib does not start without it.
    "matplotlibrc",
];
/// Directories of `/etc` that programs need and that hold no secret.
const ETC_DIRS: &[&str] = &["alternatives", "ssl/certs"];
/// Device nodes, with their numbers.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
/// A directory that each sandbox has of its own, in which parts of interpreters are shown again.
const TMP: &str = "/tmp";
/// Top-level entries that a caller's root cannot provide, because the sandbox does.
const OWN: &[&str] = &["proc", "sys", "dev", "tmp", "workspace", "code", "run"];

/// The template, and descriptors of the host that the launcher needs.
#[derive(Debug)]
pub struct Template {
    host_proc: OwnedFd,
    /// The host's mount namespace and the template's, until it is left.
    mounts: Option<(OwnedFd, OwnedFd)>,
    /// The namespace that [`Template::leave`] returns to.
    outside: Option<OwnedFd>,
    /// Readable and executable paths inside, with true for a directory.
    programs: Vec<(CString, bool)>,
    /// Files of `/proc` that exist on this kernel and must be covered.
    masked_files: Vec<CString>,
    masked_dirs: Vec<CString>,
    own_root: bool,
    host_paths: HostPaths,
}

/// Paths of the host that are visible besides the system's own directories.
#[derive(Debug, Clone, Default)]
pub struct HostPaths {
    /// Visible files and directories.
    pub shown: Vec<PathBuf>,
    /// Files and directories that were requested and are not visible.
    pub hidden: Vec<PathBuf>,
    /// Parts below `/tmp`, which each sandbox covers with its own directory.
    covered: Vec<Covered>,
}

/// A file or directory below `/tmp` that is shown again in each sandbox's own `/tmp`.
#[derive(Debug, Clone)]
pub struct Covered {
    /// Its path.
    pub path: PathBuf,
    /// Its target if it is a link. The link is then created again.
    pub link: Option<PathBuf>,
}

/// A template under construction, for which no configuration is needed yet.
pub struct TemplateBuilder {
    host_proc: OwnedFd,
    host_mounts: OwnedFd,
    outside: Option<OwnedFd>,
    /// A mount of the proc file system, which must stay visible.
    proc: Option<OwnedFd>,
    masked_files: Vec<CString>,
    masked_dirs: Vec<CString>,
    build: Build,
    /// The result of a build with the host's programs before the configuration arrived.
    default_build: Option<Step<()>>,
}

impl TemplateBuilder {
    /// Prepares the mounts. The launcher must be in its own mount namespace already. `host_proc` is the host's proc
    /// file system, `outside` the mount namespace for [`Template::leave`].
    pub fn new(host_proc: OwnedFd, outside: Option<OwnedFd>, privileged: bool) -> Step<Self> {
        // If the launcher can return, the host's mounts need no second namespace.
        let host_mounts = match outside.as_ref().filter(|_| privileged) {
            Some(outside) => outside.try_clone().step("keep the host's mount namespace")?,
            None => {
                mount::set_propagation(mount::SLAVE).step("separate the mounts from the host's")?;
                let own = namespace::open_own(host_proc.as_fd(), "mnt").step("open own mount namespace")?;
                namespace::unshare(namespace::kind::MOUNT).step("create the template's mount namespace")?;
                own
            }
        };
        let masked_files = existing(MASKED_FILES, false);
        let masked_dirs = existing(MASKED_DIRS, true);
        mount::set_propagation(mount::PRIVATE).step("separate the template's mounts")?;
        // The proc file system must stay visible somewhere, else the kernel forbids an ordinary user to mount another
        // one.
        let proc = if privileged {
            None
        } else {
            mount::clone_tree(mount::cwd(), c"/proc", Depth::Single)
                .or_else(|_| mount::clone_tree(mount::cwd(), c"/proc", Depth::Recursive))
                .ok()
        };
        let build = Build::new(if outside.is_some() { SINGLE_COPY_LIMIT } else { COPY_LIMIT })?;
        Ok(Self { host_proc, host_mounts, outside, proc, masked_files, masked_dirs, build, default_build: None })
    }

    /// Builds a root with the host's programs, the usual configuration. If the configuration differs, nothing of it
    /// stays in the template.
    pub fn build_default(&mut self) {
        self.default_build = Some(self.build.host_root());
    }

    /// Builds the configured root and makes it the launcher's root.
    pub fn finish(mut self, configure: &Configure) -> Step<Template> {
        let default_build = self.default_build.take();
        match (&configure.root, default_build) {
            (None, Some(built)) => built?,
            (None, None) => self.build.host_root()?,
            (Some(root), default_build) => {
                if default_build.is_some() {
                    // Mount it over the first one, which disappears with everything below the new root.
                    self.build = Build::new(self.build.copy_limit)?;
                }
                match root {
                    RootPlan::Directory(directory) => self.build.directory_root(directory)?,
                    RootPlan::Layers(layers) => self.build.image_root(layers, &configure.mount_points)?,
                }
            }
        }
        self.build.rest(configure)?;
        let Self { host_proc, host_mounts, outside, proc, masked_files, masked_dirs, build, .. } = self;
        let Build { root, programs, host_paths, .. } = build;
        if let Some(proc) = proc {
            mount::attach(proc.as_fd(), root.as_fd(), c"proc").step("attach /proc")?;
        }
        mount::pivot_into(root.as_fd()).step("enter the template")?;
        let template_mounts = namespace::open_own(host_proc.as_fd(), "mnt").step("open the template's namespace")?;
        mount::add_attributes(root.as_fd(), Depth::Single, attr::RDONLY).step("make the template read-only")?;
        let own_root = configure.root.is_some();
        let mounts = Some((host_mounts, template_mounts));
        Ok(Template { host_proc, mounts, outside, programs, masked_files, masked_dirs, own_root, host_paths })
    }
}

/// Returns the entries of `/proc` that exist on this kernel.
fn existing(names: &[&str], dirs: bool) -> Vec<CString> {
    names
        .iter()
        .map(|name| Path::new("/proc").join(name))
        // Skip files that only root may read: no sandbox runs as that user.
        .filter(|path| {
            path.symlink_metadata().is_ok_and(|meta| meta.is_dir() == dirs && meta.permissions().mode() & 0o004 != 0)
        })
        .map(|path| c_path(&path))
        .collect()
}

impl Template {
    /// Leaves the template, so that the kernel need not remove its mounts when the launcher ends. An ordinary user may
    /// not return to the original namespace, and stays.
    pub fn leave(&mut self) {
        self.mounts = None;
        if let Some(outside) = self.outside.take() {
            let _ = namespace::join(outside.as_fd(), namespace::kind::MOUNT);
        }
    }

    /// Returns the proc file system of the host.
    pub fn host_proc(&self) -> BorrowedFd<'_> {
        self.host_proc.as_fd()
    }

    /// Returns the template's mount namespace, or an error after [`Template::leave`].
    pub fn mount_namespace(&self) -> io::Result<BorrowedFd<'_>> {
        let mounts = self.mounts.as_ref().map(|(_, template)| template.as_fd());
        mounts.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Returns true if the caller named the directory of the root.
    pub fn has_own_root(&self) -> bool {
        self.own_root
    }

    /// Returns the paths of the host that are visible besides the system's own directories.
    pub fn host_paths(&self) -> &HostPaths {
        &self.host_paths
    }

    /// Returns the parts that each sandbox shows again below its own `/tmp`.
    pub fn covered(&self) -> &[Covered] {
        &self.host_paths.covered
    }

    pub fn programs(&self) -> &[(CString, bool)] {
        &self.programs
    }

    pub fn masked_files(&self) -> &[CString] {
        &self.masked_files
    }

    pub fn masked_dirs(&self) -> &[CString] {
        &self.masked_dirs
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

struct Build {
    root: OwnedFd,
    copy_limit: u64,
    programs: Vec<(CString, bool)>,
    host_paths: HostPaths,
}

impl Build {
    fn new(copy_limit: u64) -> Step<Self> {
        let options = [(c"size", c"8m"), (c"nr_inodes", c"65536"), (c"mode", c"0755")];
        let root = mount::new_filesystem(c"tmpfs", &options, attr::NOSUID | attr::NODEV).step("create a tmpfs")?;
        mount::attach(root.as_fd(), mount::cwd(), &c_path(Path::new(BUILD_MOUNT_POINT))).step("attach the template")?;
        Ok(Self { root, copy_limit, programs: Vec::new(), host_paths: HostPaths::default() })
    }

    fn directory(&self, path: &Path) -> Step<()> {
        let mut created = PathBuf::new();
        for part in path.components().filter(|part| matches!(part, Component::Normal(_))) {
            created.push(part);
            match rustix::fs::mkdirat(&self.root, &created, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                other => other.step(&format!("create the directory {}", created.display()))?,
            }
        }
        Ok(())
    }

    fn file(&self, path: &str, contents: &[u8]) -> Step<()> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(0o444));
        let file = file.step(&format!("create the file {path}"))?;
        std::fs::File::from(file).write_all(contents).step(&format!("write the file {path}"))
    }

    fn symlink(&self, target: &Path, path: &Path) -> Step<()> {
        match rustix::fs::symlinkat(target, &self.root, path) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            other => other.step(&format!("create the link {}", path.display())),
        }
    }

    /// Mounts a host file or directory at `inside`, with these attributes.
    fn bind(&self, source: &Path, inside: &Path, attributes: u64) -> Step<()> {
        let tree = mount::clone_tree(mount::cwd(), &c_path(source), Depth::Recursive)
            .step(&format!("copy the mount of {}", source.display()))?;
        self.attach(&tree, source, inside, attributes).map(drop)
    }

    /// Attaches the detached mount of a file or directory at `inside`. Errors name it by `source`. Returns true for a
    /// directory.
    fn attach(&self, tree: &OwnedFd, source: &Path, inside: &Path, attributes: u64) -> Step<bool> {
        let name = |what: &str| format!("{what} {}", source.display());
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        let stat = rustix::fs::fstat(tree).step(&name("inspect"))?;
        let is_directory = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir();
        if is_directory {
            self.directory(inside)?;
        } else {
            if let Some(parent) = inside.parent() {
                self.directory(parent)?;
            }
            self.file(&inside.to_string_lossy(), b"")?;
        }
        mount::add_attributes(tree.as_fd(), Depth::Recursive, attributes).step(&name("restrict"))?;
        mount::attach(tree.as_fd(), self.root.as_fd(), &c_path(inside)).step(&name("attach"))?;
        Ok(is_directory)
    }

    /// Mounts the entry `name` of a directory read-only, as a path with programs.
    fn program(&mut self, above: BorrowedFd<'_>, name: &CStr, source: &Path, inside: &Path) -> Step<()> {
        let tree = mount::clone_tree(above, name, Depth::Recursive)
            .step(&format!("copy the mount of {}", source.display()))?;
        let stat = rustix::fs::fstat(&tree).step(&format!("inspect {}", source.display()))?;
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        if !kind.is_dir() && !kind.is_file() {
            // It was replaced since it was inspected.
            return Err(Failure { step: format!("mount {}", source.display()), errno: libc::ESTALE });
        }
        let is_directory = self.attach(&tree, source, inside, READ_ONLY)?;
        self.programs.push((c_path(inside), is_directory));
        Ok(())
    }

    fn program_directory(&mut self, source: &Path, inside: &Path) -> Step<()> {
        self.bind(source, inside, READ_ONLY)?;
        self.programs.push((c_path(inside), source.is_dir()));
        Ok(())
    }

    /// Adds a top-level entry of the source. A link stays a link.
    fn top_level(&mut self, source: &Path, inside: &Path) -> Step<()> {
        if let Ok(target) = std::fs::read_link(source) {
            return self.symlink(&target, inside.strip_prefix("/").unwrap_or(inside));
        }
        let Ok(meta) = source.symlink_metadata() else { return Ok(()) };
        if meta.is_dir() || meta.is_file() { self.program_directory(source, inside) } else { Ok(()) }
    }

    fn host_root(&mut self) -> Step<()> {
        for name in SYSTEM {
            self.top_level(&Path::new("/").join(name), &Path::new("/").join(name))?;
        }
        for store in STORES.iter().map(Path::new).filter(|store| store.is_dir()) {
            self.program_directory(store, store)?;
        }
        self.directory(Path::new("etc/ssl"))?;
        for name in ETC_DIRS.iter().map(|name| Path::new("/etc").join(name)).filter(|path| path.is_dir()) {
            self.bind(&name, &name, READ_ONLY)?;
        }
        for name in ETC_FILES {
            self.copy(&Path::new("/etc").join(name))?;
        }
        for directory in interpreter_settings() {
            self.directory(&directory)?;
            for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
                self.copy(&entry.path())?;
            }
        }
        self.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\nsandbox:x:1000:1000:sandbox:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")?;
        self.file("etc/group", b"root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n")?;
        self.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")?;
        // Without a network policy, nothing has this address.
        self.file("etc/resolv.conf", format!("nameserver {}\n", cofferdam_egress::RESOLVER).as_bytes())?;
        self.file("etc/hosts", b"127.0.0.1 localhost sandbox\n::1 localhost\n")?;
        self.file("etc/hostname", b"sandbox\n")
    }

    /// Adds a file: a small file is copied to avoid a mount, a link is copied as a link, and a large file is
    /// bind-mounted.
    fn copy(&self, path: &Path) -> Step<()> {
        let inside = path.strip_prefix("/").unwrap_or(path);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::LOOP) => {
                let target = std::fs::read_link(path).step("read a link")?;
                return self.symlink(&target, inside);
            }
            Err(_) => return Ok(()),
        };
        let stat = rustix::fs::fstat(&file).step("inspect a file of /etc")?;
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        // Only files that every user of the host may read: a secret stays out even if it has such a name by mistake.
        if !is_file || stat.st_mode & 0o004 == 0 {
            return Ok(());
        }
        let length = stat.st_size.unsigned_abs();
        if length > self.copy_limit {
            return self.bind(path, path, READ_ONLY);
        }
        match read_once(&file, length as usize) {
            Ok(contents) => self.file(&inside.to_string_lossy(), &contents),
            Err(_) => Ok(()),
        }
    }

    /// Mounts the top level of a caller's root file system. Each entry is resolved beneath the opened directory, so a
    /// change of its path has no effect.
    fn directory_root(&mut self, root: &LayerPlan) -> Step<()> {
        let directory = host_mounts::open_same("root directory", &root.path, (root.device, root.inode), None)?;
        self.top_levels(directory.as_fd(), &root.path)
    }

    /// Mounts each entry of an opened directory. Errors name it by `shown`.
    fn top_levels(&mut self, directory: BorrowedFd<'_>, shown: &Path) -> Step<()> {
        let reading = format!("read the root directory {}", shown.display());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rustix::fs::openat(directory, ".", flags, Mode::empty()).step(&reading)?;
        for entry in rustix::fs::Dir::new(listing).step(&reading)? {
            let entry = entry.step(&reading)?;
            let name = Path::new(OsStr::from_bytes(entry.file_name().to_bytes()));
            let dots = [".", ".."].iter().any(|dots| name == Path::new(dots));
            if dots || OWN.iter().any(|own| name == Path::new(own)) {
                continue;
            }
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).step(&reading)?;
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            if kind.is_symlink() {
                let target = rustix::fs::readlinkat(directory, name, Vec::new()).step(&reading)?;
                self.symlink(Path::new(OsStr::from_bytes(target.as_bytes())), name)?;
            } else if kind.is_dir() || kind.is_file() {
                let (source, inside) = (shown.join(name), Path::new("/").join(name));
                self.program(directory, entry.file_name(), &source, &inside)?;
            }
        }
        Ok(())
    }

    /// Mounts a configured directory or file of the host read-only at the same path.
    fn read_only(&mut self, path: &Path) -> Step<()> {
        let opened = named::open(path).step(&format!("open {}", path.display()))?;
        self.program(opened.as_fd(), c"", path, path)
    }

    /// Adds the configured paths and the directories of every sandbox.
    fn rest(&mut self, configure: &Configure) -> Step<()> {
        for path in &configure.read_only {
            self.read_only(path)?;
            self.host_paths.shown.push(path.clone());
        }
        self.host_paths.hidden.clone_from(&configure.hidden);
        for path in &configure.interpreters {
            match self.part(path) {
                Ok(()) => self.host_paths.shown.push(path.clone()),
                Err(failure) if matches!(failure.errno, libc::EACCES | libc::ENOENT) => {
                    self.host_paths.hidden.push(path.clone());
                }
                Err(failure) => return Err(failure),
            }
        }
        self.common()?;
        configure.mount_points.iter().try_for_each(|point| self.mount_point(point))
    }

    /// Mounts a part of an interpreter's prefix. A link into its own directory stays a link.
    fn part(&mut self, path: &Path) -> Step<()> {
        let target = std::fs::read_link(path).ok();
        let link =
            target.filter(|target| matches!(target.components().collect::<Vec<_>>()[..], [Component::Normal(_)]));
        match (&link, path.strip_prefix("/")) {
            (Some(target), Ok(inside)) => {
                if let Some(parent) = inside.parent() {
                    self.directory(parent)?;
                }
                self.symlink(target, inside)?;
            }
            // A rule would apply to the covered path. The rule for `/tmp` applies to everything that is mounted there.
            _ if path.starts_with(TMP) => self.bind(path, path, READ_ONLY)?,
            _ => self.read_only(path)?,
        }
        if path.starts_with(TMP) {
            self.host_paths.covered.push(Covered { path: path.to_owned(), link });
        }
        Ok(())
    }

    /// Adds the directories and devices that every sandbox has, with any root.
    fn common(&mut self) -> Step<()> {
        for directory in ["proc", "sys", "dev/pts", "dev/shm", "etc", "tmp", "workspace", "code", "run"] {
            self.directory(Path::new(directory))?;
        }
        let dev = self.devices()?;
        for (target, name) in [
            ("pts/ptmx", "dev/ptmx"),
            ("/proc/self/fd", "dev/fd"),
            ("/proc/self/fd/0", "dev/stdin"),
            ("/proc/self/fd/1", "dev/stdout"),
            ("/proc/self/fd/2", "dev/stderr"),
        ] {
            self.symlink(Path::new(target), Path::new(name))?;
        }
        if let Some(dev) = dev {
            mount::add_attributes(dev.as_fd(), Depth::Single, attr::RDONLY).step("make /dev read-only")?;
        }
        self.file(LANDLOCK_PROBE.trim_start_matches('/'), b"")?;
        self.programs.push((c"/etc".into(), true));
        Ok(())
    }
}

impl Build {
    /// Adds device nodes: creates them on one mount if that is allowed, else binds each from the host.
    fn devices(&self) -> Step<Option<OwnedFd>> {
        let numbers = DEVICES.map(|(name, major, minor)| (name, rustix::fs::makedev(major, minor)));
        let options = [(c"size", c"64k"), (c"mode", c"0755")];
        let dev =
            mount::new_filesystem(c"tmpfs", &options, attr::NOSUID | attr::NOEXEC).step("create a tmpfs for /dev")?;
        let created = numbers.iter().try_for_each(|(name, number)| {
            let kind = rustix::fs::FileType::CharacterDevice;
            rustix::fs::mknodat(&dev, *name, kind, Mode::from_raw_mode(0o666), *number)?;
            // `mknod` succeeds even on a file system that forbids devices.
            rustix::fs::openat(&dev, *name, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
                .map(drop)
                .or_else(
                    // No process has it as its controlling terminal.
                    |error| if error == rustix::io::Errno::NXIO { Ok(()) } else { Err(error) },
                )
        });
        if created.is_ok() {
            for directory in ["pts", "shm"] {
                rustix::fs::mkdirat(&dev, directory, Mode::from_raw_mode(0o755)).step("create a directory in /dev")?;
            }
            mount::attach(dev.as_fd(), self.root.as_fd(), c"dev").step("attach /dev")?;
            return Ok(Some(dev));
        }
        for (device, _) in numbers {
            let path = Path::new("/dev").join(device);
            self.bind(&path, &path, attr::NOSUID | attr::NOEXEC)?;
        }
        Ok(None)
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        Self::from_raw_os_error(failure.errno)
    }
}
