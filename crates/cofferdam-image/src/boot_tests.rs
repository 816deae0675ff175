//! The init understands the options that it is sent, and nothing else.

use proptest::prelude::*;

use crate::boot::{Disk, DiskMount, Options, Port, Room, Store};

fn sample<'a>() -> Options<'a> {
    Options {
        root: Disk::Serial(b"cofferdam-root"),
        workspace: Store::Disk(Disk::Name(b"vdb")),
        mounts: [
            Some(DiskMount { target: b"/a.b/c", read_only: true, disk: Disk::Serial(b"disk-0") }),
            Some(DiskMount { target: b"/d", read_only: false, disk: Disk::Name(b"vdd") }),
            None,
            None,
        ],
        tmp: Room { bytes: 4096, files: 64 },
        shm: Room { bytes: 8192, files: 65 },
        user: (1000, 1001),
        port: Port::Name(b"dev.cofferdam.agent"),
        memory: Some(1 << 28),
        tasks: None,
        cpu: Some(50_000),
    }
}

#[test]
fn words_of_others_are_passed_over() {
    let line = format!("console=ttyS0 {} panic=-1 root=x\n", sample());
    assert_eq!(Options::parse(line.as_bytes()), Ok(sample()));
}

#[test]
fn every_word_must_be_known_come_once_and_have_a_value_of_its_kind() {
    let good = sample().to_string();
    for bad in [
        "cofferdam.x=1",
        "cofferdam.",
        "cofferdam.user",
        "cofferdam.port=again",
        "cofferdam.tasks=0",
        "cofferdam.tasks=007",
        "cofferdam.tasks=-1",
        "cofferdam.tasks=99999999999999999999",
        "cofferdam.tasks=",
    ] {
        let line = format!("{good} {bad}");
        assert_eq!(Options::parse(line.as_bytes()), Err(bad.as_bytes()), "{bad}");
    }
    for (word, bad) in [
        ("cofferdam.user=1000:1001", "cofferdam.user=0:1"),
        ("cofferdam.user=1000:1001", "cofferdam.user=1:0"),
        ("cofferdam.user=1000:1001", "cofferdam.user=4294967295:1"),
        ("cofferdam.tmp=4096:64", "cofferdam.tmp=4096"),
        ("cofferdam.workspace=vdb", "cofferdam.workspace=../vdb"),
        ("cofferdam.workspace=vdb", "cofferdam.workspace=serial:a/b"),
        ("cofferdam.mount=/d:rw:vdd", "cofferdam.mount=/d:cow:vdd"),
        ("cofferdam.mount=/d:rw:vdd", "cofferdam.mount=/../d:rw:vdd"),
        ("cofferdam.mount=/d:rw:vdd", "cofferdam.mount=d:rw:vdd"),
        ("cofferdam.mount=/d:rw:vdd", "cofferdam.mount=/d//e:rw:vdd"),
        ("cofferdam.mount=/d:rw:vdd", "cofferdam.mount=/:rw:vdd"),
        ("cofferdam.mount=/d:rw:vdd", "cofferdam.mount=/d:rw"),
        ("cofferdam.port=dev.cofferdam.agent", "cofferdam.port=Dev"),
        ("cofferdam.port=dev.cofferdam.agent", "cofferdam.port=vsock:0"),
        ("cofferdam.port=dev.cofferdam.agent", "cofferdam.port=vsock:4294967295"),
        ("cofferdam.port=dev.cofferdam.agent", "cofferdam.port=vsock:"),
    ] {
        assert!(good.contains(word), "{word}");
        assert_eq!(Options::parse(good.replace(word, bad).as_bytes()), Err(bad.as_bytes()), "{bad}");
    }
}

#[test]
fn missing_boot_option_is_named() {
    for word in ["root", "workspace", "tmp", "shm", "user", "port"] {
        let begin = format!("cofferdam.{word}=");
        let line = sample().to_string();
        let rest: Vec<&str> = line.split(' ').filter(|part| !part.starts_with(&begin)).collect();
        let missing = format!("cofferdam.{word}");
        assert_eq!(Options::parse(rest.join(" ").as_bytes()), Err(missing.as_bytes()));
    }
}

#[test]
fn more_disks_than_the_limit_are_refused() {
    let line = format!("{} cofferdam.mount=/e:ro:vde cofferdam.mount=/f:ro:vdf", sample());
    assert!(Options::parse(line.as_bytes()).is_ok());
    let last = "cofferdam.mount=/g:ro:vdg";
    assert_eq!(Options::parse(format!("{line} {last}").as_bytes()), Err(last.as_bytes()));
}

proptest! {
    #[test]
    fn options_are_parsed_as_written(
        bytes in 1u64.., files in 1u64.., uid in 1..u32::MAX, gid in 1..u32::MAX,
        memory in proptest::option::of(1u64..), tasks in proptest::option::of(1u64..),
        serial in "[a-z0-9.-]{1,20}", port in "[a-z0-9.-]{1,32}", number in proptest::option::of(1..u32::MAX), in_memory: bool,
    ) {
        let room = Room { bytes, files };
        let disk = Disk::Serial(serial.as_bytes());
        let workspace = if in_memory { Store::Memory(room) } else { Store::Disk(disk) };
        let port = number.map_or(Port::Name(port.as_bytes()), Port::Vsock);
        let mounts = sample().mounts;
        let options = Options { root: disk, workspace, mounts, tmp: room, shm: room, user: (uid, gid), port, memory, tasks, cpu: None };
        let line = options.to_string();
        prop_assert_eq!(Options::parse(line.as_bytes()), Ok(options));
    }

    #[test]
    fn anything_is_understood_or_refused(line in "(cofferdam\\.(root|user|tmp|port|x)=?[a-z0-9:.]{0,12} ?){0,8}") {
        let _ = Options::parse(line.as_bytes());
    }
}
