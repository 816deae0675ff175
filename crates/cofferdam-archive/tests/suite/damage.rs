//! Damage tests: bytes that are changed, cut off, moved or added are detected before anything is handed out.

use cofferdam_archive::{ArchiveError, Key, ReadOptions, Reader, WriteOptions, Writer};

use crate::common::{Vm, file_of, key, on, page, pages, restore, verify};

/// Checks that both ways of reading refuse the archive, with every file left empty.
fn refused(bytes: &[u8], key: Option<&Key>, vm: &Vm) -> ArchiveError {
    assert!(verify(bytes, key).is_err(), "was verified");
    let (restored, files) = restore(bytes, key, &vm.bases());
    for file in files {
        assert_eq!(file.metadata().unwrap().len(), 0, "the file is not empty");
    }
    restored.expect_err("was restored")
}

/// Creates a VM so small that each bit of its archive can be flipped.
fn tiny() -> Vm {
    let vm = Vm::small();
    let repeated = |byte: u8| vec![byte; 4096];
    Vm {
        memory: file_of(&[vec![0; 4096], repeated(1), repeated(1), repeated(2)].concat()),
        disk: file_of(&[&page(7)[..], &repeated(3), b"end"].concat()),
        ..vm
    }
}

/// Promise (Virtual machines): Every flipped bit in an archive is detected.
#[test]
fn every_flipped_bit_is_noticed() {
    let (vm, key) = (tiny(), key());
    for (bytes, key) in [(vm.plain(), None), (vm.encrypted(), Some(&key))] {
        assert!(bytes.len() < 2000, "{} bytes", bytes.len());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                assert!(verify(&bytes, key).is_err(), "bit {bit} of byte {at} was not noticed");
            }
        }
        for at in (0..bytes.len()).step_by(7) {
            let mut bytes = bytes.clone();
            bytes[at] = !bytes[at];
            refused(&bytes, key, &vm);
        }
    }
}

/// Promise (Virtual machines): Every truncation of an archive is detected.
#[test]
fn every_cut_is_noticed() {
    let (vm, key) = (tiny(), key());
    let plain = vm.plain();
    for end in 0..plain.len() {
        let error = refused(&plain[..end], None, &vm);
        let expected = if end == 0 {
            matches!(error, ArchiveError::NotAnArchive)
        } else {
            matches!(error, ArchiveError::Truncated)
        };
        assert!(expected, "{end}: {error}");
    }
    let encrypted = vm.encrypted();
    for end in 0..encrypted.len() {
        refused(&encrypted[..end], Some(&key), &vm);
    }
}

#[test]
fn bytes_behind_the_end_are_noticed() {
    let (vm, key) = (Vm::small(), key());
    for more in [&b"\0"[..], b"more", &[0; 70_000]] {
        let plain = refused(&[&vm.plain(), more].concat(), None, &vm);
        assert!(matches!(plain, ArchiveError::TrailingBytes), "{plain}");
        refused(&[&vm.encrypted(), more].concat(), Some(&key), &vm);
    }
}

const HEAD: usize = 96 + 80 + 32;
const SEALED: usize = (64 << 10) + 16;

/// Returns the head and the chunks of an encrypted archive of many chunks.
fn chunks(key: &Key) -> (Vec<u8>, Vec<Vec<u8>>) {
    let memory = file_of(&pages(&(1..=80).collect::<Vec<_>>()));
    let mut writer = Writer::new(WriteOptions { key: Some(key), ..WriteOptions::default() }).unwrap();
    writer.memory("memory", &memory).unwrap();
    let mut bytes = Vec::new();
    writer.write(&mut bytes, &mut on).unwrap();
    let chunks: Vec<Vec<u8>> = bytes[HEAD..].chunks(SEALED).map(<[u8]>::to_vec).collect();
    assert!(chunks.len() > 4);
    (bytes[..HEAD].to_vec(), chunks)
}

