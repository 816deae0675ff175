//! A kernel and the modules that it needs, from a package or from files.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::named;

use super::error::{ImageError, Result, io};
use super::initramfs::Module;
use cofferdam_tree::members::Archive;

/// Maximum size of a kernel, and of a module.
pub(super) const MAX_KERNEL: u64 = 128 << 20;
const MAX_MODULE: u64 = 16 << 20;

/// The modules that a VM needs, in loading order: the bus, the console with the agent's port, disks, random numbers,
/// the file system, overlays for mount points in the root, and a vsock if the agent is reached by one. Each may be built into the kernel; those marked `false`
/// are optional.
const WANTED: &[(&str, bool)] = &[
    ("virtio", true),
    ("virtio_ring", true),
    ("virtio_mmio", true),
    ("virtio_console", true),
    ("virtio_blk", true),
    ("rng-core", false),
    ("virtio-rng", false),
    ("crc16", false),
    ("crc32c_generic", false),
    ("mbcache", false),
    ("jbd2", false),
    ("ext4", true),
    ("overlay", false),
    ("vsock", false),
    ("vmw_vsock_virtio_transport_common", false),
    ("vmw_vsock_virtio_transport", false),
];
/// The module that is loaded first: in some kernels, virtio depends on it.
const FIRST: &str = "virtio_ring";

/// A kernel with its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Output of `uname -r`; empty if unknown.
    pub release: String,
    pub image: Vec<u8>,
    pub modules: Vec<Module>,
}

/// Reads a kernel from the root file system of a kernel package.
pub(crate) fn from_tar(tar: impl Read) -> Result<Kernel> {
    let mut found = Found::default();
    let mut archive = Archive::new(tar);
    for entry in archive.members().map_err(bad_tar)? {
        let mut entry = entry.map_err(bad_tar)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().map_err(bad_tar)?.into_owned();
        let Some(role) = Role::of(&path) else { continue };
        let max = if matches!(role, Role::Kernel { .. }) { MAX_KERNEL } else { MAX_MODULE };
        let contents = read(&mut entry, &path, max)?;
        found.take(role, contents)?;
    }
    found.into_kernel()
}

/// Reads a kernel from files. Modules are loaded in the given order.
pub(crate) fn from_files(image: &Path, modules: &[PathBuf]) -> Result<Kernel> {
    let contents = |path: &Path, max| {
        let mut file = named::read(path).map_err(io("open", path))?;
        read(&mut file, path, max)
    };
    let modules = modules.iter().map(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).filter(|name| is_module_name(name));
        let name = name.ok_or_else(|| bad(format!("{} does not have the name of a kernel module", path.display())))?;
        Ok(Module { name: name.to_owned(), contents: contents(path, MAX_MODULE)? })
    });
    let modules = modules.collect::<Result<_>>()?;
    Ok(Kernel { release: String::new(), image: contents(image, MAX_KERNEL)?, modules })
}

fn bad(what: String) -> ImageError {
    ImageError::InvalidSource { what }
}

fn bad_tar(error: std::io::Error) -> ImageError {
    bad(format!("cannot read the kernel's package: {error}"))
}

fn read(from: &mut impl Read, path: &Path, max: u64) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    from.take(max + 1).read_to_end(&mut contents).map_err(io("read", path))?;
    if contents.len() as u64 > max {
        return Err(bad(format!("{} is larger than {max} bytes", path.display())));
    }
    Ok(contents)
}

/// Returns true if a name can be a line of the init's list.
fn is_module_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (4..=64).contains(&name.len()) && name.contains(".ko") && name.chars().all(plain) && !name.starts_with('.')
}

/// Compares names of modules, in which `-` and `_` are equivalent.
fn same(one: &str, other: &str) -> bool {
    one.replace('-', "_") == other.replace('-', "_")
}

/// The role of a file in the package.
#[derive(Debug, PartialEq, Eq)]
enum Role {
    Kernel {
        release: String,
    },
    /// The list of built-in modules.
    BuiltIn,
    Module {
        file: String,
        name: String,
    },
}

