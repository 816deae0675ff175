//! QEMU's command line: pure. It contains no paths but those of descriptors.

use std::ffi::OsString;
use std::os::fd::RawFd;

use cofferdam_contract::Access;
use serde_json::json;

use super::QemuConfig;
use crate::bounds::CODE_CACHE;
use crate::vmm::{Accelerator, Boot, Hardware};

const MEBIBYTE: u64 = 1 << 20;

/// The VM type.
pub(crate) const MACHINE: &str = "microvm";
/// Device options in which the VM differs from others of its type: a state is compatible only with the same ones. With
/// one interrupt controller it has eight device slots instead of twenty-four, each of which takes 30 KiB, and is probed
/// by the kernel.
pub(crate) const LAYOUT: &str = "ioapic2=off";
/// Other options that differ from the defaults of the VM type. The last two concern states: the memory is provided by
/// the caller, and no human-readable description follows a state.
const MACHINE_OPTIONS: &str = "acpi=on,rtc=on,pit=on,pic=on,isa-serial=on,pcie=off,usb=off,x-option-roms=off,\
                               memory-backend=memory,suppress-vmdesc=on";

/// The way in which a VM starts.
#[derive(Debug)]
pub(crate) enum StartMode<'a> {
    /// With a kernel: boot files, the VMM's own kernel arguments, and descriptors of kernel and initramfs.
    Boot { boot: &'a Boot, kernel_arguments: &'a str, kernel: RawFd, initramfs: RawFd },
    /// Paused, until its state is loaded.
    State,
}

/// The descriptors that the VMM inherits.
#[derive(Debug, Clone)]
pub(crate) struct Descriptors {
    pub memory: RawFd,
    /// In the order of the VM's disks.
    pub disks: Vec<RawFd>,
    pub agent: RawFd,
    pub qmp: RawFd,
    pub console: RawFd,
}

/// Returns arguments for the kernel: a console, and the end of the VM when its first process ends. Clocks of an
/// emulated VM depend on the host's scheduling, so its kernel gets values that it would measure wrongly, or wait for in
/// vain.
pub(crate) fn kernel_arguments(accelerator: Accelerator, ticks_per_millisecond: Option<u64>) -> String {
    // Missing devices are not probed, and self-tests are skipped, which saves a sixth of the boot time. The watchdog is
    // off, so that an idle kernel does not wake up: the supervisor enforces time limits.
    let mut arguments =
        "console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on pci=off 8250.nr_uarts=1 cryptomgr.notests \
                     lsm=landlock,yama psi=0 audit=0 nowatchdog deferred_probe_timeout=0 \
                     rcupdate.rcu_expedited=1"
            .to_owned();
    if accelerator == Accelerator::Tcg {
        // TCG translates each access before it executes: the attacks that page-table isolation prevents cannot happen.
        arguments.push_str(" no_timer_check pti=off");
        if let Some(ticks) = ticks_per_millisecond {
            arguments.push_str(&format!(" tsc_early_khz={ticks} tsc=reliable"));
        }
    }
    arguments
}

/// Returns all arguments of QEMU.
pub(crate) fn arguments(
    config: &QemuConfig,
    mode: &StartMode<'_>,
    hardware: &Hardware,
    descriptors: &Descriptors,
) -> Vec<OsString> {
    let Descriptors { memory, disks, agent, qmp, console } = descriptors;
    let mut all: Vec<String> = SWITCHES.map(str::to_owned).into();
    let mut add = |key: &str, value: String| all.extend([format!("-{key}"), value]);
    // Only the devices that are named here, and a process that can start no other, gain no privileges and change no
    // scheduling.
    add_restrictions(&mut add);
    add("M", format!("{MACHINE},{LAYOUT},{MACHINE_OPTIONS}"));
    add(
        "accel",
        match config.accelerator {
            // Without a limit, the cache may grow to a gigabyte.
            Accelerator::Tcg => format!("tcg,tb-size={},thread=multi", CODE_CACHE / MEBIBYTE),
            Accelerator::Kvm => "kvm".to_owned(),
        },
    );
    add("cpu", config.processor.clone());
    add("smp", hardware.processors.to_string());
    let mebibytes = memory_size(hardware) / MEBIBYTE;
    add("m", format!("{mebibytes}M"));
    // Memory of a booted VM is the file itself, and can be copied from there; memory from a state is mapped privately.
    let share = if matches!(mode, StartMode::State) { "off" } else { "on" };
    let mapping = format!("mem-path=/proc/self/fd/{memory},share={share}");
    add("object", format!("memory-backend-file,id=memory,size={mebibytes}M,{mapping}"));
    // States contain devices only, and start with them.
    add("global", "migration.send-configuration=off".to_owned());
    match mode {
        StartMode::Boot { boot, kernel_arguments, kernel, initramfs } => {
            add("kernel", format!("/proc/self/fd/{kernel}"));
            add("initrd", format!("/proc/self/fd/{initramfs}"));
            add("append", format!("{kernel_arguments} {}", boot.command_line));
        }
        StartMode::State => add("incoming", "defer".to_owned()),
    }
    add("chardev", format!("socket,id=qmp,fd={qmp}"));
    add("mon", "chardev=qmp,mode=control".to_owned());
    add("chardev", format!("socket,id=console,fd={console}"));
    add("serial", "chardev:console".to_owned());
    add("object", "rng-random,id=random,filename=/dev/urandom".to_owned());
    add("device", "virtio-rng-device,rng=random".to_owned());
    add("device", "virtio-serial-device,max_ports=2".to_owned());
    add("chardev", format!("socket,id=agent,fd={agent}"));
    add("device", format!("virtserialport,chardev=agent,name={}", hardware.port));
    for (at, (disk, fd)) in hardware.disks.iter().zip(disks).enumerate() {
        let read_only = disk.access == Access::ReadOnly;
        add("add-fd", format!("fd={fd},set={}", at + 1));
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
        add("blockdev", node.to_string());
        add("device", format!("virtio-blk-device,drive=disk{at},serial={},werror=report,rerror=report", disk.name));
    }
    if matches!(mode, StartMode::State) {
        all.push("-S".to_owned());
    }
    all.into_iter().map(OsString::from).collect()
}

