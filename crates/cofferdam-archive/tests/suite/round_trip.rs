//! Round trips: the restored contents equal the saved ones.

use std::io::Cursor;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use cofferdam_archive::{
    ArchiveError, Base, Kind, Limits, PAGE, ReadOptions, Reader, Restored, WriteOptions, Writer, inspect,
};
use proptest::prelude::*;

use crate::common::{Vm, all, blank, contents, file_of, key, on, page, pages, restore, stored, verify};

#[test]
fn vm_state_round_trips() {
    let vm = Vm::small();
    let key = key();
    for (bytes, key) in [(vm.plain(), None), (vm.encrypted(), Some(&key))] {
        verify(&bytes, key).unwrap();
        let restored = restore(&bytes, key, &vm.bases()).0.unwrap();
        assert!(all(&restored) == vm.all());
        let names: Vec<_> = restored.files.iter().map(|(part, _)| (part.name.as_str(), part.kind)).collect();
        assert_eq!(names, [("devices", Kind::State), ("memory", Kind::Memory), ("disk", Kind::Disk)]);
    }
}

#[test]
fn empty_archive_is_valid() {
    let mut bytes = Vec::new();
    Writer::new(WriteOptions::default()).unwrap().write(&mut bytes, &mut on).unwrap();
    verify(&bytes, None).unwrap();
    let empty = blank();
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    writer.json("j", b"").unwrap().state("s", &empty).unwrap().memory("m", &empty).unwrap();
    writer.disk("d", &empty, None).unwrap();
    let mut bytes = Vec::new();
    writer.write(&mut bytes, &mut on).unwrap();
    assert_eq!(all(&restore(&bytes, None, &[]).0.unwrap()), vec![Vec::<u8>::new(); 4]);
}

#[test]
fn equal_vm_state_gives_equal_bytes_for_any_holes() {
    let vm = Vm::small();
    assert_eq!(vm.plain(), vm.plain());
    // Zeroes as holes, and zeroes that were written.
    let size = 700 * PAGE as u64 + 5;
    let (holes, written) = (blank(), file_of(&vec![0; size as usize]));
    holes.set_len(size).unwrap();
    for at in [3, 255, 256, 257, 600] {
        for file in [&holes, &written] {
            file.write_all_at(&page(at), at * PAGE as u64).unwrap();
        }
    }
    assert!(stored(&holes) < stored(&written));
    let archives = [&holes, &written].map(|memory| {
        let mut writer = Writer::new(WriteOptions::default()).unwrap();
        writer.memory("memory", memory).unwrap();
        let mut bytes = Vec::new();
        writer.write(&mut bytes, &mut on).unwrap();
        bytes
    });
    assert_eq!(archives[0], archives[1]);
}

#[test]
fn two_encrypted_archives_have_nothing_in_common() {
    let vm = Vm::small();
    let (one, other) = (vm.encrypted(), vm.encrypted());
    let head = 96 + 4 * 80 + 32;
    let equal = one[head..].iter().zip(&other[head..]).filter(|(a, b)| a == b).count();
    assert_eq!(one.len(), other.len());
    assert!(equal < one.len() / 50, "{equal} of {} bytes are equal", one.len());
    // No part of a document appears in clear.
    assert!(!one.windows(5).any(|bytes| bytes == b"named"));
    assert!(vm.plain().windows(5).any(|bytes| bytes == b"named"));
}

#[test]
fn restored_memory_is_sparse() {
    let mebibyte = 1 << 20;
    let memory = blank();
    memory.set_len(256 * mebibyte).unwrap();
    memory.write_all_at(&page(1), 100 * mebibyte).unwrap();
    memory.write_all_at(&page(2), 256 * mebibyte - PAGE as u64).unwrap();
    // Zeroes that are not holes in the source.
    memory.write_all_at(&vec![0; mebibyte as usize], 10 * mebibyte).unwrap();
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    writer.memory("memory", &memory).unwrap();
    let mut bytes = Vec::new();
    writer.write(&mut bytes, &mut on).unwrap();
    assert!(bytes.len() < 10 << 10, "{} bytes", bytes.len());
    let restored = restore(&bytes, None, &[]).0.unwrap();
    let file = &restored.files[0].1;
    assert!(stored(file) <= 4 * PAGE as u64, "{} bytes are stored", stored(file));
    assert_eq!(contents(file), contents(&memory));
}

