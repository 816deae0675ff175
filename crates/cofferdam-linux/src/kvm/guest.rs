//! The guest: one processor in 64-bit ring 0 with 64 KiB of memory, no devices, and a program of five bytes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::time::Duration;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};

use super::Spin;
use super::stop::{self, Stop};

const MEMORY: usize = 64 * 1024;
/// Three levels of page tables, one page each. They identity-map the first 2 MiB.
const TABLES: [u64; 3] = [0x1000, 0x2000, 0x3000];
const PROGRAM_AT: u64 = 0x4000;
const STACK_TOP: u64 = 0x8000;
/// `dec ecx`, `jnz` back to it, `hlt`.
const PROGRAM: [u8; 5] = [0xff, 0xc9, 0x75, 0xfc, 0xf4];

/// Bits of a page table entry: present and writable; a page of 2 MiB.
const PRESENT: u64 = 0b11;
const LARGE: u64 = 1 << 7;
/// Control registers: protected mode and paging; physical address extension; long mode, enabled and active.
const CR0: u64 = 1 | 1 << 31;
const CR4: u64 = 1 << 5;
const EFER: u64 = 1 << 8 | 1 << 10;
/// The flag that is always set.
const FLAGS: u64 = 0b10;

/// The memory of a guest.
struct Memory(NonNull<u8>);

impl Memory {
    fn new() -> io::Result<Self> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), MEMORY, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).map(Self).ok_or_else(|| io::Error::other("mapped at null"))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        assert!(at + bytes.len() <= MEMORY, "within the guest");
        // SAFETY: within the mapping, as was just checked; no guest runs yet.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_ptr().add(at), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; the VM that used it is dropped before it.
        unsafe { libc::munmap(self.0.as_ptr().cast(), MEMORY) };
    }
}

/// A VM. The fields are in the order in which they must be dropped.
struct Guest {
    vcpu: VcpuFd,
    _vm: VmFd,
    _memory: Memory,
}

impl Guest {
    fn new(kvm: &Kvm, rounds: u32) -> io::Result<Self> {
        let vm = kvm.create_vm()?;
        let mut memory = Memory::new()?;
        memory.write(TABLES[0], &(TABLES[1] | PRESENT).to_le_bytes());
        memory.write(TABLES[1], &(TABLES[2] | PRESENT).to_le_bytes());
        memory.write(TABLES[2], &(PRESENT | LARGE).to_le_bytes());
        memory.write(PROGRAM_AT, &PROGRAM);
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: memory.0.as_ptr() as u64,
        };
        // SAFETY: the mapping has this size, and is dropped after the VM.
        unsafe { vm.set_user_memory_region(region)? };
        let vcpu = vm.create_vcpu(0)?;
        vcpu.set_cpuid2(&kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?)?;
        vcpu.set_sregs(&long_mode(vcpu.get_sregs()?))?;
        let start =
            kvm_regs { rip: PROGRAM_AT, rsp: STACK_TOP, rcx: rounds.into(), rflags: FLAGS, ..kvm_regs::default() };
        vcpu.set_regs(&start)?;
        // SAFETY: the processor's descriptor is open as long as it lives.
        stop::unblock_while_running(unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) })?;
        Ok(Self { vcpu, _vm: vm, _memory: memory })
    }
}

/// Returns the registers of 64-bit ring 0, based on those after a reset.
fn long_mode(mut sregs: kvm_sregs) -> kvm_sregs {
    let flat = kvm_segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..kvm_segment::default() };
    let data = kvm_segment { selector: 0x18, type_: 0b0011, db: 1, ..flat };
    sregs.cs = kvm_segment { selector: 0x10, type_: 0b1011, l: 1, ..flat };
    for segment in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss] {
        *segment = data;
    }
    sregs.cr3 = TABLES[0];
    sregs.cr4 = CR4;
    sregs.cr0 |= CR0;
    sregs.efer = EFER;
    sregs
}

/// Creates a guest and runs it until it halts or is stopped. Changes the signals of the calling thread, which must end
/// afterwards.
pub(super) fn count_down(kvm: &Kvm, rounds: u32, stop: &Stop) -> io::Result<Spin> {
    stop::block()?;
    let mut guest = Guest::new(kvm, rounds)?;
    let begun = own_time();
    loop {
        let used = || own_time().saturating_sub(begun);
        if stop.is_requested() {
            return Ok(Spin::Stopped(used()));
        }
        match guest.vcpu.run() {
            Ok(VcpuExit::Hlt) => break,
            Ok(other) => return Ok(Spin::Strange(format!("{other:?}"))),
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {
                if !stop.is_requested() {
                    stop::discard();
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    let used = own_time().saturating_sub(begun);
    let end = guest.vcpu.get_regs()?;
    if (end.rcx, end.rip) == (0, PROGRAM_AT + PROGRAM.len() as u64) {
        Ok(Spin::Halted(used))
    } else {
        Ok(Spin::Strange(format!("halted at {:#x} with {} rounds to go", end.rip, end.rcx)))
    }
}

/// Returns the processor time of the calling thread, including that of its guest. It does not depend on other programs.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
