//! Firecracker itself, if `FIRECRACKER_BIN` names it.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cofferdam_contract::{Access, ByteSize, ErrorKind};
use cofferdam_guest::{Guest, Reseed, Settings};
use cofferdam_vm::firecracker::{FirecrackerConfig, FirecrackerVmm, Jailer};
use cofferdam_vm::vmm::{Contents, Disk, Hardware, VmDescription, VmState, Vmm};

fn program(test: &str) -> Option<PathBuf> {
    let program = std::env::var_os("FIRECRACKER_BIN");
    if program.is_none() {
        println!("SKIP {test}: no Firecracker here (FIRECRACKER_BIN names none)");
    }
    program.map(PathBuf::from)
}

/// Returns the jailer of that Firecracker: `JAILER_BIN`, or the program beside it.
fn jailer(program: &Path) -> Option<Jailer> {
    let beside = program.with_file_name("jailer");
    match std::env::var_os("JAILER_BIN") {
        Some(named) => Some(Jailer::At(named.into())),
        None => beside.exists().then_some(Jailer::At(beside)),
    }
}

/// Does the same with its own jailer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_jailer_starts_the_real_program_for_the_driver() {
    let test = "the_real_jailer_starts_the_real_program_for_the_driver";
    let Some(program) = program(test) else { return };
    let Some(jailer) = jailer(&program) else {
        println!("SKIP {test}: no jailer here (JAILER_BIN names none, and there is none beside Firecracker)");
        return;
    };
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root can jail");
        return;
    }
    starts_a_vm(test, program, jailer).await;
}

/// Starts a VM with the driver: with the image of the tests if the processor runs ordinary guests, else with an invalid
/// kernel and an invalid state, which the real program must refuse without leaving anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_firecracker_starts_a_vm() {
    let test = "real_firecracker_starts_a_vm";
    let Some(program) = program(test) else { return };
    starts_a_vm(test, program, Jailer::Off).await;
}

async fn starts_a_vm(test: &str, program: PathBuf, jailer: Jailer) {
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let directory = temp.path().join("monitors");
    let config = FirecrackerConfig { program: Some(program), jailer, ..FirecrackerConfig::new(&directory) };
    let driver = FirecrackerVmm::new(config);
    if let Err(error) = driver.version().await {
        println!("SKIP {test}: {error}");
        return;
    }
    let empty = || std::fs::read_dir(&directory).unwrap().count() == 0;
    let file = |name: &str, contents: &[u8]| {
        let path = temp.path().join(name);
        std::fs::write(&path, contents).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        path
    };
    let disk = |path| Disk { name: "root", contents: Contents::Shared(path), access: Access::ReadOnly };
    let sample = || VmDescription {
        kernel: file("kernel", b"\x7fELF, and nothing behind it"),
        initramfs: file("initramfs", b"x"),
        command_line: String::new(),
        memory: ByteSize::from_mebibytes(256),
        processors: 1,
        disks: vec![disk(file("root", &[0; 4096]))],
        port: "dev.x",
    };
    let error = driver.start(sample()).await.unwrap_err().into_contract("create");
    assert!(error.message().contains("cannot start the VM"), "{error}");
    assert!(empty(), "something is left");
    // The load of a state that is none fails because of its files, not because of its form.
    let hardware = sample().into_parts().0;
    let (memory, devices) = (cofferdam_vm::sparse::blank(hardware.memory.as_bytes()), cofferdam_vm::sparse::blank(0));
    let devices = devices.unwrap();
    devices.write_all_at(b"no state", 0).unwrap();
    let state = VmState::new(memory.unwrap(), devices).unwrap();
    let error = driver.restore(hardware, &state).await.unwrap_err().into_contract("restore");
    assert!(error.message().contains("cannot restore the VM") && error.kind() != ErrorKind::Unsupported, "{error}");
    assert!(empty(), "something is left");
    let verdict = cofferdam_vm::kvm::Probe { cache: None, ..cofferdam_vm::kvm::Probe::default() }.verdict();
    if !verdict.is_usable() {
        println!("SKIP the rest of {test}: {verdict}");
        return;
    }
    let Some(image) = crate::guest::image(test) else { return };
    let description = VmDescription {
        kernel: image.kernel,
        initramfs: image.initramfs,
        command_line: crate::guest::OPTIONS.to_owned(),
        memory: ByteSize::from_mebibytes(256),
        processors: 1,
        disks: vec![disk(image.root)],
        port: "dev.x",
    };
    let (_, again) = (description.processors, description.memory);
    let started = driver.start(description).await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let (guest, _) = Guest::connect(started.reader, started.writer, Settings::default(), deadline).await.unwrap();
    assert_eq!(crate::guest::output_of(&guest, "echo hello").await, "hello");
    let record = guest.quiesce().await.unwrap().into_record();
    started.vm.pause().await.unwrap();
    let state = started.vm.snapshot(again).await.unwrap();
    started.vm.resume().await.unwrap();
    guest.release().await.unwrap();
    assert_eq!(crate::guest::output_of(&guest, "echo again").await, "again");
    started.vm.kill().await.unwrap();
    let disks = vec![disk(crate::guest::image(test).unwrap().root)];
    let hardware = Hardware { memory: again, processors: 1, disks, port: "dev.x" };
    let restored = driver.restore(hardware, &state).await.unwrap();
    restored.vm.resume().await.unwrap();
    let reseed = Reseed::new("another").unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let reattaching =
        Guest::reattach(restored.reader, restored.writer, Settings::default(), (record, None), reseed, deadline);
    let (reattached, _) = reattaching.await.unwrap();
    assert_eq!(crate::guest::output_of(&reattached, "echo restored").await, "restored");
    restored.vm.kill().await.unwrap();
    assert!(empty(), "something is left");
}
