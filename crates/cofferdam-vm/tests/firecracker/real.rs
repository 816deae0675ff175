//! Firecracker itself, where `FIRECRACKER_BIN` names it.

use cofferdam_contract::{ByteSize, ErrorKind};
use cofferdam_vm::firecracker::{
    Action, Balloon, BootSource, CacheType, Drive, DriveId, Entropy, InstanceId, InstanceState, Launch, LogLevel,
    Logger, MachineConfig, Metrics, Request, Serial, SnapshotLoad, VmState, Vsock,
};

fn launch(test: &str) -> Option<Launch> {
    let program = std::env::var_os("FIRECRACKER_BIN");
    if program.is_none() {
        println!("SKIP {test}: no Firecracker here (FIRECRACKER_BIN names none)");
    }
    program.map(Launch::new)
}

/// Everything that can be set before a start is taken, and read back; what comes too early or too late is refused.
#[tokio::test]
async fn the_real_program_takes_each_setting() {
    let Some(launch) = launch("the_real_program_takes_each_setting") else { return };
    launch.version().await.expect("a supported version");
    let place = tempfile::tempdir().unwrap();
    let machine = launch.start(place.path(), &InstanceId::new("vm-1").unwrap()).await.unwrap();
    let client = machine.client();
    assert_eq!(client.describe("test").await.unwrap().state, InstanceState::NotStarted);
    let file = |name: &str| {
        let path = machine.directory().join(name);
        std::fs::write(&path, vec![0; 4096]).unwrap();
        path
    };
    let config = MachineConfig::new(1, ByteSize::from_mebibytes(64)).unwrap().tracking_dirty_pages();
    let id = |name| DriveId::new(name).unwrap();
    let kernel_image_path = file("kernel");
    let settings = [
        Request::Logger(Logger {
            log_path: file("log"),
            level: LogLevel::Info,
            show_level: true,
            show_log_origin: false,
        }),
        Request::Metrics(Metrics { metrics_path: file("figures") }),
        Request::Machine(config.clone()),
        Request::BootSource(BootSource { kernel_image_path, initrd_path: None, boot_args: Some("ro".to_owned()) }),
        Request::Drive(Drive::read_only(id("root_1"), file("root")).as_root()),
        Request::Drive(Drive::writable(id("data"), file("data"), CacheType::Writeback)),
        Request::Vsock(Vsock::new(3, machine.directory().join("v.sock")).unwrap()),
        Request::Balloon(Balloon { amount_mib: 0, deflate_on_oom: true, stats_polling_interval_s: 1 }),
        Request::Entropy(Entropy::default()),
        Request::Serial(Serial { serial_out_path: file("console") }),
    ];
    for setting in &settings {
        client.send("test", setting).await.unwrap_or_else(|error| panic!("{setting:?}: {error}"));
    }
    let set = client.machine("test").await.unwrap();
    assert_eq!((set.vcpus(), set.memory(), set.smt()), (config.vcpus(), config.memory(), false));
    let early = client.send("test", &Request::Change(VmState::Paused)).await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Conflict, "{early}");
    // 4 KiB of nothing are no kernel.
    let no_kernel = client.send("test", &Request::Act(Action::InstanceStart)).await.unwrap_err();
    assert_ne!(no_kernel.kind(), ErrorKind::Internal, "{no_kernel}");
    machine.end().await.unwrap();
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

/// The body of a load is understood to the last property: it is refused for what its files are, not for its form.
#[tokio::test]
async fn the_real_program_understands_a_load() {
    let Some(launch) = launch("the_real_program_understands_a_load") else { return };
    let place = tempfile::tempdir().unwrap();
    let machine = launch.start(place.path(), &InstanceId::new("vm-1").unwrap()).await.unwrap();
    let load = SnapshotLoad::new("/nowhere/state", "/nowhere/memory")
        .tracking_dirty_pages()
        .with_vsock(machine.directory().join("v.sock"))
        .with_clock_of_now();
    let error = machine.client().send("test", &Request::LoadSnapshot(load)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    machine.end().await.unwrap();
}
