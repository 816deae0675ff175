//! Hostile archives: every hash matches, but the declarations are wrong.

use std::io::Cursor;
use std::ops::ControlFlow;

use cofferdam_archive::forge::{Forged, ForgedPart, block, packed, record};
use cofferdam_archive::{ArchiveError, Limits, PAGE, ReadOptions, Reader, inspect};
use proptest::prelude::*;

use crate::common::{blank, contents, key, on, page, pages, restore, stored, verify};

const JSON: u8 = 1;
const STATE: u8 = 2;
const MEMORY: u8 = 3;
const DISK: u8 = 4;
const SIZE: u64 = PAGE as u64;

/// Checks that both ways of reading refuse the archive, encrypted or not, with every file left empty.
fn refused(forged: &Forged) -> ArchiveError {
    let (plain, key) = (forged.bytes(None).unwrap(), key());
    let sealed = forged.bytes(Some(&key)).unwrap();
    assert!(verify(&plain, None).is_err(), "was verified");
    assert!(verify(&sealed, Some(&key)).is_err(), "was verified, encrypted");
    let (restored, files) = restore(&plain, None, &[]);
    for file in files {
        assert_eq!(file.metadata().unwrap().len(), 0, "the file is not empty");
    }
    restored.expect_err("was restored")
}

fn part(kind: u8, size: u64, contents: Vec<u8>) -> ForgedPart {
    ForgedPart::new("part", kind, size, contents)
}

fn one(part: ForgedPart) -> Forged {
    Forged::new(vec![part])
}

#[test]
fn forged_archives_are_read_where_they_are_right() {
    let records = [record(1, 2, 0), record(3, 2, 0), pages(&[1, 2]), record(4, 1, 3), record(1, 1, 0)].concat();
    let forged = Forged::new(vec![
        ForgedPart::new("manifest", JSON, 2, b"{}".to_vec()),
        ForgedPart::new("memory", MEMORY, 6 * SIZE, records),
        ForgedPart { blocks: block(3, 3, b"abc"), ..ForgedPart::new("devices", STATE, 0, Vec::new()) },
    ]);
    // The last is a wrong declaration, for which the builder knows no hash.
    assert!(matches!(refused(&forged), ArchiveError::SizeLies { .. }));
    let forged = Forged { parts: forged.parts[..2].to_vec(), ..forged };
    let (restored, _) = restore(&forged.bytes(None).unwrap(), None, &[]);
    assert_eq!(contents(&restored.unwrap().files[0].1), pages(&[0, 0, 1, 2, 2, 0]));
    verify(&forged.bytes(Some(&key())).unwrap(), Some(&key())).unwrap();
}

