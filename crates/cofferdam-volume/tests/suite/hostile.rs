//! Hostile tars.

use std::fs;

use cofferdam_volume::{Bounds, VolumeError};
use tar::EntryType;

use crate::common::{Fixture, Forge, name};

/// Promise (Files): No tar leads an import out of its volume.
#[test]
fn hostile_tars_are_refused_and_leave_nothing() {
    let fixture = Fixture::new();
    let outside = fixture.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let away = outside.to_str().unwrap();
    let deep = "d/".repeat(45);
    let many = |kind| {
        let forge = Forge::new();
        forge.member(kind, "x", "", 0o644, b"")
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("absolute", Forge::new().file("/tmp/x", b"x").end()),
        ("parent", Forge::new().file("../x", b"x").end()),
        ("inner parent", Forge::new().file("a/../../x", b"x").end()),
        ("through a link", Forge::new().link("l", away).file("l/x", b"x").end()),
        ("through a relative link", Forge::new().link("l", "../../outside").file("l/x", b"x").end()),
        ("directory over a link", Forge::new().link("l", away).directory("l", 0o777).file("l/x", b"x").end()),
        ("file over a link", Forge::new().link("l", &format!("{away}/x")).file("l", b"x").end()),
        ("through a file", Forge::new().file("f", b"x").file("f/x", b"x").end()),
        ("directory over a file", Forge::new().file("f", b"x").directory("f", 0o755).end()),
        ("file over a directory", Forge::new().directory("f", 0o755).file("f", b"x").end()),
        ("twice", Forge::new().file("f", b"x").file("./f", b"y").end()),
        ("the volume as a file", Forge::new().file("./", b"x").end()),
        ("hard link away", Forge::new().member(EntryType::Link, "h", "/etc/passwd", 0o644, b"").end()),
        ("hard link up", Forge::new().member(EntryType::Link, "h", "../../outside", 0o644, b"").end()),
        (
            "hard link through a link",
            Forge::new().link("l", "/etc").member(EntryType::Link, "h", "l/passwd", 0o644, b"").end(),
        ),
        (
            "hard link to a link",
            Forge::new().link("l", "/etc/passwd").member(EntryType::Link, "h", "l", 0o644, b"").end(),
        ),
        ("hard link to nothing", Forge::new().member(EntryType::Link, "h", "none", 0o644, b"").end()),
        ("hard link without target", Forge::new().member(EntryType::Link, "h", "", 0o644, b"").end()),
        ("link without target", Forge::new().link("l", "").end()),
        ("device", many(EntryType::Block).end()),
        ("character device", many(EntryType::Char).end()),
        ("fifo", many(EntryType::Fifo).end()),
        ("sparse", many(EntryType::GNUSparse).end()),
        ("unknown", many(EntryType::new(b'Z')).end()),
        ("deep", Forge::new().pax("path", format!("{deep}{deep}{deep}x").as_bytes()).file("x", b"").end()),
        ("long name", Forge::new().pax("path", "n".repeat(256).as_bytes()).file("x", b"").end()),
        ("long path", Forge::new().pax("path", "n/".repeat(3000).as_bytes()).file("x", b"").end()),
        ("NUL", Forge::new().pax("path", b"a\0b").file("x", b"").end()),
        ("name without end", Forge::new().pax("path", &vec![b'n'; 2 << 20]).file("x", b"").end()),
    ];
    for (case, tar) in cases {
        let error = fixture.import("v", None, &tar).expect_err(case);
        let is_expected = matches!(error, VolumeError::Malformed { .. } | VolumeError::Stream { .. });
        assert!(is_expected && !error.to_string().contains('\0'), "{case}: {error:?}");
        assert_eq!(fixture.entries(), [""; 0], "{case}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{case}");
    }
}

#[test]
fn bombs_end_at_the_limits() {
    let fixture = Fixture::new();
    let bounds = Bounds { max_bytes: 64 << 20, max_files: 1000 };
    // A size that is only claimed.
    let mut header = tar::Header::new_gnu();
    header.set_size(1 << 50);
    header.set_mode(0o644);
    header.set_path("bomb").unwrap();
    header.set_cksum();
    let import = |tar: &mut dyn std::io::Read| fixture.store.import(&name("v"), None, tar, &bounds, &mut |_| ());
    let mut endless = std::io::Read::chain(&header.as_bytes()[..], std::io::repeat(0));
    assert!(matches!(import(&mut endless), Err(VolumeError::TooLarge { .. })));
    let mut forge = Forge::new();
    for number in 0..1001 {
        forge = forge.file(&number.to_string(), b"");
    }
    assert!(matches!(import(&mut &forge.end()[..]), Err(VolumeError::TooLarge { .. })));
    // Directories without an entry count, too.
    let mut forge = Forge::new();
    for number in 0..20 {
        forge = forge.file(&format!("{number}/{}x", "d/".repeat(40)), b"");
    }
    let files = Bounds { max_files: 100, ..bounds };
    let imported = fixture.store.import(&name("v"), None, &forge.end()[..], &files, &mut |_| ());
    assert!(matches!(imported, Err(VolumeError::TooLarge { .. })));
    let empty = Forge::new().end();
    let mut rest = std::io::Read::chain(&empty[..], std::io::repeat(0));
    assert!(matches!(import(&mut rest), Err(VolumeError::Stream { .. })), "padding without end");
    assert_eq!(fixture.entries(), [""; 0]);
}
