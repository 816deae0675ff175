//! QEMU without Cofferdam: the kernel of Cofferdam's VMs and a static shell as init, until the shell prompts for a
//! command on the serial console. No disk, no agent, no sandboxing.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cofferdam_image::{Cache, Recipe, resolve};
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::vmm::{Accelerator, Vmm};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// QEMU's program.
const PROGRAM: &str = "qemu-system-x86_64";
/// Debian's package with a static shell.
const PACKAGE: &str = "busybox-static";
/// The shell's program in the package.
const SHELL: &str = "busybox";
/// The prompt of the shell.
const PROMPT: &[u8] = b"/ # ";
/// Maximum time of a boot.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum size of the console output that is read.
const MAX_CONSOLE: usize = 1 << 20;
/// Maximum size of the shell.
const MAX_SHELL: u64 = 16 << 20;

/// Extracts the shell from Debian's package into `scratch`.
pub fn busybox(packages: &Path, scratch: &Path) -> Result<PathBuf> {
    let plan = resolve(&Recipe::new([PACKAGE]), &Cache::new(packages), &mut |_| ())?;
    let packed = scratch.join("busybox.tar");
    plan.only(|package| package.name == PACKAGE).write_tar(File::create(&packed)?, &mut |_| ())?;
    let mut archive = tar::Archive::new(BufReader::new(File::open(&packed)?));
    for entry in archive.entries()? {
        let entry = entry?;
        let is_shell = entry.path()?.file_name().is_some_and(|name| name == SHELL);
        if is_shell && entry.header().entry_type().is_file() {
            let mut program = Vec::new();
            entry.take(MAX_SHELL).read_to_end(&mut program)?;
            let path = scratch.join(SHELL);
            fs::write(&path, program)?;
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
            return Ok(path);
        }
    }
    bail!("the package {PACKAGE} has no program {SHELL}")
}

/// The configuration of a VM without Cofferdam.
#[derive(Debug)]
pub struct Plain {
    kernel: PathBuf,
    initramfs: PathBuf,
    accelerator: Accelerator,
    processor: String,
    mebibytes: u64,
    words: String,
}

impl Plain {
    /// Writes the initramfs into `scratch`.
    pub fn prepare(kernel: &Path, busybox: &Path, scratch: &Path, like: &QemuConfig, mebibytes: u64) -> Result<Self> {
        let initramfs = scratch.join("initramfs");
        fs::write(&initramfs, shell_archive(&fs::read(busybox)?)?)?;
        let words = Qemu::new(like.clone())?.kernel_arguments();
        let (accelerator, processor) = (like.accelerator, like.processor.clone());
        Ok(Self { kernel: kernel.to_owned(), initramfs, accelerator, processor, mebibytes, words })
    }

    /// Returns QEMU's command line: with the usual options, or with the machine type and kernel command line of
    /// Cofferdam's VMs.
    pub fn line(&self, ours: bool) -> Vec<String> {
        let accelerator = match (ours, self.accelerator) {
            // The same as in Cofferdam's VMs.
            (true, Accelerator::Tcg) => "tcg,tb-size=128,thread=multi",
            (_, other) => other.as_str(),
        };
        let mut line = vec![PROGRAM.to_owned()];
        let mut push = |key: &str, value: String| line.extend([format!("-{key}"), value]);
        if ours {
            push(
                "M",
                "microvm,acpi=on,rtc=on,pit=on,pic=on,isa-serial=on,pcie=off,usb=off,x-option-roms=off".to_owned(),
            );
            push("cpu", self.processor.clone());
        } else if self.accelerator == Accelerator::Kvm {
            push("cpu", "host".to_owned());
        }
        push("accel", accelerator.to_owned());
        push("m", format!("{}M", self.mebibytes));
        push("nic", "none".to_owned());
        push("kernel", self.kernel.display().to_string());
        push("initrd", self.initramfs.display().to_string());
        let words = if ours { self.words.as_str() } else { "console=ttyS0 quiet" };
        push("append", format!("{words} rdinit=/bin/sh"));
        line.extend(["-nographic", "-no-reboot"].map(str::to_owned));
        line
    }

