//! VMs without a sandbox around them: boot, connection of the agent, and end with its reason.

use std::time::Instant;

use cofferdam_contract::{Access, ByteSize, ExecRequest, Limits, collect};
use cofferdam_guest::{Evidence, Guest, Settings};
use cofferdam_image::Image;
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::vmm::{Contents, Disk, Started, Vm, VmDescription, Vmm};

use crate::support::{self, NO_HANG};

const PORT: &str = "dev.cofferdam.agent";
pub(crate) const OPTIONS: &str = "cofferdam.root=serial:root cofferdam.workspace=16777216:4096 cofferdam.tmp=16777216:4096 \
                     cofferdam.shm=1048576:256 cofferdam.user=4711:4712 cofferdam.port=dev.cofferdam.agent \
                     cofferdam.memory=134217728 cofferdam.tasks=65 cofferdam.cpu=50000";

pub(crate) fn description(image: &Image, options: &str) -> VmDescription {
    VmDescription {
        kernel: image.kernel.clone(),
        initramfs: image.initramfs.clone(),
        command_line: options.to_owned(),
        memory: ByteSize::from_mebibytes(256),
        processors: 1,
        disks: vec![Disk { name: "root", contents: Contents::Shared(image.root.clone()), access: Access::ReadOnly }],
        port: PORT,
    }
}

pub(crate) async fn start(image: &Image, options: &str) -> Started {
    Qemu::new(QemuConfig::default()).unwrap().start(description(image, options)).await.expect("a VM")
}

async fn greeted(image: &Image) -> (Box<dyn Vm>, Guest, Evidence) {
    let Started { vm, reader, writer } = start(image, OPTIONS).await;
    let settings = Settings { answer_timeout: NO_HANG, ..Settings::default() };
    match Guest::connect(reader, writer, settings, Instant::now() + NO_HANG).await {
        Ok((guest, evidence)) => (vm, guest, evidence),
        Err(error) => panic!("{error}; {:?}; {}", vm.is_ended(), vm.console()),
    }
}

pub(crate) async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NO_HANG, work).await.expect("no hang")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_boots_runs_a_command_and_leaves_nothing() {
    let Some(image) = support::image("vm_boots_runs_a_command_and_leaves_nothing") else { return };
    let before = support::census();
    let begun = Instant::now();
    let (vm, guest, evidence) = greeted(&image).await;
    println!("greeted and measured after {:?}", begun.elapsed());
    assert_eq!(evidence.kernel, image.release);
    assert_eq!((evidence.uids.clone(), evidence.gids.clone()), (vec![4711; 4], vec![4712; 4]));
    assert_eq!(evidence.groups, Some(vec![]));
    assert_eq!(evidence.capabilities, [Some(0); 5]);
    assert!(
        evidence.landlock && evidence.exec_tags && evidence.no_new_privileges && evidence.seccomp_filtered,
        "{evidence:?}"
    );
    assert_eq!(
        (evidence.bounds.version, evidence.bounds.memory, evidence.bounds.tasks),
        (2, Some(134_217_728), Some(65))
    );
    assert_eq!((evidence.bounds.swap, evidence.bounds.cpu_millis), (Some(0), Some(500)));
    assert!(evidence.writes.iter().all(|trial| !trial.worked), "{:?}", evidence.writes);
    assert!(evidence.mount_of("/").is_some_and(|mount| mount.read_only), "{:?}", evidence.mounts);
    assert_eq!(evidence.interfaces, Some(vec![]));
    let request = ExecRequest::shell("echo $(id -u):$(id -g) $(uname -r); echo x > /workspace/file; cat /workspace/file; date +%s; cat /sys/devices/system/clocksource/clocksource0/current_clocksource").build().unwrap();
    let begun = Instant::now();
    let handle = promptly(guest.start(&request, &Limits::default())).await.unwrap();
    let done = promptly(collect(handle)).await.unwrap();
    println!("a command after {:?}: {done:?}", begun.elapsed());
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(printed.starts_with(&format!("4711:4712 {}\nx\n", image.release)), "{printed}");
    promptly(guest.close()).await;
    let ended = promptly(vm.ended()).await;
    assert!(ended.by_itself, "{ended:?}");
    drop(vm);
    assert_eq!(support::left(&before).await, Default::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_unknown_to_the_init_are_reported_on_the_console() {
    let Some(image) = support::image("options_unknown_to_the_init_are_reported_on_the_console") else { return };
    let before = support::census();
    for (options, says) in [
        (format!("{OPTIONS} cofferdam.nonsense=1"), "parse the command line at cofferdam.nonsense=1"),
        (OPTIONS.replace("serial:root", "vdb"), "find the disk vdb: error 2"),
        // Without a power switch, as with Firecracker, the kernel would hang. The init's message is lost with the
        // console, which is found through the same ACPI tables here.
        (format!("{OPTIONS} cofferdam.nonsense=2 acpi=off"), "reboot: Restarting system"),
    ] {
        let Started { vm, .. } = start(&image, &options).await;
        let ended = promptly(vm.ended()).await;
        assert!(ended.by_itself, "{ended:?}");
        assert!(vm.console().contains(says), "{options}: {}", vm.console());
    }
    assert_eq!(support::left(&before).await, Default::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_is_paused_resumed_and_killed() {
    let Some(image) = support::image("vm_is_paused_resumed_and_killed") else { return };
    let before = support::census();
    let (vm, guest, _) = greeted(&image).await;
    promptly(vm.pause()).await.unwrap();
    promptly(vm.pause()).await.unwrap();
    guest.set_paused(true);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    promptly(vm.resume()).await.unwrap();
    guest.set_paused(false);
    let request = ExecRequest::argv(["true"]).build().unwrap();
    let handle = promptly(guest.start(&request, &Limits::default())).await.unwrap();
    let done = promptly(collect(handle)).await.unwrap();
    assert!(done.exit.success());
    vm.pause().await.unwrap();
    promptly(vm.kill()).await.unwrap();
    promptly(vm.kill()).await.unwrap();
    assert!(!promptly(vm.ended()).await.by_itself);
    assert!(vm.pause().await.is_err());
    drop((vm, guest));
    assert_eq!(support::left(&before).await, Default::default());
}
