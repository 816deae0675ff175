//! What QEMU is started with: pure. No path is among it but those of descriptors.

use std::ffi::OsString;
use std::os::fd::RawFd;

use cofferdam_contract::Access;
use serde_json::json;

use super::QemuConfig;
use crate::bounds::TRANSLATED;
use crate::vmm::{Accelerator, Machine};

const MEBIBYTE: u64 = 1 << 20;

/// What the monitor is handed.
#[derive(Debug, Clone)]
pub(crate) struct Descriptors {
    pub kernel: RawFd,
    pub initramfs: RawFd,
    /// In the order of the machine's disks.
    pub disks: Vec<RawFd>,
    pub agent: RawFd,
    pub qmp: RawFd,
    pub console: RawFd,
}

/// Words for the kernel: a console, and the end of the machine when its first process ends. A translated machine's clocks
/// depend on how much the host lets it run, so its kernel is told what it would measure wrongly, or wait for in vain.
pub(crate) fn kernel_words(accelerator: Accelerator, ticks_per_millisecond: Option<u64>) -> String {
    // What the machine has not is not looked for, and what others tested is not tested again: a sixth of the time.
    let mut words =
        "console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on pci=off 8250.nr_uarts=1 cryptomgr.notests \
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
    kernel_words: &str,
    machine: &Machine,
    descriptors: &Descriptors,
) -> Vec<OsString> {
    let Descriptors { kernel, initramfs, disks, agent, qmp, console } = descriptors;
    let mut all: Vec<String> = SWITCHES.map(str::to_owned).into();
    let mut tell = |key: &str, value: String| all.extend([format!("-{key}"), value]);
    // Nothing but what is named here, and a process that can start none, gain no right and change no scheduling.
    all_off(&mut tell);
    tell("M", "microvm,acpi=on,rtc=on,pit=on,pic=on,isa-serial=on,pcie=off,usb=off,x-option-roms=off".to_owned());
    tell(
        "accel",
        match config.accelerator {
            // Without a bound it may become a gigabyte.
            Accelerator::Tcg => format!("tcg,tb-size={},thread=multi", TRANSLATED / MEBIBYTE),
            Accelerator::Kvm => "kvm".to_owned(),
        },
    );
    tell("cpu", config.processor.clone());
    tell("smp", machine.processors.to_string());
    tell("m", format!("{}M", machine.memory.as_bytes().div_ceil(MEBIBYTE)));
    tell("kernel", format!("/proc/self/fd/{kernel}"));
    tell("initrd", format!("/proc/self/fd/{initramfs}"));
    tell("append", format!("{kernel_words} {}", machine.command_line));
    tell("chardev", format!("socket,id=qmp,fd={qmp}"));
    tell("mon", "chardev=qmp,mode=control".to_owned());
    tell("chardev", format!("socket,id=console,fd={console}"));
    tell("serial", "chardev:console".to_owned());
    tell("object", "rng-random,id=random,filename=/dev/urandom".to_owned());
    tell("device", "virtio-rng-device,rng=random".to_owned());
    tell("device", "virtio-serial-device,max_ports=2".to_owned());
    tell("chardev", format!("socket,id=agent,fd={agent}"));
    tell("device", format!("virtserialport,chardev=agent,name={}", machine.port));
    for (at, (disk, fd)) in machine.disks.iter().zip(disks).enumerate() {
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
    all.into_iter().map(OsString::from).collect()
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

    fn sample() -> Vec<String> {
        let disk = |name, access| Disk { name, contents: Contents::Shared("/secret/path".into()), access };
        let machine = Machine {
            kernel: "/secret/kernel".into(),
            initramfs: "/secret/initramfs".into(),
            command_line: "cofferdam.user=1:1".to_owned(),
            memory: ByteSize::from_bytes((100 << 20) + 1),
            processors: 2,
            disks: vec![disk("root", Access::ReadOnly), disk("work", Access::ReadWrite)],
            port: "dev.x",
        };
        let fds = Descriptors { kernel: 3, initramfs: 4, disks: vec![5, 6], agent: 7, qmp: 8, console: 9 };
        let all = arguments(&QemuConfig::default(), "quiet", &machine, &fds);
        all.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    fn after<'a>(all: &'a [String], key: &str) -> Vec<&'a str> {
        all.windows(2).filter(|pair| pair[0] == key).map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn no_path_of_the_host_and_no_network_is_among_it() {
        let all = sample();
        assert!(all.iter().all(|argument| !argument.contains("/secret")), "{all:?}");
        for word in ["netdev", "nic", "virtfs", "vnc", "vhost", "spice", "tcp", "path="] {
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
    fn kernels_are_told_what_they_would_measure_wrongly() {
        let words = kernel_words(Accelerator::Tcg, Some(2_000_000));
        assert!(words.contains("tsc_early_khz=2000000") && words.contains("no_timer_check"), "{words}");
        assert!(!kernel_words(Accelerator::Kvm, Some(1)).contains("tsc"));
        assert!(!kernel_words(Accelerator::Tcg, None).contains("tsc"));
    }
}