#[test]
fn duplicates_are_stored_once_as_long_as_they_are_remembered() {
    let distinct: Vec<u64> = (1..=40).collect();
    let memory = file_of(&pages(&distinct.repeat(20)));
    let length = |remembered_pages| {
        let mut writer = Writer::new(WriteOptions { remembered_pages, ..WriteOptions::default() }).unwrap();
        writer.memory("memory", &memory).unwrap();
        let mut bytes = Vec::new();
        writer.write(&mut bytes, &mut on).unwrap();
        let restored = restore(&bytes, None, &[]).0.unwrap();
        assert_eq!(contents(&restored.files[0].1), contents(&memory));
        bytes.len()
    };
    let (all, half, none) = (length(1000), length(20), length(0));
    assert!(all < half && half < none, "{all}, {half}, {none}");
    assert!(all < 45 * PAGE, "{all}");
}

#[test]
fn a_disk_is_stored_as_its_differences() {
    let below: Vec<u64> = (1..=500).collect();
    let mut above = below.clone();
    (above[3], above[200], above[499]) = (1000, 0, 1001);
    // One disk longer than its base, one shorter.
    for length in [520, 480] {
        above.resize(length, 1002);
        let (base, disk) = (Base::hashed(file_of(&pages(&below))).unwrap(), file_of(&pages(&above)));
        let mut writer = Writer::new(WriteOptions::default()).unwrap();
        writer.disk("disk", &disk, Some(&base)).unwrap();
        let mut bytes = Vec::new();
        writer.write(&mut bytes, &mut on).unwrap();
        assert!(bytes.len() < 5 * PAGE, "{} bytes", bytes.len());
        let restored = restore(&bytes, None, &[base]).0.unwrap();
        assert_eq!(contents(&restored.files[0].1), contents(&disk));
        assert!(stored(&restored.files[0].1) <= stored(&disk));
    }
}

#[test]
fn a_disk_needs_just_its_base() {
    let vm = Vm::small();
    let bytes = vm.plain();
    let wanted = vm.base.as_ref().unwrap().id();
    // Verification needs no base.
    verify(&bytes, None).unwrap();
    match restore(&bytes, None, &[]).0 {
        Err(ArchiveError::BaseMissing { base, .. }) => assert_eq!(base, wanted),
        other => panic!("{other:?}"),
    }
    let (restored, files) = restore(&bytes, None, &[Base::hashed(file_of(b"other")).unwrap()]);
    match restored {
        Err(error @ ArchiveError::WrongBase { .. }) => assert!(error.to_string().contains(&wanted.to_string())),
        other => panic!("{other:?}"),
    }
    assert!(files.is_empty(), "a file was created before the base was checked");
    let mut bases = vec![Base::hashed(file_of(b"other")).unwrap()];
    bases.extend(vm.bases());
    assert!(restore(&bytes, None, &bases).0.is_ok());
}

#[test]
fn inspect_reads_only_the_head_and_lists_clear_parts() {
    let (vm, key) = (Vm::small(), key());
    let (plain, encrypted) = (vm.plain(), vm.encrypted());
    let head = 96 + 4 * 80 + 32;
    let summary = inspect(&plain[..head + 200], &ReadOptions::default()).unwrap();
    assert!(!summary.encrypted);
    assert_eq!(summary.documents.unwrap()[0].bytes, vm.manifest);
    let parts: Vec<_> = summary.parts.iter().map(|part| (part.name.as_str(), part.size)).collect();
    let page = PAGE as u64;
    assert_eq!(parts, [("manifest", 15), ("devices", 20), ("memory", 7 * page), ("disk", 4 * page + 3)]);
    assert_eq!(summary.parts[3].base, vm.base.as_ref().map(Base::id));
    // For an encrypted archive: the head, and with the key the documents.
    let summary = inspect(&encrypted[..head], &ReadOptions::default()).unwrap();
    assert_eq!((summary.encrypted, summary.documents, summary.parts.len()), (true, None, 4));
    let with_key = ReadOptions { key: Some(&key), ..ReadOptions::default() };
    let summary = inspect(&encrypted[..], &with_key).unwrap();
    assert_eq!(summary.documents.unwrap()[0].bytes, vm.manifest);
}