/// Returns the VM's memory size, rounded up to whole mebibytes.
pub(crate) fn memory_size(hardware: &Hardware) -> u64 {
    hardware.memory.as_bytes().next_multiple_of(MEBIBYTE)
}

fn add_restrictions(add: &mut impl FnMut(&str, String)) {
    add("sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny".to_owned());
    add("display", "none".to_owned());
    add("msg", "timestamp=off".to_owned());
    add("name", "cofferdam".to_owned());
}

/// Options without a value.
pub(crate) const SWITCHES: [&str; 3] = ["-nodefaults", "-no-user-config", "-no-reboot"];

#[cfg(test)]
mod tests {
    use cofferdam_contract::ByteSize;

    use super::*;
    use crate::vmm::{Contents, Disk};

    fn sample_of(mode: &StartMode<'_>) -> Vec<String> {
        let disk = |name, access| Disk { name, contents: Contents::Shared("/secret/path".into()), access };
        let hardware = Hardware {
            memory: ByteSize::from_bytes((100 << 20) + 1),
            processors: 2,
            disks: vec![disk("root", Access::ReadOnly), disk("work", Access::ReadWrite)],
            port: "dev.x",
        };
        let fds = Descriptors { memory: 10, disks: vec![5, 6], agent: 7, qmp: 8, console: 9 };
        let all = arguments(&QemuConfig::default(), mode, &hardware, &fds);
        all.into_iter().map(|argument| argument.into_string().unwrap()).collect()
    }

    fn sample() -> Vec<String> {
        let boot = Boot {
            kernel: "/secret/kernel".into(),
            initramfs: "/secret/initramfs".into(),
            command_line: "cofferdam.user=1:1".to_owned(),
        };
        sample_of(&StartMode::Boot { boot: &boot, kernel_arguments: "quiet", kernel: 3, initramfs: 4 })
    }

    fn after<'a>(all: &'a [String], key: &str) -> Vec<&'a str> {
        all.windows(2).filter(|pair| pair[0] == key).map(|pair| pair[1].as_str()).collect()
    }

    /// Promise (Virtual machines): The arguments of QEMU contain no path of the host and no network.
    #[test]
    fn no_path_of_the_host_and_no_network_is_among_it() {
        let all = sample();
        assert!(all.iter().all(|argument| !argument.contains("/secret")), "{all:?}");
        for word in ["netdev", "nic", "virtfs", "vnc", "vhost", "spice", "tcp", "path=/secret"] {
            assert!(all.iter().all(|argument| !argument.contains(word)), "{word}: {all:?}");
        }
        let sandbox = after(&all, "-sandbox")[0];
        for restriction in ["obsolete", "elevateprivileges", "spawn", "resourcecontrol"] {
            assert!(sandbox.contains(&format!("{restriction}=deny")), "{sandbox}");
        }
        for switch in SWITCHES {
            assert!(all.iter().any(|argument| argument == switch), "{switch}: {all:?}");
        }
    }

    #[test]
    fn only_writable_disks_are_opened_for_writing() {
        let all = sample();
        let nodes: Vec<serde_json::Value> =
            after(&all, "-blockdev").iter().map(|node| serde_json::from_str(node).unwrap()).collect();
        assert_eq!((&nodes[0]["read-only"], &nodes[1]["read-only"]), (&json!(true), &json!(false)));
        assert_eq!(after(&all, "-add-fd"), ["fd=5,set=1", "fd=6,set=2"]);
        assert_eq!(nodes[1]["file"]["filename"], "/dev/fdset/2");
        assert_eq!(after(&all, "-m"), ["101M"]);
    }

    #[test]
    fn restored_vm_has_the_same_hardware_and_its_own_memory() {
        let (booted, restored) = (sample(), sample_of(&StartMode::State));
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
    fn kernel_gets_the_tsc_frequency_only_under_tcg() {
        let arguments = kernel_arguments(Accelerator::Tcg, Some(2_000_000));
        assert!(arguments.contains("tsc_early_khz=2000000") && arguments.contains("no_timer_check"), "{arguments}");
        assert!(!kernel_arguments(Accelerator::Kvm, Some(1)).contains("tsc"));
        assert!(!kernel_arguments(Accelerator::Tcg, None).contains("tsc"));
    }
}
