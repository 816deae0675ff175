//! A real kernel with the real init and agent, reached by a vsock as with Firecracker, but in a VM of QEMU whose vsock
//! is rust-vmm's `vhost-device-vsock`, which has the same protocol to the host as Firecracker.
//!
//! Firecracker itself with a Linux guest cannot run here. Everything inside the VM can: disks by the kernel's names,
//! the listening socket, a connection that is lost while the agent is quiesced, and its successor.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_contract::{ExecRequest, Limits, collect};
use cofferdam_guest::{Guest, Reseed, Settings, TAKEN};
use cofferdam_image::{Cache, Image, Images, Recipe, RootSource, Source};
use cofferdam_vm::firecracker::vsock;
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::vmm::Vmm;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// VMs are emulated, and other programs use the processors as well.
const NO_HANG: Duration = Duration::from_secs(240);
const TRY: Duration = Duration::from_secs(2);
/// The options of the init.
pub(crate) const OPTIONS: &str = "cofferdam.root=vda \
                     cofferdam.workspace=16777216:4096 cofferdam.tmp=16777216:4096 cofferdam.shm=1048576:256 \
                     cofferdam.user=4711:4712 cofferdam.port=vsock:1024 cofferdam.memory=134217728 cofferdam.tasks=65";

/// Processes that end with the test.
struct GuestVm {
    temp: TempDir,
    processes: Vec<Child>,
}