#[test]
fn progress_comes_to_the_total_and_can_end_it() {
    let memory = blank();
    memory.set_len(64 << 20).unwrap();
    (0..64).for_each(|mebibyte| memory.write_all_at(&page(mebibyte + 1), mebibyte << 20).unwrap());
    let save = |watch: &mut dyn FnMut(cofferdam_archive::Progress) -> ControlFlow<()>| {
        let mut writer = Writer::new(WriteOptions::default()).unwrap();
        writer.json("j", b"{}").unwrap().memory("memory", &memory).unwrap();
        let mut bytes = Vec::new();
        writer.write(&mut bytes, watch).map(|_| bytes)
    };
    let mut reports = Vec::new();
    let bytes = save(&mut |progress| {
        reports.push(progress);
        ControlFlow::Continue(())
    });
    let bytes = bytes.unwrap();
    let total = (64 << 20) + 2;
    assert!(reports.len() >= 64 && reports.iter().all(|progress| progress.total == total));
    assert!(reports.is_sorted_by_key(|progress| (progress.done, progress.archive)));
    assert_eq!(reports.last().unwrap().done, total);
    let stop = |progress: cofferdam_archive::Progress| match progress.done > total / 2 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    assert!(matches!(save(&mut { stop }), Err(ArchiveError::Cancelled)));
    let file = blank();
    let target = file.try_clone().unwrap();
    let reader = Reader::open(Cursor::new(&bytes), &ReadOptions::default()).unwrap();
    let mut target = Some(target);
    let restored = reader.restore(&[], &mut |_| Ok(target.take().unwrap()), &mut { stop });
    assert!(matches!(restored, Err(ArchiveError::Cancelled)));
    assert_eq!(file.metadata().unwrap().len(), 0);
}

#[test]
fn files_in_use_are_left_unchanged() {
    let vm = Vm::small();
    let used = file_of(b"existing");
    let reader = Reader::open(Cursor::new(vm.plain()), &ReadOptions::default()).unwrap();
    let restored = reader.restore(&vm.bases(), &mut |_| used.try_clone(), &mut on);
    assert!(matches!(restored, Err(ArchiveError::UnfitFile { .. })));
    assert_eq!(contents(&used), b"existing");
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    assert!(matches!(writer.memory("memory", &null), Err(ArchiveError::UnfitFile { .. })));
}

#[test]
fn a_file_that_changes_its_size_is_not_saved() {
    for size in [PAGE as u64, 30 * PAGE as u64, 3 << 20] {
        for is_state in [false, true] {
            let file = file_of(&pages(&(1..=20).collect::<Vec<_>>()));
            let mut writer = Writer::new(WriteOptions::default()).unwrap();
            match is_state {
                true => writer.state("part", &file).unwrap(),
                false => writer.memory("part", &file).unwrap(),
            };
            file.set_len(size).unwrap();
            let written = writer.write(Vec::new(), &mut on);
            assert!(matches!(written, Err(ArchiveError::SourceChanged { .. })), "{size}: {written:?}");
        }
    }
}

