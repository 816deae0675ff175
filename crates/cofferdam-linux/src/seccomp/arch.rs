//! The architectures of the allowlist: their audit constants and system call numbers.
use syscalls::{aarch64, x86_64};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("there is no system-call table for this architecture");

/// A processor architecture with a system-call table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// 64-bit x86, without the i386 and x32 ABIs.
    X86_64,
    /// 64-bit little-endian Arm, without the 32-bit ABI.
    Aarch64,
}

impl Arch {
    /// All architectures that have a table.
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// Returns the architecture that this program was built for.
    #[must_use]
    pub const fn native() -> Self {
        if cfg!(target_arch = "x86_64") { Self::X86_64 } else { Self::Aarch64 }
    }

    /// Returns the `AUDIT_ARCH_*` constant in `seccomp_data.arch` for this architecture's own ABI.
    #[must_use]
    pub const fn audit(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    /// Returns the bit in a system call's number that selects another ABI with the same audit constant.
    pub(super) const fn foreign_abi_bit(self) -> Option<u32> {
        match self {
            Self::X86_64 => Some(0x4000_0000), // __X32_SYSCALL_BIT
            Self::Aarch64 => None,
        }
    }

    /// Returns the name of system call `number`, if there is one.
    pub(super) fn name(self, number: u32) -> Option<&'static str> {
        let number = number as usize;
        match self {
            Self::X86_64 => x86_64::Sysno::new(number).map(|call| call.name()),
            Self::Aarch64 => aarch64::Sysno::new(number).map(|call| call.name()),
        }
    }

    /// Returns all numbers from 0 to the newest known one, with the name if they are system calls.
    ///
    ///
    /// `Sysno::iter` omits the newest call (syscalls 0.8.1).
    pub(super) fn table(self) -> impl Iterator<Item = (u32, Option<&'static str>)> {
        let newest = match self {
            Self::X86_64 => x86_64::Sysno::last().id(),
            Self::Aarch64 => aarch64::Sysno::last().id(),
        };
        (0..=newest.cast_unsigned()).map(move |number| (number, self.name(number)))
    }
}
