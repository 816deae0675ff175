//! Root of a VM that floods its consoles: the supervisor keeps only the tail.
//!
//! Guests are never root. So these VMs have an initramfs with an additional hostile first program, or with a hostile
//! program in place of the agent, whose port is the other console.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use cofferdam_contract::{ExecRequest, Limits, collect};
use cofferdam_guest::{Guest, Settings};
use cofferdam_image::Image;
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::vmm::{Started, VmDescription, Vmm};

use crate::boot::{OPTIONS, description, promptly};
use crate::bounds::again;
use crate::support::{self, NO_HANG};

/// Maximum additional memory of the supervisor.
const MAX_MEMORY: u64 = 24 << 20;
/// Maximum length of a console's tail.
const MAX_TAIL: usize = 64 << 10;
/// Duration of a flood.
const FLOOD: Duration = Duration::from_secs(15);
const LINE: &str = "a line of the flood that is printed by root of the machine, again and again";

/// Returns the peak memory of this process, which runs nothing else.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Appends files with modes to an initramfs; they replace files of the same name.
fn append(initramfs: &mut Vec<u8>, files: &[(&str, u32, Vec<u8>)]) {
    let mut entry = |name: &str, mode: u32, data: &[u8]| {
        let fields = [1, mode, 0, 0, 1, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        initramfs.resize(initramfs.len().next_multiple_of(4), 0);
        write!(initramfs, "070701").unwrap();
        fields.iter().for_each(|field| write!(initramfs, "{field:08x}").unwrap());
        initramfs.extend_from_slice(name.as_bytes());
        initramfs.push(0);
        initramfs.resize(initramfs.len().next_multiple_of(4), 0);
        initramfs.extend_from_slice(data);
    };
    for (name, mode, data) in files {
        let mut above = String::new();
        for part in name.split('/').take(name.matches('/').count()) {
            above = if above.is_empty() { part.to_owned() } else { format!("{above}/{part}") };
            entry(&above, 0o040_755, &[]);
        }
        entry(name, 0o100_000 | mode, data);
    }
    entry("TRAILER!!!", 0, &[]);
}

/// Returns a VM of this image with these additional files in its initramfs.
fn hostile(image: &Image, temp: &Path, options: &str, files: &[(&str, u32, Vec<u8>)]) -> VmDescription {
    let mut initramfs = std::fs::read(&image.initramfs).unwrap();
    append(&mut initramfs, files);
    let path = temp.join("initramfs");
    std::fs::write(&path, initramfs).unwrap();
    VmDescription { initramfs: path, ..description(image, options) }
}

/// Returns programs of the image's packages, and the libraries that shells need.
fn programs(root: &Path, names: &[(&'static str, &'static str)]) -> Vec<(&'static str, u32, Vec<u8>)> {
    let read = |path: &str| {
        let found = [path.to_owned(), format!("usr/{path}")].map(|path| root.join(path));
        found.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_else(|| panic!("no {path} in the image"))
    };
    names.iter().map(|(name, from)| (*name, 0o755, read(from))).collect()
}

async fn started(description: VmDescription) -> Started {
    Qemu::new(QemuConfig::default()).unwrap().start(description).await.expect("a VM")
}

/// Floods the serial console from the kernel's first program on; the VM must stay usable.
async fn serial(image: &Image, root: &Path, temp: &Path) {
    let mut files = programs(
        root,
        &[
            ("bin/sh", "bin/dash"),
            ("lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
            ("lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libc.so.6"),
        ],
    );
    let script = format!("#!/bin/sh\n(while :; do echo '{LINE}'; done > /dev/console) &\nexec /init\n");
    files.push(("flood", 0o755, script.into_bytes()));
    let Started { vm, reader, writer } =
        started(hostile(image, temp, &format!("{OPTIONS} rdinit=/flood"), &files)).await;
    let settings = Settings { answer_timeout: NO_HANG, ..Settings::default() };
    let connected = Guest::connect(reader, writer, settings, Instant::now() + NO_HANG).await;
    let (guest, _) = connected.unwrap_or_else(|error| panic!("{error}; {}", vm.console()));
    let before = peak();
    tokio::time::sleep(FLOOD).await;
    let request = ExecRequest::shell("echo works").build().unwrap();
    let done = promptly(collect(promptly(guest.start(&request, &Limits::default())).await.unwrap())).await.unwrap();
    assert_eq!(done.stdout, "works\n", "{done:?}");
    let console = vm.console();
    println!("{} bytes of the console, {} KiB more", console.len(), (peak() - before) >> 10);
    assert!(console.len() <= MAX_TAIL && console.matches(LINE).count() > 10, "{console}");
    promptly(vm.pause()).await.unwrap();
    promptly(vm.resume()).await.unwrap();
    promptly(vm.kill()).await.unwrap();
    assert!(peak() - before < MAX_MEMORY, "{} bytes more", peak() - before);
}

/// Floods the agent's port by a program in place of the agent.
async fn port(image: &Image, root: &Path, temp: &Path) {
    let agent = programs(root, &[("agent", "bin/yes")]);
    let Started { vm, reader, writer } = started(hostile(image, temp, OPTIONS, &agent)).await;
    let before = peak();
    let settings = Settings { answer_timeout: NO_HANG, ..Settings::default() };
    let refused = promptly(Guest::connect(reader, writer, settings, Instant::now() + NO_HANG)).await;
    let error = refused.map(drop).expect_err("an invalid agent");
    println!("{error}; {} KiB more", (peak() - before) >> 10);
    // The program floods a port that the host does not read.
    tokio::time::sleep(FLOOD).await;
    promptly(vm.pause()).await.unwrap();
    promptly(vm.resume()).await.unwrap();
    promptly(vm.kill()).await.unwrap();
    assert!(peak() - before < MAX_MEMORY, "{} bytes more", peak() - before);
}

/// The part that [`console_flood_by_root_costs_the_supervisor_nothing`] runs; not a test of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flooded() {
    let Ok(part) = std::env::var("COFFERDAM_TEST_PART") else { return };
    let image = support::image("flooded").expect("an image");
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("root");
    std::fs::create_dir(&root).unwrap();
    support::root(&root).expect("packages are cached");
    match part.as_str() {
        "serial" => serial(&image, &root, temp.path()).await,
        "port" => port(&image, &root, temp.path()).await,
        _ => return,
    }
    println!("borne: {part}");
}

/// Promise (Virtual machines): A root guest that floods the serial console or the guest agent's port neither hangs its
/// supervisor nor exhausts its memory.
#[test]
fn console_flood_by_root_costs_the_supervisor_nothing() {
    if support::image("console_flood_by_root_costs_the_supervisor_nothing").is_none() {
        return;
    }
    for part in ["serial", "port"] {
        let output = again("consoles::flooded", part).output().expect("it starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        println!("{printed}");
        assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(printed.contains(&format!("borne: {part}")), "{printed}");
    }
}