#[test]
fn invalid_write_options_and_parts_are_refused_early() {
    let file = blank();
    for level in [-1, 0, 20, i32::MAX] {
        let options = WriteOptions { level, ..WriteOptions::default() };
        assert!(matches!(Writer::new(options), Err(ArchiveError::BadLevel { .. })));
    }
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    writer.state("one", &file).unwrap();
    assert!(matches!(writer.memory("one", &file), Err(ArchiveError::DuplicateName { .. })));
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    assert!(matches!(writer.json("../up", b""), Err(ArchiveError::BadName { .. })));
    let large = vec![0; (4 << 20) + 1];
    assert!(matches!(writer.json("large", &large), Err(ArchiveError::TooLarge { .. })));
    // The archive does not contain the refused parts.
    let mut bytes = Vec::new();
    writer.write(&mut bytes, &mut on).unwrap();
    assert_eq!(inspect(&bytes[..], &ReadOptions::default()).unwrap().parts, []);
    let mut writer = Writer::new(WriteOptions::default()).unwrap();
    let names: Vec<String> = (0..64).map(|number| format!("n{number}")).collect();
    names.iter().for_each(|name| _ = writer.json(name, b"").unwrap());
    assert!(matches!(writer.json("over", b""), Err(ArchiveError::TooManyParts { .. })));
}

#[test]
fn the_callers_limits_hold() {
    let bytes = Vm::small().plain();
    let refused = |limits: Limits| {
        let reader = Reader::open(Cursor::new(&bytes), &ReadOptions { key: None, limits });
        let shown = inspect(&bytes[..], &ReadOptions { key: None, limits });
        assert_eq!(reader.is_err(), shown.is_err());
        reader.err()
    };
    let limits = Limits::default();
    assert!(refused(limits).is_none() && refused(Limits::FORMAT).is_none());
    assert!(matches!(refused(Limits { parts: 3, ..limits }), Some(ArchiveError::TooManyParts { max: 3, .. })));
    for tight in [
        Limits { json: 14, ..limits },
        Limits { state: 19, ..limits },
        Limits { memory: 7 * PAGE as u64 - 1, ..limits },
        Limits { disk: 4 * PAGE as u64, ..limits },
        Limits { total: 11 * PAGE as u64, ..limits },
    ] {
        assert!(matches!(refused(tight), Some(ArchiveError::TooLarge { .. })), "{tight:?}");
    }
}

/// Generates pages by small numbers, to include zeroes and duplicates, and a tail.
fn image() -> impl Strategy<Value = Vec<u8>> {
    let runs = prop::collection::vec((0..6u64, 1..40usize), 0..20);
    (runs, prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(runs, tail)| {
        let numbers: Vec<u64> = runs.iter().flat_map(|(number, count)| vec![*number; *count]).collect();
        [pages(&numbers), tail].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_parts_round_trip(
        manifest in prop::collection::vec(any::<u8>(), 0..300),
        devices in prop::collection::vec(any::<u8>(), 0..70_000),
        memory in image(),
        disk in image(),
        base in prop::option::of(image()),
        level in 1..4i32,
        remembered_pages in prop::sample::select(vec![0, 1, 3, 1000]),
        encrypted in any::<bool>(),
    ) {
        let bases: Vec<Base> = base.iter().map(|bytes| Base::hashed(file_of(bytes)).unwrap()).collect();
        let key = key();
        let key = encrypted.then_some(&key);
        let (devices, memory, disk) = (file_of(&devices), file_of(&memory), file_of(&disk));
        let mut writer = Writer::new(WriteOptions { level, key, remembered_pages }).unwrap();
        writer.json("manifest", &manifest).unwrap().state("devices", &devices).unwrap();
        writer.memory("memory", &memory).unwrap().disk("disk", &disk, bases.first()).unwrap();
        let mut bytes = Vec::new();
        let written = writer.write(&mut bytes, &mut on).unwrap();
        verify(&bytes, key).unwrap();
        let restored: Restored = restore(&bytes, key, &bases).0.unwrap();
        prop_assert_eq!(restored.digest, written.digest);
        prop_assert_eq!(all(&restored), [manifest, contents(&devices), contents(&memory), contents(&disk)]);
    }
}