impl Drop for GuestVm {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl GuestVm {
    fn start(image: &Image, device: &Path) -> Self {
        let temp = tempfile::tempdir().expect("a directory");
        let path = |name: &str| temp.path().join(name).display().to_string();
        let mut device = Command::new(device);
        let shape = format!("guest-cid=3,socket={},uds-path={}", path("vhost.sock"), path("v.sock"));
        device.args(["--vm", &shape]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut vm = Self { processes: vec![device.spawn().expect("the device")], temp };
        let path = |name: &str| vm.temp.path().join(name).display().to_string();
        let begun = Instant::now();
        while !Path::new(&path("vhost.sock")).exists() {
            assert!(begun.elapsed() < NO_HANG, "the device opened no socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        let kernel_arguments = Qemu::new(QemuConfig::default()).expect("a driver").kernel_arguments();
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args("-nodefaults -no-user-config -no-reboot -display none -cpu Nehalem-v1 -m 256M -accel tcg".split(' '));
        qemu.args(["-M", "microvm,acpi=on,rtc=on,pit=on,pic=on,isa-serial=on,memory-backend=memory"]);
        qemu.args(["-object", "memory-backend-memfd,id=memory,size=256M,share=on"]);
        qemu.arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(["-append", &format!("{kernel_arguments} {OPTIONS}")]);
        qemu.args(["-serial", &format!("file:{}", path("console"))]);
        let root = image.root.display();
        qemu.args(["-drive", &format!("file={root},if=none,id=root,format=raw,read-only=on,file.locking=off")]);
        qemu.args(["-device", "virtio-blk-device,drive=root", "-device", "virtio-rng-device"]);
        qemu.args(["-chardev", &format!("socket,id=vsock,path={}", path("vhost.sock"))]);
        qemu.args(["-device", "vhost-user-vsock-device,chardev=vsock"]).stdin(Stdio::null()).stdout(Stdio::null());
        vm.processes.push(qemu.spawn().expect("QEMU"));
        vm
    }

    /// Returns a connection that the agent accepted.
    async fn connected(&self) -> UnixStream {
        let (begun, socket) = (Instant::now(), self.temp.path().join("v.sock"));
        loop {
            if let Ok(mut stream) = vsock::connect(&socket, 1024, TRY).await
                && let Ok(Ok(TAKEN)) = tokio::time::timeout(TRY, stream.read_u8()).await
            {
                return stream;
            }
            assert!(begun.elapsed() < NO_HANG, "{}", self.console());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn console(&self) -> String {
        std::fs::read_to_string(self.temp.path().join("console")).unwrap_or_default()
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// Returns the image of the tests, or prints the reason for skipping.
pub(crate) fn image(test: &str) -> Option<Image> {
    if variable("COFFERDAM_TEST_MACHINES").is_none() {
        println!("SKIP {test}: COFFERDAM_TEST_MACHINES=1 has an image made, and machines tested");
        return None;
    }
    let home = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let cache = variable("COFFERDAM_TEST_CACHE").unwrap_or_else(|| home().expect("a home").join("cofferdam"));
    let images = Images::new(cache.join("vm"), Cache::new(cache.join("debian")));
    let source = Source { root: RootSource::Debian(Recipe::tiny()), ..Source::default() };
    Some(images.find_or_make(&source, &mut |_| ()).expect("an image"))
}

/// Returns the image and the device, or prints the reason for skipping.
fn parts(test: &str) -> Option<(Image, PathBuf)> {
    let Some(device) = variable("VHOST_DEVICE_VSOCK_BIN") else {
        println!("SKIP {test}: VHOST_DEVICE_VSOCK_BIN names no device (cargo install vhost-device-vsock)");
        return None;
    };
    Some((image(test)?, device))
}

/// Forwards bytes between the host's streams and the latest connection.
async fn pump(mut streams: tokio::io::DuplexStream, mut connections: mpsc::Receiver<Option<UnixStream>>) {
    let mut connection: Option<UnixStream> = None;
    loop {
        let next = match &mut connection {
            None => connections.recv().await,
            Some(current) => tokio::select! {
                next = connections.recv() => next,
                _ = tokio::io::copy_bidirectional(&mut streams, current) => return,
            },
        };
        match next {
            Some(next) => connection = next,
            None => return,
        }
    }
}

pub(crate) async fn output_of(guest: &Guest, line: &str) -> String {
    let request = ExecRequest::shell(line).build().unwrap();
    let handle = guest.start(&request, &Limits::default()).await.unwrap();
    let collected = tokio::time::timeout(NO_HANG, collect(handle)).await.expect("no hang").unwrap();
    String::from_utf8_lossy(&collected.stdout).trim().to_owned()
}

/// Promise (Virtual machines): A guest agent is reached through vsock, and through a new connection after each quiesce,
/// where docs/vm.md names the device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_is_reached_by_vsock_again_after_each_quiesce() {
    let Some((image, device)) = parts("agent_is_reached_by_vsock_again_after_each_quiesce") else {
        return;
    };
    let vm = GuestVm::start(&image, &device);
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (connections, receiver) = mpsc::channel(1);
    tokio::spawn(pump(theirs, receiver));
    // A host that disconnected does not end the VM: the agent waits for another one.
    drop(vm.connected().await);
    connections.send(Some(vm.connected().await)).await.unwrap();
    let (reader, writer) = tokio::io::split(ours);
    let settings = || Settings { answer_timeout: NO_HANG, ..Settings::default() };
    let connecting = Guest::connect(reader, writer, settings(), Instant::now() + NO_HANG).await;
    let (guest, evidence) = connecting.unwrap_or_else(|error| panic!("{error}; {}", vm.console()));
    assert_eq!(evidence.uids, vec![4711; 4]);
    assert!(evidence.seccomp_filtered && evidence.no_new_privileges, "{evidence:?}");
    assert_eq!(output_of(&guest, "echo $(id -u); cat /proc/1/comm").await, "4711\ncofferdam-agent");
    // Guests cannot reach the host through the vsock.
    let tried = "import socket; socket.socket(40, socket.SOCK_STREAM)";
    let refused = output_of(&guest, &format!("python3 -c '{tried}' 2>&1 | tail -n 1")).await;
    assert!(refused.contains("not supported") || refused.contains("not permitted"), "{refused}");
    output_of(&guest, "i=0; while :; do i=$((i+1)); echo $i > /workspace/count; sleep 0.05; done >/dev/null 2>&1 &")
        .await;
    for _ in 0..3 {
        let before: u64 = output_of(&guest, "cat /workspace/count").await.parse().unwrap();
        guest.quiesce().await.unwrap();
        connections.send(None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        connections.send(Some(vm.connected().await)).await.unwrap();
        guest.release().await.unwrap();
        output_of(&guest, "sleep 0.3").await;
        let after: u64 = output_of(&guest, "cat /workspace/count").await.parse().unwrap();
        assert!(after > before, "the guest was not resumed: {before} {after}");
    }
    // Another host reattaches to the quiesced VM, as after a restore.
    let record = guest.quiesce().await.unwrap().into_record();
    connections.send(None).await.unwrap();
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (other, receiver) = mpsc::channel(1);
    tokio::spawn(pump(theirs, receiver));
    other.send(Some(vm.connected().await)).await.unwrap();
    let (reader, writer) = tokio::io::split(ours);
    let reseed = Reseed::new("another-machine").unwrap();
    let reattaching = Guest::reattach(reader, writer, settings(), (record, None), reseed, Instant::now() + NO_HANG);
    let (reattached, _) = reattaching.await.unwrap();
    assert_eq!(output_of(&reattached, "hostname || cat /proc/sys/kernel/hostname").await, "another-machine");
    // The end of its host ends the VM, here by a restart.
    reattached.close().await;
    drop(other);
    let (mut vm, begun) = (vm, Instant::now());
    while vm.processes[1].try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < NO_HANG, "{}", vm.console());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
