//! What QEMU is started with: pure. No path is among it but those of descriptors.

use std::ffi::OsString;
use std::os::fd::RawFd;

use cofferdam_contract::Access;
use serde_json::json;

use super::QemuConfig;
use crate::bounds::CODE_CACHE;
use crate::vmm::{Accelerator, Boot, Hardware};

const MEBIBYTE: u64 = 1 << 20;

/// The kind of machine.
pub(crate) const MACHINE: &str = "microvm";
/// Which devices the machine has that others of its kind have not, and the other way round: a state fits no other machine. With
/// one chip for interrupts it has eight places for devices instead of twenty-four, each of which takes 30 KiB, and has its
/// kernel look into it.
pub(crate) const LAYOUT: &str = "ioapic2=off";
/// What of the machine's kind differs from its default. The last two are about states: its memory is ours to give, and no
/// description for people follows them.
const MACHINE_OPTIONS: &str = "acpi=on,rtc=on,pit=on,pic=on,isa-serial=on,pcie=off,usb=off,x-option-roms=off,\
                               memory-backend=memory,suppress-vmdesc=on";

/// How the machine begins.
#[derive(Debug)]
pub(crate) enum Beginning<'a> {
    /// With its kernel: what it is, the monitor's own words for it, and descriptors of kernel and initramfs.
    Boot { boot: &'a Boot, words: &'a str, kernel: RawFd, initramfs: RawFd },
    /// It waits for its state.
    State,
}

/// What the monitor is handed.
#[derive(Debug, Clone)]
pub(crate) struct Descriptors {
    pub memory: RawFd,
    /// In the order of the machine's disks.
    pub disks: Vec<RawFd>,
    pub agent: RawFd,
    pub qmp: RawFd,
    pub console: RawFd,
}

/// OutputTail for the kernel: a console, and the end of the machine when its first process ends. A translated machine's clocks
/// depend on how much the host lets it run, so its kernel is told what it would measure wrongly, or wait for in vain.
pub(crate) fn kernel_words(accelerator: Accelerator, ticks_per_millisecond: Option<u64>) -> String {
    // What the machine has not is not looked for, and what others tested is not tested again: a sixth of the time. Nor does
    // an idle kernel wake up to see whether it hangs: its machine's owner keeps its time.
    let mut words =
        "console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on pci=off 8250.nr_uarts=1 cryptomgr.notests \
                     lsm=landlock,yama psi=0 audit=0 nowatchdog deferred_probe_timeout=0 \
                     rcupdate.rcu_expedited=1"
            .to_owned();
    if accelerator == Accelerator::Tcg {
        // A translator looks at each access before it makes it: what page tables of one's own are for cannot happen.
        words.push_str(" no_timer_check pti=off");
        if let Some(ticks) = ticks_per_millisecond {
            words.push_str(&format!(" tsc_early_khz={ticks} tsc=reliable"));
        }
    }
    words
}

/// Everything that QEMU is told.
pub(crate) fn arguments(
    config: &QemuConfig,
    beginning: &Beginning<'_>,
    hardware: &Hardware,
    descriptors: &Descriptors,
) -> Vec<OsString> {
    let Descriptors { memory, disks, agent, qmp, console } = descriptors;
    let mut all: Vec<String> = SWITCHES.map(str::to_owned).into();
    let mut tell = |key: &str, value: String| all.extend([format!("-{key}"), value]);
    // Nothing but what is named here, and a process that can start none, gain no right and change no scheduling.
    all_off(&mut tell);
    tell("M", format!("{MACHINE},{LAYOUT},{MACHINE_OPTIONS}"));
    tell(
        "accel",
        match config.accelerator {
            // Without a bound it may become a gigabyte.
            Accelerator::Tcg => format!("tcg,tb-size={},thread=multi", CODE_CACHE / MEBIBYTE),
            Accelerator::Kvm => "kvm".to_owned(),
        },
    );
    tell("cpu", config.processor.clone());
    tell("smp", hardware.processors.to_string());
    let mebibytes = memory_size(hardware) / MEBIBYTE;
    tell("m", format!("{mebibytes}M"));
    // Memory that begins empty is the file itself, and can be copied from there; what comes from a state is seen through
    // copies of the machine's own.
    let share = if matches!(beginning, Beginning::State) { "off" } else { "on" };
    let place = format!("mem-path=/proc/self/fd/{memory},share={share}");
    tell("object", format!("memory-backend-file,id=memory,size={mebibytes}M,{place}"));
    // States hold devices alone, and begin with them.
    tell("global", "migration.send-configuration=off".to_owned());
    match beginning {
        Beginning::Boot { boot, words, kernel, initramfs } => {
            tell("kernel", format!("/proc/self/fd/{kernel}"));
            tell("initrd", format!("/proc/self/fd/{initramfs}"));
            tell("append", format!("{words} {}", boot.command_line));
        }
        Beginning::State => tell("incoming", "defer".to_owned()),
    }
    tell("chardev", format!("socket,id=qmp,fd={qmp}"));
    tell("mon", "chardev=qmp,mode=control".to_owned());
    tell("chardev", format!("socket,id=console,fd={console}"));
    tell("serial", "chardev:console".to_owned());
    tell("object", "rng-random,id=random,filename=/dev/urandom".to_owned());
    tell("device", "virtio-rng-device,rng=random".to_owned());
    tell("device", "virtio-serial-device,max_ports=2".to_owned());
    tell("chardev", format!("socket,id=agent,fd={agent}"));
    tell("device", format!("virtserialport,chardev=agent,name={}", hardware.port));
    for (at, (disk, fd)) in hardware.disks.iter().zip(disks).enumerate() {
        let read_only = disk.access == Access::ReadOnly;
        tell("add-fd", format!("fd={fd},set={}", at + 1));
        let node = json!({
            "driver": "raw",
            "node-name": format!("disk{at}"),
            "read-only": read_only,
            "discard": "unmap",
            "file": {
                "driver": "file",
                "filename": format!("/dev/fdset/{}", at + 1),
                "read-only": read_only,
                "auto-read-only": false,
                "locking": "off",
                "discard": "unmap",
            },
        });
        tell("blockdev", node.to_string());
        tell("device", format!("virtio-blk-device,drive=disk{at},serial={},werror=report,rerror=report", disk.name));
    }
    if matches!(beginning, Beginning::State) {
        all.push("-S".to_owned());
    }
    all.into_iter().map(OsString::from).collect()
}

