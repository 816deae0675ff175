//! Properties of random trees, and interoperation with other programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use cofferdam_changes::LayerWriter;
use proptest::prelude::*;

use crate::common::*;

#[derive(Debug, Clone)]
enum Item {
    File(Vec<u8>, u32),
    Link(u8),
    Directory(BTreeMap<u8, Item>, u32),
}

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c.txt", b"n\n", b"\xfe", b"Z z"];

fn items() -> impl Strategy<Value = BTreeMap<u8, Item>> {
    let file = (prop::collection::vec(any::<u8>(), 0..4), prop::sample::select(vec![0o644, 0o600, 0o755]));
    let leaf =
        prop_oneof![3 => file.prop_map(|(bytes, mode)| Item::File(bytes, mode)), 1 => (0_u8..6).prop_map(Item::Link)];
    let item = leaf.prop_recursive(3, 24, 5, |inner| {
        let inside = prop::collection::btree_map(0_u8..6, inner, 0..5);
        (inside, prop::sample::select(vec![0o755, 0o700])).prop_map(|(inside, mode)| Item::Directory(inside, mode))
    });
    prop::collection::btree_map(0_u8..6, item, 0..6)
}

fn build(root: &Path, items: &BTreeMap<u8, Item>) {
    for (name, item) in items {
        let path = root.join(bytes(NAMES[usize::from(*name)]));
        match item {
            Item::File(contents, bits) => {
                fs::write(&path, contents).unwrap();
                mode(&path, *bits);
            }
            Item::Link(target) => std::os::unix::fs::symlink(bytes(NAMES[usize::from(*target)]), &path).unwrap(),
            Item::Directory(inside, bits) => {
                fs::create_dir(&path).unwrap();
                build(&path, inside);
                mode(&path, *bits);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_difference_of_two_trees_applied_to_one_gives_the_other(before in items(), after in items()) {
        let f = Fixture::untimed();
        build(&f.base, &before);
        build(&f.guest, &after);
        let set = f.set();
        f.apply_all(&set);
        prop_assert_eq!(tree(&f.base), tree(&f.guest));
        prop_assert_eq!(f.set().changes().len(), 0);
    }
}

#[test]
fn other_programs_read_change_sets() {
    if Command::new("tar").arg("--version").output().is_err() {
        println!("SKIP other_programs_read_change_sets: there is no tar");
        return;
    }
    let f = Fixture::new(&[("gone", "1")]);
    let long = "l".repeat(200);
    put(&f.guest, &format!("{long}/{long}"), "contents");
    put(&f.guest, "d/file", "x");
    link(&long, &f.guest, "link");
    let out = f.temp.path().join("set.tar");
    let file = fs::File::create(&out).unwrap();
    let mut writer = LayerWriter::new(&file, &f.header).unwrap();
    let name = format!("{long}/{long}");
    writer.file(Path::new(&name), 0o644, 8, &b"contents"[..], None).unwrap();
    writer.symlink(Path::new("link"), long.as_ref(), None).unwrap();
    writer.whiteout(Path::new("gone"), None).unwrap();
    writer.finish().unwrap();
    let unpacked = f.temp.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let output = Command::new("tar").arg("-xf").arg(&out).arg("-C").arg(&unpacked).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(read(&unpacked, &name), "contents");
    assert_eq!(fs::read_link(unpacked.join("link")).unwrap(), Path::new(&long));
    assert!(unpacked.join(".wh.gone").exists());
}