/// Promise (Virtual machines): Moved, doubled and foreign chunks of an encrypted archive are detected.
#[test]
fn sealed_chunks_stay_where_they_are() {
    let key = key();
    let (head, chunks) = chunks(&key);
    let check = |chunks: Vec<&Vec<u8>>| {
        let chunks: Vec<u8> = chunks.into_iter().flatten().copied().collect();
        verify(&[&head[..], &chunks].concat(), Some(&key))
    };
    let all = || chunks.iter().collect::<Vec<_>>();
    check(all()).unwrap();
    let changed = |change: &dyn Fn(&mut Vec<&Vec<u8>>)| {
        let mut chunks = all();
        change(&mut chunks);
        check(chunks).unwrap_err()
    };
    let is_damaged = |error: ArchiveError| assert!(matches!(error, ArchiveError::Damaged { .. }), "{error}");
    is_damaged(changed(&|chunks| chunks.swap(1, 2)));
    is_damaged(changed(&|chunks| _ = chunks.remove(1)));
    is_damaged(changed(&|chunks| chunks.insert(1, chunks[1])));
    is_damaged(changed(&|chunks| _ = chunks.remove(0)));
    // Cut between chunks, and continued behind the last.
    let last = chunks.len() - 1;
    assert!(matches!(changed(&|chunks| chunks.truncate(last)), ArchiveError::Truncated));
    assert!(matches!(changed(&|chunks| chunks.truncate(1)), ArchiveError::Truncated));
    assert!(matches!(changed(&|chunks| chunks.clear()), ArchiveError::Truncated));
}

#[test]
fn cut_after_a_full_last_chunk_is_detected() {
    // The contents are incompressible, so that the body's length can be chosen: blocks, hashes and the end take 88
    // bytes.
    let key = key();
    let mut lengths = std::collections::BTreeSet::new();
    let random = pages(&(1..=17).collect::<Vec<_>>());
    for size in (64 << 10) - 90..(64 << 10) - 70 {
        let devices = file_of(&random[..size]);
        let mut writer = Writer::new(WriteOptions { key: Some(&key), ..WriteOptions::default() }).unwrap();
        writer.state("devices", &devices).unwrap();
        let mut bytes = Vec::new();
        writer.write(&mut bytes, &mut on).unwrap();
        verify(&bytes, Some(&key)).unwrap();
        lengths.insert(bytes.len() - HEAD);
        if bytes.len() - HEAD == SEALED {
            let error = verify(&[&bytes[..], b"x"].concat(), Some(&key)).unwrap_err();
            assert!(matches!(error, ArchiveError::TrailingBytes), "{error}");
        }
    }
    assert!(lengths.contains(&SEALED), "{lengths:?}");
}

/// Promise (Virtual machines): The body of an archive opens with its own head only.
#[test]
fn a_body_opens_under_its_own_head_only() {
    let key = key();
    let ((head, one), (_, other)) = (chunks(&key), chunks(&key));
    let mixed = [&head[..], &other.concat()].concat();
    assert!(matches!(verify(&mixed, Some(&key)), Err(ArchiveError::Damaged { .. })));
    verify(&[&head[..], &one.concat()].concat(), Some(&key)).unwrap();
}

/// Promise (Virtual machines): An encrypted archive opens with its own key only.
#[test]
fn keys_are_asked_for_and_compared() {
    let (vm, right, wrong) = (Vm::small(), key(), Key::new(&[1; 32]).unwrap());
    let (plain, encrypted) = (vm.plain(), vm.encrypted());
    assert!(matches!(refused(&encrypted, None, &vm), ArchiveError::KeyMissing));
    let error = refused(&encrypted, Some(&wrong), &vm);
    assert!(matches!(error, ArchiveError::WrongKey));
    // An attacker cannot substitute an archive of their own where an encrypted one is expected.
    assert!(matches!(refused(&plain, Some(&right), &vm), ArchiveError::NotEncrypted));
    let options = ReadOptions { key: Some(&right), ..ReadOptions::default() };
    let shown = format!("{options:?} {:?} {error} {error:?}", Reader::open(&encrypted[..], &options).unwrap());
    assert!(!shown.contains("90, 90") && !shown.to_lowercase().contains("5a5a"), "{shown}");
}