/// Bytes of memory that the machine has: whole mebibytes.
pub(crate) fn memory_size(hardware: &Hardware) -> u64 {
    hardware.memory.as_bytes().next_multiple_of(MEBIBYTE)
}

fn all_off(tell: &mut impl FnMut(&str, String)) {
    tell("sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny".to_owned());
    tell("display", "none".to_owned());
    tell("msg", "timestamp=off".to_owned());
    tell("name", "cofferdam".to_owned());
}

/// Options without a value.
pub(crate) const SWITCHES: [&str; 3] = ["-nodefaults", "-no-user-config", "-no-reboot"];

#[cfg(test)]
mod tests {
    use cofferdam_contract::ByteSize;

    use super::*;
    use crate::vmm::{Contents, Disk};

    fn sample_of(beginning: &Beginning<'_>) -> Vec<String> {
        let disk = |name, access| Disk { name, contents: Contents::Shared("/secret/path".into()), access };
        let hardware = Hardware {
            memory: ByteSize::from_bytes((100 << 20) + 1),
            processors: 2,
            disks: vec![disk("root", Access::ReadOnly), disk("work", Access::ReadWrite)],
            port: "dev.x",
        };
        let fds = Descriptors { memory: 10, disks: vec![5, 6], agent: 7, qmp: 8, console: 9 };
        let all = arguments(&QemuConfig::default(), beginning, &hardware, &fds);
        all.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    fn sample() -> Vec<String> {
        let boot = Boot {
            kernel: "/secret/kernel".into(),
            initramfs: "/secret/initramfs".into(),
            command_line: "cofferdam.user=1:1".to_owned(),
        };
        sample_of(&Beginning::Boot { boot: &boot, words: "quiet", kernel: 3, initramfs: 4 })
    }

    fn after<'a>(all: &'a [String], key: &str) -> Vec<&'a str> {
        all.windows(2).filter(|pair| pair[0] == key).map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn no_path_of_the_host_and_no_network_is_among_it() {
        let all = sample();
        assert!(all.iter().all(|argument| !argument.contains("/secret")), "{all:?}");
        for word in ["netdev", "nic", "virtfs", "vnc", "vhost", "spice", "tcp", "path=/secret"] {
            assert!(all.iter().all(|argument| !argument.contains(word)), "{word}: {all:?}");
        }
        let sandbox = after(&all, "-sandbox")[0];
        for wall in ["obsolete", "elevateprivileges", "spawn", "resourcecontrol"] {
            assert!(sandbox.contains(&format!("{wall}=deny")), "{sandbox}");
        }
        for switch in SWITCHES {
            assert!(all.iter().any(|argument| argument == switch), "{switch}: {all:?}");
        }
    }

    #[test]
    fn only_what_may_be_written_to_is_writable() {
        let all = sample();
        let nodes: Vec<serde_json::Value> =
            after(&all, "-blockdev").iter().map(|node| serde_json::from_str(node).unwrap()).collect();
        assert_eq!((&nodes[0]["read-only"], &nodes[1]["read-only"]), (&json!(true), &json!(false)));
        assert_eq!(after(&all, "-add-fd"), ["fd=5,set=1", "fd=6,set=2"]);
        assert_eq!(nodes[1]["file"]["filename"], "/dev/fdset/2");
        assert_eq!(after(&all, "-m"), ["101M"]);
    }

    #[test]
    fn a_machine_of_a_state_has_the_same_parts_and_memory_of_its_own() {
        let (booted, restored) = (sample(), sample_of(&Beginning::State));
        for key in ["-M", "-accel", "-cpu", "-smp", "-m", "-device", "-global", "-chardev", "-blockdev"] {
            assert_eq!(after(&booted, key), after(&restored, key));
        }
        let memory = |all: &[String]| after(all, "-object")[0].to_owned();
        assert!(memory(&booted).ends_with("size=101M,mem-path=/proc/self/fd/10,share=on"), "{booted:?}");
        assert!(memory(&restored).ends_with("size=101M,mem-path=/proc/self/fd/10,share=off"), "{restored:?}");
        assert!(after(&restored, "-kernel").is_empty() && restored.contains(&"-S".to_owned()), "{restored:?}");
        assert_eq!(after(&restored, "-incoming"), ["defer"]);
    }

    #[test]
    fn kernels_are_told_what_they_would_measure_wrongly() {
        let words = kernel_words(Accelerator::Tcg, Some(2_000_000));
        assert!(words.contains("tsc_early_khz=2000000") && words.contains("no_timer_check"), "{words}");
        assert!(!kernel_words(Accelerator::Kvm, Some(1)).contains("tsc"));
        assert!(!kernel_words(Accelerator::Tcg, None).contains("tsc"));
    }
}
