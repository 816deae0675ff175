//! VM states without a sandbox: restored repeatedly, and refused with a reason if invalid.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use cofferdam_contract::ByteSize;
use cofferdam_guest::{Guest, PROTOCOL, Settings};
use cofferdam_image::Image;
use cofferdam_vm::qemu::{Qemu, QemuConfig};
use cofferdam_vm::sparse;
use cofferdam_vm::vmm::{Hardware, Started, VmDescription, VmState, Vmm};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::boot::{OPTIONS, description, promptly};
use crate::support::{self, NO_HANG};

const MAX_STATE: ByteSize = ByteSize::from_mebibytes(1024);
/// A frame that the agent answers, and the answer: length, kind, id.
const PING: [u8; 13] = [9, 0, 0, 0, 21, 0, 0, 0, 0, 0, 0, 0, 0];
const PONG: [u8; 13] = [9, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0, 0];

fn hardware(image: &Image) -> Hardware {
    description(image, OPTIONS).into_parts().0
}

fn qemu() -> Qemu {
    Qemu::new(QemuConfig::default()).unwrap()
}

/// Returns true if the agent of a VM without a host answers.
async fn answers(started: &mut Started) -> bool {
    started.writer.write_all(&PING).await.unwrap();
    let mut answer = [0; PONG.len()];
    promptly(started.reader.read_exact(&mut answer)).await.is_ok() && answer == PONG
}

/// Returns a VM whose agent has connected, and is not used further.
async fn booted(image: &Image) -> Started {
    let mut started = qemu().start(description(image, OPTIONS)).await.expect("a machine");
    let hello = [&[17, 0, 0, 0, 1, 1][..], &[0; 7], b"DGFC", &PROTOCOL.to_le_bytes()].concat();
    started.writer.write_all(&hello).await.unwrap();
    let mut greeting = [0; 25];
    promptly(started.reader.read_exact(&mut greeting)).await.expect("a greeting");
    assert!(answers(&mut started).await);
    started
}

/// Promise (Virtual machines): A snapshot of a restored VM is as complete as the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_a_state_is_as_good_as_the_first() {
    let Some(image) = support::image("a_state_of_a_state_is_as_good_as_the_first") else { return };
    let before = support::census();
    let mut started = booted(&image).await;
    let mut states: Vec<VmState> = Vec::new();
    for generation in 0..4 {
        assert!(started.vm.snapshot(MAX_STATE).await.is_err(), "a running VM was saved");
        started.vm.pause().await.unwrap();
        let refused = started.vm.snapshot(ByteSize::from_mebibytes(1)).await.unwrap_err().to_string();
        assert!(refused.contains("exceeds the memory"), "{refused}");
        let begun = Instant::now();
        let state = promptly(started.vm.snapshot(MAX_STATE)).await.unwrap();
        let (memory, devices) = (state.memory(), state.devices());
        let took = [sparse::allocated(memory).unwrap(), devices.metadata().unwrap().len()];
        println!("generation {generation}: {took:?} bytes in {:?}", begun.elapsed());
        assert!(took[0] > 1 << 20 && took[0] < memory.metadata().unwrap().len() && took[1] > 1000, "{took:?}");
        assert!(memory.write_at(b"x", 0).is_err() && devices.set_len(0).is_err());
        // The source can be resumed, and saved again.
        started.vm.resume().await.unwrap();
        assert!(answers(&mut started).await);
        started.vm.pause().await.unwrap();
        promptly(started.vm.snapshot(MAX_STATE)).await.unwrap();
        started.vm.kill().await.unwrap();
        assert!(started.vm.snapshot(MAX_STATE).await.is_err());
        let begun = Instant::now();
        started = promptly(qemu().restore(hardware(&image), &state)).await.unwrap();
        started.vm.resume().await.unwrap();
        assert!(answers(&mut started).await);
        println!("generation {generation}: went on after {:?}", begun.elapsed());
        states.push(state);
    }
    // The first state is unchanged.
    let mut again = promptly(qemu().restore(hardware(&image), &states[0])).await.unwrap();
    again.vm.resume().await.unwrap();
    assert!(answers(&mut again).await);
    drop((started, again, states));
    assert_eq!(support::left(&before).await, Default::default());
}

