//! Memory use: a VM of gigabytes is saved and restored by a process of megabytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use cofferdam_archive::{ReadOptions, Reader, WriteOptions, Writer};

use crate::common::{key, on, page, stored};

const DIRECTORY: &str = "COFFERDAM_TEST_DIRECTORY";
const SIZE: u64 = 2 << 30;
const DATA: u64 = 64 << 20;
/// Less than the data, so that the data cannot have been in memory at once.
const MAX_PEAK: u64 = 40 << 20;

fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Checks that both files have the same data. Their stored size shows that there is no other data.
fn same(one: &File, other: &File) {
    let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (0..16u64).flat_map(|index| (0..DATA >> 24).map(move |part| offset_of(index) + (part << 20))) {
        one.read_exact_at(&mut a, at).unwrap();
        other.read_exact_at(&mut b, at).unwrap();
        assert!(a == b && a[..8] != [0; 8], "differs at {at}");
    }
}

fn offset_of(index: u64) -> u64 {
    index * (SIZE / 16) + (1 << 20)
}

#[test]
#[ignore = "runs in a child of another test, which needs a process of its own to measure memory"]
fn child() {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY).expect("not run by its parent"));
    let memory = File::open(directory.join("memory")).unwrap();
    let new = |name: &str| File::options().read(true).write(true).create_new(true).open(directory.join(name));
    let key = key();
    let mut writer = Writer::new(WriteOptions { key: Some(&key), ..WriteOptions::default() }).unwrap();
    writer.memory("memory", &memory).unwrap();
    let written = writer.write(new("archive").unwrap(), &mut on).unwrap();
    assert!(written.bytes > DATA && written.bytes < DATA + (1 << 20), "{} bytes", written.bytes);
    let options = ReadOptions { key: Some(&key), ..ReadOptions::default() };
    let reader = Reader::open(File::open(directory.join("archive")).unwrap(), &options).unwrap();
    let restored = reader.restore(&[], &mut |_| new("restored"), &mut on).unwrap();
    let file = &restored.files[0].1;
    assert!(stored(file) < DATA + (1 << 20), "{} bytes are stored", stored(file));
    let peak = peak();
    same(&memory, file);
    assert!(peak < MAX_PEAK, "{} MiB at most", peak >> 20);
    println!("restored within {} MiB", peak >> 20);
}

#[test]
fn large_archive_needs_bounded_memory() {
    let directory = tempfile::tempdir().unwrap();
    let memory = File::create_new(directory.path().join("memory")).unwrap();
    memory.set_len(SIZE).unwrap();
    // Distinct, incompressible pages at sixteen offsets.
    let mut block: Vec<u8> = (1..=DATA / 16 / 4096).flat_map(page).collect();
    for index in 0..16u64 {
        block.chunks_mut(4096).for_each(|page| page[..8].copy_from_slice(&(index + 1).to_le_bytes()));
        memory.write_all_at(&block, offset_of(index)).unwrap();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "memory::child"])
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("restored within"),
        "{text}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    print!("{text}");
}