#[test]
fn oversized_record_is_stopped_before_its_end() {
    const MIB: u64 = 1 << 20;
    let (size, max) = (64 * MIB, 4 * MIB);
    let all = (size / SIZE) as u32;
    let data = [record(3, all, 0), page(7).repeat(all as usize)].concat();
    // One MiB of data, which all the rest copies, in one record.
    let few = (MIB / SIZE) as u32;
    let [before, half] = [few, all / 2];
    let start = [record(3, before, 0), page(7).repeat(before as usize)].concat();
    let mut copies = start;
    let mut at = before;
    while at < half {
        copies.extend(record(4, at, 0));
        at *= 2;
    }
    copies.extend(record(4, half, 0));
    for (what, contents) in [("data", data), ("copies", copies)] {
        let bytes = one(part(MEMORY, size, contents)).bytes(None).unwrap();
        verify(&bytes, None).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(bytes.len() < 1 << 20, "{what}: {} bytes", bytes.len());
        let file = blank();
        let mut target = Some(file.try_clone().unwrap());
        let reader = Reader::open(Cursor::new(&bytes), &ReadOptions::default()).unwrap();
        let mut max_seen = 0;
        let mut stop = |_| {
            max_seen = max_seen.max(stored(&file));
            if stored(&file) >= max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let restored = reader.restore(&[], &mut |_| Ok(target.take().unwrap()), &mut stop);
        assert!(matches!(restored, Err(ArchiveError::Cancelled)), "{what}");
        assert!((max..max + 2 * MIB).contains(&max_seen), "{what}: {max_seen} bytes were written");
    }
}

#[test]
fn other_file_formats_are_refused_as_no_archive() {
    for bytes in [&b""[..], b"\0", b"PK\x03\x04", b"COFFERDAM-WASM\0\0 and more", &[0xFF; 500]] {
        assert!(matches!(verify(bytes, None), Err(ArchiveError::NotAnArchive)), "{bytes:?}");
    }
    assert!(matches!(verify(b"COFFERDAM-VM", None), Err(ArchiveError::Truncated)));
}

#[test]
fn other_versions_and_unknown_marks_are_refused() {
    let right = one(part(STATE, 1, vec![1]));
    for version in [2, 77, u32::MAX] {
        match refused(&Forged { version, ..right.clone() }) {
            ArchiveError::NewerVersion { found, known: 1 } => assert_eq!(found, version),
            other => panic!("{other}"),
        }
    }
    for wrong in [
        Forged { version: 0, ..right.clone() },
        Forged { flags: 2, ..right.clone() },
        Forged { zero: 1, ..right.clone() },
        one(ForgedPart { zero: [0, 0, 0, 0, 0, 1], ..part(STATE, 1, vec![1]) }),
    ] {
        assert!(matches!(refused(&wrong), ArchiveError::Damaged { .. }), "{wrong:?}");
    }
    let salted = Forged { salt: [1; 32], ..right }.bytes(None).unwrap();
    assert!(matches!(verify(&salted, None), Err(ArchiveError::Damaged { .. })));
}

#[test]
fn more_parts_than_allowed_are_refused() {
    let named = |number: usize| ForgedPart::new(&format!("p{number}"), STATE, 0, Vec::new());
    let many = Forged::new((0..65).map(named).collect());
    assert!(matches!(refused(&many), ArchiveError::TooManyParts { found: 65, max: 64 }));
    let count = Forged { count: Some(u32::MAX), ..one(part(STATE, 1, vec![1])) };
    assert!(matches!(refused(&count), ArchiveError::TooManyParts { .. }));
    let over_the_callers = Forged::new((0..17).map(named).collect());
    assert!(matches!(refused(&over_the_callers), ArchiveError::TooManyParts { found: 17, max: 16 }));
}

#[test]
fn names_that_climb_or_come_twice_are_refused() {
    let mut invalid = ForgedPart::new("ab", STATE, 0, Vec::new());
    invalid.name[1] = 0xFF;
    let bad = ["../up", "/etc/passwd", "..", "a/b", "", "A", "a\0b", "a\n", "über", "0"];
    let bad = bad.map(|name| ForgedPart::new(name, STATE, 0, Vec::new()));
    for part in bad.into_iter().chain([invalid]) {
        let error = refused(&one(part.clone()));
        assert!(matches!(error, ArchiveError::BadName { .. }), "{part:?}: {error}");
        assert!(!error.to_string().contains(['\0', '\n']), "shown raw: {error}");
    }
    let twice = Forged::new(vec![part(STATE, 0, Vec::new()), part(MEMORY, 0, Vec::new())]);
    assert!(matches!(refused(&twice), ArchiveError::DuplicateName { .. }));
}

#[test]
fn kinds_bases_and_orders_that_cannot_be_are_refused() {
    let document = ForgedPart::new("document", JSON, 0, Vec::new());
    let mut wrong = vec![Forged::new(vec![part(STATE, 0, Vec::new()), document])];
    wrong.extend([0, 5, 255].map(|kind| one(part(kind, 0, Vec::new()))));
    wrong.extend([JSON, STATE, MEMORY].map(|kind| one(ForgedPart { based: 1, ..part(kind, 0, Vec::new()) })));
    wrong.push(one(ForgedPart { based: 2, ..part(DISK, 0, Vec::new()) }));
    wrong.push(one(ForgedPart { base: [1; 32], ..part(DISK, 0, Vec::new()) }));
    for forged in wrong {
        let error = refused(&forged);
        assert!(matches!(error, ArchiveError::Damaged { .. }), "{forged:?}: {error}");
    }
}

#[test]
fn sizes_that_lie_are_refused() {
    let data = [record(3, 2, 0), pages(&[1, 2])].concat();
    for (kind, size, contents) in [
        (JSON, 3, b"{}".to_vec()),
        (JSON, 1, b"{}".to_vec()),
        (STATE, 1, Vec::new()),
        (STATE, 0, vec![1]),
        (STATE, 2 << 20, vec![1; 1 << 20]),
        (STATE, 1 << 20, vec![1; 2 << 20]),
        (MEMORY, 0, data.clone()),
        (MEMORY, 3 * SIZE, data.clone()),
        (MEMORY, 2 * SIZE - 1, data.clone()),
        (MEMORY, 2 * SIZE + 1, data[..data.len() - 1].to_vec()),
        (MEMORY, 2 * SIZE, data[..data.len() - 1].to_vec()),
        (DISK, SIZE, Vec::new()),
        (DISK, SIZE, record(1, 1, 0)[..15].to_vec()),
    ] {
        let error = refused(&one(part(kind, size, contents)));
        assert!(matches!(error, ArchiveError::SizeLies { .. }), "{kind} of {size}: {error}");
    }
}

#[test]
fn sizes_beyond_the_limits_are_refused_before_anything_is_read() {
    for (kind, size) in [(JSON, u64::MAX), (JSON, (4 << 20) + 1), (STATE, 2 << 30), (MEMORY, u64::MAX), (DISK, 9 << 40)]
    {
        let bytes = one(part(kind, size, Vec::new())).bytes(None).unwrap();
        let options = ReadOptions { key: None, limits: Limits::FORMAT };
        let head = &bytes[..96 + 80 + 32];
        assert!(matches!(inspect(head, &options), Err(ArchiveError::TooLarge { .. })), "{kind} of {size}");
    }
    // Sizes that the format allows and the caller does not.
    assert!(matches!(refused(&one(part(MEMORY, 65 << 30, Vec::new()))), ArchiveError::TooLarge { .. }));
    // A document that only declares a large size takes no memory: it is refused when no data follows.
    let options = ReadOptions { key: None, limits: Limits::FORMAT };
    let bytes = one(part(JSON, 4 << 20, Vec::new())).bytes(None).unwrap();
    assert!(matches!(inspect(&bytes[..], &options), Err(ArchiveError::SizeLies { .. })));
}

#[test]
fn a_hole_of_terabytes_takes_no_time_and_no_space() {
    let bytes = one(part(MEMORY, 8 << 40, record(1, 1 << 31, 0))).bytes(None).unwrap();
    let options = || ReadOptions { key: None, limits: Limits::FORMAT };
    Reader::open(&bytes[..], &options()).unwrap().verify(&mut on).unwrap();
    let target = blank();
    let handle = target.try_clone().unwrap();
    let mut target = Some(target);
    let reader = Reader::open(&bytes[..], &options()).unwrap();
    if let Ok(restored) = reader.restore(&[], &mut |_| Ok(target.take().unwrap()), &mut on) {
        assert_eq!(crate::common::stored(&restored.files[0].1), 0);
    } else {
        // Some file systems do not support files of that size.
        assert_eq!(handle.metadata().unwrap().len(), 0);
    }
}

#[test]
fn blocks_that_are_bombs_or_broken_are_refused() {
    let mebibyte = 1 << 20;
    let bomb = packed(&vec![0; 100 * mebibyte]).unwrap();
    let small = packed(&[7; 1000]).unwrap();
    let length = |bytes: &[u8]| bytes.len() as u32;
    for (what, blocks) in [
        ("a bomb", block(1 << 20, length(&bomb), &bomb)),
        ("a bomb that declares its size", block(100 << 20, length(&bomb), &bomb)),
        ("declares the maximum", block(u32::MAX, u32::MAX, &bomb)),
        ("more than declared", block(999, length(&small), &small)),
        ("less than declared", block(1001, length(&small), &small)),
        ("packed to nothing", block(5, 0, b"")),
        ("unpacked to nothing", block(0, 5, b"12345")),
        ("packed to more", block(4, 5, b"12345")),
        ("garbage", block(1000, 20, &[0xAB; 20])),
        ("half", block(1000, length(&small) / 2, &small[..small.len() / 2])),
    ] {
        let error = refused(&one(ForgedPart { blocks, ..part(STATE, 1000, Vec::new()) }));
        assert!(matches!(error, ArchiveError::Damaged { .. }), "{what}: {error}");
    }
}

#[test]
fn pages_where_none_can_be_are_refused() {
    let page = page(1);
    let data = [&record(3, 1, 0)[..], &page].concat();
    for (what, size, records) in [
        ("beyond the end", SIZE, record(1, 2, 0)),
        ("far beyond the end", SIZE, record(1, u32::MAX, 0)),
        ("data beyond the end", SIZE, [&record(3, 2, 0)[..], &page, &page].concat()),
        ("beyond the end, later", 2 * SIZE, [&data[..], &record(1, 2, 0)].concat()),
        ("a copy of itself", 2 * SIZE, [&data[..], &record(4, 1, 1)].concat()),
        ("a copy over itself", 3 * SIZE, [&data[..], &record(4, 2, 0)].concat()),
        ("a copy of later pages", 3 * SIZE, [&data[..], &record(4, 1, 2), &record(1, 1, 0)].concat()),
        ("a copy from far outside", 2 * SIZE, [&data[..], &record(4, 1, u64::MAX)].concat()),
        ("a first copy", SIZE, record(4, 1, 0)),
        ("a copy to the short end", SIZE + 1, [&data[..], &record(4, 1, 0)].concat()),
        ("no pages", SIZE, record(1, 0, 0)),
        ("no kind", SIZE, record(0, 1, 0)),
        ("an unknown kind", SIZE, record(5, 1, 0)),
        ("unexpected flags", SIZE, record(1, 1, 1)),
        ("zeroes without a base", SIZE, record(2, 1, 0)),
    ] {
        let error = refused(&one(part(MEMORY, size, records.clone())));
        assert!(matches!(error, ArchiveError::BadExtent { .. }), "{what}: {error}");
        let error = refused(&one(part(DISK, size, records)));
        assert!(matches!(error, ArchiveError::BadExtent { .. }), "{what}, a disk: {error}");
    }
}

#[test]
fn every_error_has_a_remedy() {
    let errors = [
        refused(&one(part(STATE, 1, Vec::new()))),
        refused(&Forged { version: 9, ..one(part(STATE, 0, Vec::new())) }),
        verify(b"", None).unwrap_err(),
        verify(b"COFF", None).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        assert!(text.contains(": ") || text.contains('.'), "{text}");
        assert!(text.len() > 40, "{text}");
    }
}

fn any_part() -> impl Strategy<Value = ForgedPart> {
    let kind = prop_oneof![4 => 1..5u8, 1 => any::<u8>()];
    let size = prop_oneof![4 => 0..20u64 * SIZE, 1 => any::<u64>()];
    let name = prop_oneof![9 => "[a-d]{1,3}", 1 => ".{0,5}"];
    let records = prop::collection::vec((0..6u8, 0..6u32, 0..10u64, any::<bool>()), 0..12);
    (name, kind, size, records, prop::collection::vec(any::<u8>(), 0..20), 0..10u8).prop_map(
        |(name, kind, size, records, rest, shape)| {
            let mut contents = Vec::new();
            let mut covered = 0;
            for (kind, count, from, is_right) in records {
                contents.extend(record(kind, count, if kind == 4 || !is_right { from } else { 0 }));
                if kind == 3 {
                    (0..count).for_each(|number| contents.extend(page(u64::from(number % 3))));
                }
                covered += u64::from(count) * SIZE;
            }
            let size = if shape < 6 { covered } else { size };
            let blocks = if shape == 9 { rest.clone() } else { Vec::new() };
            if shape == 8 {
                contents.extend(rest);
            }
            ForgedPart { blocks, ..ForgedPart::new(&name, kind, size, contents) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn forged_archive_is_refused_or_restores_as_verified(parts in prop::collection::vec(any_part(), 0..4)) {
        let forged = Forged::new(parts);
        let bytes = forged.bytes(None).unwrap();
        let verified = verify(&bytes, None);
        let (restored, files) = restore(&bytes, None, &[]);
        match restored {
            Ok(restored) => {
                prop_assert!(verified.is_ok());
                for (part, file) in &restored.files {
                    prop_assert_eq!(file.metadata().unwrap().len(), part.size);
                }
                let key = key();
                prop_assert!(verify(&forged.bytes(Some(&key)).unwrap(), Some(&key)).is_ok());
            }
            Err(_) => {
                prop_assert!(verified.is_err());
                prop_assert!(files.iter().all(|file| file.metadata().unwrap().len() == 0));
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(verify(&bytes, None).is_err());
        let begun = [&b"COFFERDAM-VMSNAP\x01\0\0\0"[..], &bytes].concat();
        prop_assert!(verify(&begun, None).is_err());
        prop_assert!(inspect(&begun[..], &ReadOptions::default()).is_err());
    }
}
