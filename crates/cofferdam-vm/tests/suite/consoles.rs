//! Root of a machine who floods its consoles: the supervisor keeps the end, and nothing else of it.
//!
//! Guests never are root. A machine with one has an initramfs to which a hostile first program was appended, or a hostile
//! program in the place of the agent, whose port is the other console.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use cofferdam_contract::{ExecRequest, Limits, collect};
use cofferdam_guest::{Guest, Settings};
use cofferdam_vm::image::Image;
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::vmm::{Machine, Started, Vmm};

use crate::boot::{WORDS, machine, promptly};
use crate::bounds::again;
use crate::support::{self, NO_HANG};

/// What the supervisor may take more than before, whatever comes.
const MOST: u64 = 24 << 20;
/// The longest end of a console that is kept.
const KEPT: usize = 64 << 10;
/// How long a flood is borne.
const FLOOD: Duration = Duration::from_secs(15);
const LINE: &str = "a line of the flood that is printed by root of the machine, again and again";

/// Of a process that has its memory for itself.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Appends files to what the kernel unpacks, with their modes: those of the same name take the place of what was there.
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

/// A machine of this image with these files on top of its initramfs.
fn hostile(image: &Image, place: &Path, words: &str, files: &[(&str, u32, Vec<u8>)]) -> Machine {
    let mut initramfs = std::fs::read(&image.initramfs).unwrap();
    append(&mut initramfs, files);
    let path = place.join("initramfs");
    std::fs::write(&path, initramfs).unwrap();
    Machine { initramfs: path, ..machine(image, words) }
}

/// A program of the image's packages, with the libraries that shells need.
fn programs(root: &Path, names: &[(&'static str, &'static str)]) -> Vec<(&'static str, u32, Vec<u8>)> {
    let read = |path: &str| {
        let found = [path.to_owned(), format!("usr/{path}")].map(|path| root.join(path));
        found.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_else(|| panic!("no {path} in the image"))
    };
    names.iter().map(|(name, from)| (*name, 0o755, read(from))).collect()
}

async fn started(machine: Machine) -> Started {
    Qemu::new(QemuConfig::default()).unwrap().start(machine).await.expect("a machine")
}

/// The serial console is flooded from the kernel's first program on; the machine is of use all the same.
async fn serial(image: &Image, root: &Path, place: &Path) {
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
        started(hostile(image, place, &format!("{WORDS} rdinit=/flood"), &files)).await;
    let settings = Settings { patience: NO_HANG, ..Settings::default() };
    let connected = Guest::connect(reader, writer, settings, Instant::now() + NO_HANG).await;
    let (guest, _) = connected.unwrap_or_else(|error| panic!("{error}; {}", vm.console()));
    let before = peak();
    tokio::time::sleep(FLOOD).await;
    let request = ExecRequest::shell("echo works").build().unwrap();
    let done = promptly(collect(promptly(guest.start(&request, &Limits::default())).await.unwrap())).await.unwrap();
    assert_eq!(done.stdout, "works\n", "{done:?}");
    let console = vm.console();
    println!("{} bytes of the console, {} KiB more", console.len(), (peak() - before) >> 10);
    assert!(console.len() <= KEPT && console.matches(LINE).count() > 10, "{console}");
    promptly(vm.pause()).await.unwrap();
    promptly(vm.resume()).await.unwrap();
    promptly(vm.kill()).await.unwrap();
    assert!(peak() - before < MOST, "{} bytes more", peak() - before);
}

/// The agent's port is flooded by a program in the agent's place.
async fn port(image: &Image, root: &Path, place: &Path) {
    let agent = programs(root, &[("agent", "bin/yes")]);
    let Started { vm, reader, writer } = started(hostile(image, place, WORDS, &agent)).await;
    let before = peak();
    let settings = Settings { patience: NO_HANG, ..Settings::default() };
    let refused = promptly(Guest::connect(reader, writer, settings, Instant::now() + NO_HANG)).await;
    let error = refused.map(drop).expect_err("that was no agent");
    println!("{error}; {} KiB more", (peak() - before) >> 10);
    // It floods a port that nothing reads.
    tokio::time::sleep(FLOOD).await;
    promptly(vm.pause()).await.unwrap();
    promptly(vm.resume()).await.unwrap();
    promptly(vm.kill()).await.unwrap();
    assert!(peak() - before < MOST, "{} bytes more", peak() - before);
}

/// Nothing for a test of its own: what [`root_who_floods_a_console_costs_its_supervisor_nothing`] runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flooded() {
    let Ok(part) = std::env::var("COFFERDAM_TEST_PART") else { return };
    let image = support::image("flooded").expect("an image");
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    std::fs::create_dir(&root).unwrap();
    support::root(&root).expect("packages were had before");
    match part.as_str() {
        "serial" => serial(&image, &root, place.path()).await,
        "port" => port(&image, &root, place.path()).await,
        _ => return,
    }
    println!("borne: {part}");
}

#[test]
fn root_who_floods_a_console_costs_its_supervisor_nothing() {
    if support::image("root_who_floods_a_console_costs_its_supervisor_nothing").is_none() {
        return;
    }
    for part in ["serial", "port"] {
        let output = again("consoles::flooded", part).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(&format!("borne: {part}")), "{said}");
    }
}
