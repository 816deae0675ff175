//! Firecracker itself, if `FIRECRACKER_BIN` names it.

use std::os::unix::fs::PermissionsExt;

use cofferdam_contract::{Access, ByteSize, ErrorKind};
use cofferdam_guest::{Guest, Renewal, Settings};
use cofferdam_vm::firecracker::{
    BootSource, Drive, DriveId, FirecrackerConfig, FirecrackerVmm, InstanceId, InstanceState, Jailer, Launch,
    MachineConfig, Request, SnapshotLoad, VmState, Vsock,
};
use cofferdam_vm::vmm::{Contents, Disk, Hardware, Machine, Vmm};

fn launch(test: &str) -> Option<Launch> {
    let program = std::env::var_os("FIRECRACKER_BIN");
    if program.is_none() {
        println!("SKIP {test}: no Firecracker here (FIRECRACKER_BIN names none)");
    }
    program.map(Launch::new)
}

/// Everything that can be set before the start is accepted; requests in the wrong state are refused.
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
    let id = |name| DriveId::new(name).unwrap();
    let (kernel_image_path, initrd_path) = (file("kernel"), file("initrd"));
    let settings = [
        Request::Machine(MachineConfig::new(1, ByteSize::from_mebibytes(64)).unwrap()),
        Request::BootSource(BootSource { kernel_image_path, initrd_path, boot_args: "ro".to_owned() }),
        Request::Drive(Drive::read_only(id("root_1"), file("root"))),
        Request::Drive(Drive::writable(id("data"), file("data"))),
        Request::Vsock(Vsock::new(machine.directory().join("v.sock"))),
        Request::Entropy,
    ];
    for setting in &settings {
        client.send("test", setting).await.unwrap_or_else(|error| panic!("{setting:?}: {error}"));
    }
    let early = client.send("test", &Request::Change(VmState::Paused)).await.unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Conflict, "{early}");
    // 4 KiB of zeros are not a kernel.
    let no_kernel = client.send("test", &Request::Start).await.unwrap_err();
    assert_ne!(no_kernel.kind(), ErrorKind::Internal, "{no_kernel}");
    machine.end().await.unwrap();
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

/// All properties of a load are accepted: it fails because of its files, not because of its form.
#[tokio::test]
async fn the_real_program_understands_a_load() {
    let Some(launch) = launch("the_real_program_understands_a_load") else { return };
    let place = tempfile::tempdir().unwrap();
    let machine = launch.start(place.path(), &InstanceId::new("vm-1").unwrap()).await.unwrap();
    let load = SnapshotLoad::new("/nowhere/state", "/nowhere/memory", machine.directory().join("v.sock"));
    let error = machine.client().send("test", &Request::LoadSnapshot(load)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    machine.end().await.unwrap();
}

/// Returns the jailer of that Firecracker: `JAILER_BIN`, or the program beside it.
fn jailer(launch: &Launch) -> Option<Jailer> {
    let beside = launch.program.with_file_name("jailer");
    match std::env::var_os("JAILER_BIN") {
        Some(named) => Some(Jailer::At(named.into())),
        None => beside.exists().then_some(Jailer::At(beside)),
    }
}

/// Does the same with its own jailer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_jailer_starts_the_real_program_for_the_driver() {
    let test = "the_real_jailer_starts_the_real_program_for_the_driver";
    let Some(launch) = launch(test) else { return };
    let Some(jailer) = jailer(&launch) else {
        println!("SKIP {test}: no jailer here (JAILER_BIN names none, and there is none beside Firecracker)");
        return;
    };
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root can jail");
        return;
    }
    makes_a_machine(test, launch, jailer).await;
}

/// Starts a VM with the driver: with the image of the tests if the processor runs ordinary guests, else with an invalid
/// kernel, which the real program must refuse without leaving anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_program_makes_a_machine_by_the_driver() {
    let test = "the_real_program_makes_a_machine_by_the_driver";
    let Some(launch) = launch(test) else { return };
    makes_a_machine(test, launch, Jailer::Off).await;
}

async fn makes_a_machine(test: &str, launch: Launch, jailer: Jailer) {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let monitors = place.path().join("monitors");
    let config = FirecrackerConfig { program: Some(launch.program), jailer, ..FirecrackerConfig::new(&monitors) };
    let driver = FirecrackerVmm::new(config);
    if let Err(error) = driver.version().await {
        println!("SKIP {test}: {error}");
        return;
    }
    let empty = || std::fs::read_dir(&monitors).unwrap().count() == 0;
    let file = |name: &str, contents: &[u8]| {
        let path = place.path().join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        path
    };
    let disk = |path| Disk { name: "root", contents: Contents::Shared(path), access: Access::ReadOnly };
    let sample = Machine {
        kernel: file("kernel", b"\x7fELF, and nothing behind it"),
        initramfs: file("initramfs", b"x"),
        command_line: String::new(),
        memory: ByteSize::from_mebibytes(256),
        processors: 1,
        disks: vec![disk(file("root", &[0; 4096]))],
        port: "dev.x",
    };
    let error = driver.start(sample).await.unwrap_err().into_contract("create");
    assert!(error.message().contains("cannot start the VM"), "{error}");
    assert!(empty(), "something is left");
    let verdict = cofferdam_vm::kvm::Probe { cache: None, ..cofferdam_vm::kvm::Probe::default() }.verdict();
    if !verdict.is_usable() {
        println!("SKIP the rest of {test}: {verdict}");
        return;
    }
    let Some(image) = crate::guest::image(test) else { return };
    let machine = Machine {
        kernel: image.kernel,
        initramfs: image.initramfs,
        command_line: crate::guest::OPTIONS.to_owned(),
        memory: ByteSize::from_mebibytes(256),
        processors: 1,
        disks: vec![disk(image.root)],
        port: "dev.x",
    };
    let (_, again) = (machine.processors, machine.memory);
    let started = driver.start(machine).await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let (guest, _) = Guest::connect(started.reader, started.writer, Settings::default(), deadline).await.unwrap();
    assert_eq!(crate::guest::said(&guest, "echo hello").await, "hello");
    let record = guest.hold().await.unwrap().into_record();
    started.vm.pause().await.unwrap();
    let state = started.vm.snapshot(again).await.unwrap();
    started.vm.resume().await.unwrap();
    guest.release().await.unwrap();
    assert_eq!(crate::guest::said(&guest, "echo again").await, "again");
    started.vm.kill().await.unwrap();
    let disks = vec![disk(crate::guest::image(test).unwrap().root)];
    let hardware = Hardware { memory: again, processors: 1, disks, port: "dev.x" };
    let restored = driver.restore(hardware, &state).await.unwrap();
    restored.vm.resume().await.unwrap();
    let renewal = Renewal::new("another").unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let adopting =
        Guest::adopt(restored.reader, restored.writer, Settings::default(), (record, None), renewal, deadline);
    let (adopted, _) = adopting.await.unwrap();
    assert_eq!(crate::guest::said(&adopted, "echo restored").await, "restored");
    restored.vm.kill().await.unwrap();
    assert!(empty(), "something is left");
}