impl Role {
    fn of(path: &Path) -> Option<Self> {
        let parts: Vec<&str> = path
            .components()
            .filter_map(|part| match part {
                Component::Normal(part) => part.to_str(),
                _ => None,
            })
            .collect();
        match &parts[..] {
            ["boot", file] => {
                let release = file.strip_prefix("vmlinuz-").or_else(|| file.strip_prefix("vmlinux-"))?;
                Some(Self::Kernel { release: release.to_owned() })
            }
            ["usr", "lib", "modules", _, "modules.builtin"] => Some(Self::BuiltIn),
            ["usr", "lib", "modules", _, "kernel", .., file] => {
                let (name, _) = file.split_once(".ko")?;
                let wanted = WANTED.iter().any(|(wanted, _)| same(wanted, name)) && is_module_name(file);
                wanted.then(|| Self::Module { file: (*file).to_owned(), name: name.to_owned() })
            }
            _ => None,
        }
    }
}

#[derive(Default)]
struct Found {
    kernel: Option<(String, Vec<u8>)>,
    built_in: String,
    modules: Vec<(String, Module)>,
}

impl Found {
    fn take(&mut self, role: Role, contents: Vec<u8>) -> Result<()> {
        match role {
            Role::Kernel { release } => {
                if self.kernel.replace((release, contents)).is_some() {
                    return Err(bad("the package has two kernels".to_owned()));
                }
            }
            Role::BuiltIn => self.built_in = String::from_utf8_lossy(&contents).into_owned(),
            Role::Module { file, name } => self.modules.push((name, Module { name: file, contents })),
        }
        Ok(())
    }

    fn is_built_in(&self, name: &str) -> bool {
        let files = self.built_in.lines().filter_map(|line| line.rsplit('/').next()?.split_once(".ko"));
        files.into_iter().any(|(found, _)| same(found, name))
    }

    fn into_kernel(self) -> Result<Kernel> {
        let mut modules: Vec<Module> = Vec::new();
        for (name, needed) in WANTED {
            match self.modules.iter().find(|(found, _)| same(found, name)) {
                // In some kernels the ring comes first, and each module needs the ones before it.
                Some((_, module)) if *name == FIRST => modules.insert(0, module.clone()),
                Some((_, module)) => modules.push(module.clone()),
                None if *needed && !self.is_built_in(name) => {
                    return Err(bad(format!("the kernel has no {name}, neither built in nor as a module")));
                }
                None => {}
            }
        }
        let (release, image) = self.kernel.ok_or_else(|| bad("the package has no kernel".to_owned()))?;
        Ok(Kernel { release, image, modules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(files: &[(&str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, contents) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(contents.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, contents.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    const DRIVERS: &str = "usr/lib/modules/6.1/kernel/drivers";

    fn sample(built_in: &str, names: &[&str]) -> Result<Kernel> {
        let modules: Vec<String> = names.iter().map(|name| format!("{DRIVERS}/{name}")).collect();
        let mut files = vec![("boot/vmlinuz-6.1", "kernel"), ("usr/lib/modules/6.1/modules.builtin", built_in)];
        files.extend(modules.iter().map(|path| (path.as_str(), "module")));
        from_tar(&*tar(&files))
    }

    #[test]
    fn modules_come_in_the_order_in_which_they_need_each_other() {
        let names = ["virtio_blk.ko", "virtio.ko", "virtio_ring.ko", "virtio_console.ko", "virtio_mmio.ko", "nfs.ko"];
        let kernel = sample("kernel/fs/ext4/ext4.ko\n", &names).unwrap();
        let found: Vec<&str> = kernel.modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(found, ["virtio_ring.ko", "virtio.ko", "virtio_mmio.ko", "virtio_console.ko", "virtio_blk.ko"]);
        assert_eq!((kernel.release.as_str(), &*kernel.image), ("6.1", &b"kernel"[..]));
    }

    #[test]
    fn missing_kernel_modules_are_named() {
        let names = ["virtio.ko", "virtio_ring.ko", "virtio_console.ko", "virtio_mmio.ko", "virtio_blk.ko"];
        let error = sample("", &names).unwrap_err().to_string();
        assert!(error.contains("has no ext4"), "{error}");
        assert!(from_tar(&*tar(&[("boot/config-6.1", "")])).is_err());
        assert!(from_tar(&b"no tar at all, but long enough to be taken for one"[..]).is_err());
    }

    #[test]
    fn names_that_are_no_modules_are_refused() {
        for bad in ["x", "a b.ko", "../x.ko", ".ko", "a\nb.ko"] {
            assert!(!is_module_name(bad), "{bad}");
        }
        assert!(is_module_name("virtio-rng.ko.xz"));
    }
}