    /// Boots to the prompt, and stops the VM. Returns the time until the prompt.
    pub async fn boot(&self, ours: bool) -> Result<Duration> {
        let line = self.line(ours);
        let begun = std::time::Instant::now();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {PROGRAM}"))?;
        let mut console = child.stdout.take().context("the console was not piped")?;
        let seen = tokio::time::timeout(BOOT_TIMEOUT, prompt(&mut console)).await;
        let took = begun.elapsed();
        child.kill().await.context("cannot stop QEMU")?;
        match seen {
            Ok(Ok(())) => Ok(took),
            Ok(Err(why)) => Err(why),
            Err(_) => bail!("no prompt within {} s", BOOT_TIMEOUT.as_secs()),
        }
    }
}

async fn prompt(console: &mut (impl AsyncReadExt + Unpin)) -> Result<()> {
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    while seen.len() < MAX_CONSOLE {
        let length = console.read(&mut piece).await?;
        if length == 0 {
            break;
        }
        seen.extend_from_slice(&piece[..length]);
        if seen.windows(PROMPT.len()).any(|part| part == PROMPT) {
            return Ok(());
        }
    }
    let text = String::from_utf8_lossy(&seen);
    bail!("the console ended without a prompt: {:?}", text.lines().last().unwrap_or_default())
}

/// Returns an initramfs in the kernel's format ("newc"): the console, and the shell.
fn shell_archive(shell: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    entry(&mut out, "dev", 0o040_755, (0, 0), &[])?;
    entry(&mut out, "dev/console", 0o020_600, (5, 1), &[])?;
    entry(&mut out, "bin", 0o040_755, (0, 0), &[])?;
    entry(&mut out, "bin/sh", 0o100_755, (0, 0), shell)?;
    entry(&mut out, "TRAILER!!!", 0, (0, 0), &[])?;
    Ok(out)
}

fn entry(out: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
    let size = u32::try_from(data.len()).map_err(io::Error::other)?;
    let length = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
    out.extend_from_slice(b"070701");
    let inode = u32::try_from(out.len()).map_err(io::Error::other)?;
    // Inode, mode, user, group, links, time, size, device, device of a node, length of the name, no checksum.
    for number in [inode, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, length, 0] {
        write!(out, "{number:08X}")?;
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Plain {
        Plain {
            kernel: "/k".into(),
            initramfs: "/i".into(),
            accelerator: Accelerator::Tcg,
            processor: "Nehalem-v1".to_owned(),
            mebibytes: 128,
            words: "console=ttyS0 pti=off".to_owned(),
        }
    }

    #[test]
    fn both_boot_the_same_with_the_same_memory_and_accelerator() {
        for (ours, own) in
            [(false, "console=ttyS0 quiet rdinit=/bin/sh"), (true, "console=ttyS0 pti=off rdinit=/bin/sh")]
        {
            let line = plain().line(ours);
            let after = |key: &str| line.windows(2).find(|pair| pair[0] == key).map(|pair| pair[1].clone());
            for (key, value) in [("-kernel", "/k"), ("-initrd", "/i"), ("-m", "128M"), ("-append", own)] {
                assert_eq!(after(key).as_deref(), Some(value), "{line:?}");
            }
            assert!(after("-accel").is_some_and(|accelerator| accelerator.starts_with("tcg")), "{line:?}");
            assert_eq!(after("-M").is_some(), ours, "{line:?}");
        }
    }

    #[test]
    fn an_archive_is_aligned_and_ends_as_kernels_expect() {
        let archive = shell_archive(b"shell").unwrap();
        assert_eq!(archive.len() % 4, 0);
        assert_eq!(archive.windows(6).filter(|part| part == b"070701").count(), 5);
        assert!(archive.ends_with(b"TRAILER!!!\0\0\0\0"), "{:?}", &archive[archive.len() - 20..]);
        assert!(archive.windows(8).any(|part| part == b"shell\0\0\0"));
    }

    #[tokio::test]
    async fn a_prompt_is_found_across_pieces_and_its_absence_is_reported() {
        let mut console = tokio::io::AsyncReadExt::chain(&b"boot\r\n/ "[..], &b"# "[..]);
        prompt(&mut console).await.unwrap();
        let error = prompt(&mut &b"Kernel panic"[..]).await.unwrap_err().to_string();
        assert!(error.contains("Kernel panic"), "{error}");
    }
}
