//! Capabilities: dropping all of them, and reading the remaining sets.

use std::io;

use crate::sys::{check, check_int};

const VERSION_3: u32 = 0x2008_0522;
/// One more than the highest capability that a kernel can have.
const CAPABILITY_SPACE: u32 = 64;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The capability sets of the calling thread, as bit masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sets {
    /// Effective.
    pub effective: u64,
    /// Permitted.
    pub permitted: u64,
    /// Inheritable.
    pub inheritable: u64,
}

/// Empties the bounding, ambient, inheritable, permitted and effective sets of the calling thread.
pub fn drop_all() -> io::Result<()> {
    // SAFETY: prctl with plain numbers; the structures of capset live through the call.
    unsafe {
        for capability in 0..CAPABILITY_SPACE {
            if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 {
                let error = io::Error::last_os_error();
                if error.raw_os_error() == Some(libc::EINVAL) {
                    break; // One more than the newest capability of this kernel.
                }
                return Err(error);
            }
        }
        check_int(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))?;
        let header = Header { version: VERSION_3, pid: 0 };
        let none = [Data::default(); 2];
        check(libc::syscall(libc::SYS_capset, &header, none.as_ptr())).map(drop)
    }
}

/// Reads the calling thread's sets.
pub fn read() -> io::Result<Sets> {
    let mut data = [Data::default(); 2];
    // SAFETY: the structures live through the call.
    unsafe {
        let header = Header { version: VERSION_3, pid: 0 };
        check(libc::syscall(libc::SYS_capget, &header, data.as_mut_ptr()))?;
    }
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok(Sets {
        effective: join(data[0].effective, data[1].effective),
        permitted: join(data[0].permitted, data[1].permitted),
        inheritable: join(data[0].inheritable, data[1].inheritable),
    })
}

/// Returns the calling thread's bounding set: capabilities that it could still gain.
pub fn bounding() -> u64 {
    let mut set = 0;
    for capability in 0..CAPABILITY_SPACE {
        // SAFETY: plain numbers.
        match unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) } {
            1 => set |= 1 << capability,
            0 => {}
            _ => break,
        }
    }
    set
}