/// Promise (Virtual machines): A snapshot of another VM configuration is refused with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_of_another_vm_is_refused_with_a_reason() {
    let Some(image) = support::image("state_of_another_vm_is_refused_with_a_reason") else { return };
    let before = support::census();
    let started = booted(&image).await;
    started.vm.pause().await.unwrap();
    let state = promptly(started.vm.snapshot(MAX_STATE)).await.unwrap();
    let length = state.devices().metadata().unwrap().len() as usize;
    let mut bytes = vec![0; length];
    state.devices().read_exact_at(&mut bytes, 0).unwrap();
    let memory = |length| sparse::blank(length).unwrap();
    let of = |memory, bytes: &[u8]| {
        let devices = sparse::blank(0).unwrap();
        devices.write_all_at(bytes, 0).unwrap();
        VmState::new(memory, devices).unwrap()
    };
    let size = state.memory().metadata().unwrap().len();
    let mut odd = bytes.clone();
    odd[4..64].fill(0xff);
    let cases = [
        ("shorter memory", of(memory(size / 2), &bytes)),
        ("no devices", of(memory(size), b"")),
        ("rubbish", of(memory(size), &[b'x'; 5000])),
        ("cut short", of(memory(size), &bytes[..length / 2])),
        ("changed", of(memory(size), &odd)),
    ];
    for (what, state) in cases {
        let refused = promptly(qemu().restore(hardware(&image), &state)).await.map(drop);
        let error = refused.expect_err(what).to_string();
        println!("{what}: {error}");
    }
    // One disk less than the state has.
    let refused = promptly(qemu().restore(Hardware { disks: Vec::new(), ..hardware(&image) }, &state)).await;
    println!("a disk less: {}", refused.map(drop).expect_err("a disk less"));
    drop((started, state));
    assert_eq!(support::left(&before).await, Default::default());
}

/// Promise (Virtual machines): A VMM that dies or hangs during a snapshot causes an error, not a hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vmm_that_dies_or_hangs_causes_no_hang() {
    let Some(image) = support::image("vmm_that_dies_or_hangs_causes_no_hang") else { return };
    let before = support::census();
    for signal in [Signal::KILL, Signal::STOP] {
        let timeout = std::time::Duration::from_secs(5);
        let qemu = Qemu::new(QemuConfig { timeout, ..QemuConfig::default() }).unwrap();
        let memory = ByteSize::from_mebibytes(131);
        let started = qemu.start(VmDescription { memory, ..description(&image, OPTIONS) }).await.expect("a machine");
        let settings = Settings { answer_timeout: NO_HANG, ..Settings::default() };
        let Started { vm, reader, writer } = started;
        let (guest, _) = Guest::connect(reader, writer, settings, Instant::now() + NO_HANG).await.unwrap();
        let pid = Pid::from_raw(support::vmm_with("131M").cast_signed()).unwrap();
        guest.set_paused(true);
        vm.pause().await.unwrap();
        let (taken, ()) = tokio::join!(promptly(vm.snapshot(MAX_STATE)), async {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            kill_process(pid, signal).unwrap();
        });
        // It may have been done before.
        println!("{signal:?}: {:?}", taken.map(drop).map_err(|error| error.to_string()));
        let next = promptly(vm.snapshot(MAX_STATE)).await.map(drop).expect_err("it is dead or hangs");
        println!("{signal:?}: {next}");
        promptly(vm.kill()).await.unwrap();
        promptly(guest.close()).await;
    }
    assert_eq!(support::left(&before).await, Default::default());
}
