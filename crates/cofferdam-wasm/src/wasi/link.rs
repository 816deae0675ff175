//! The host functions by name.

use wasmtime::{Caller, Extern, Linker};

use super::abi::{Answer, Errno, Stop};
use super::host::{Call, Host};

/// The name of the module that guests import.
pub(crate) const MODULE: &str = "wasi_snapshot_preview1";

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        /// Adds all functions of WASI preview 1 to a linker.
        pub(crate) fn add_to(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
            $(linker.func_wrap(MODULE, stringify!($name), |mut caller: Caller<'_, Host>, $($arg: $type),*| {
                answer(&mut caller, |mut call| call.$name($($arg),*))
            })?;)*
            linker.func_wrap(MODULE, "proc_exit", |mut caller: Caller<'_, Host>, code: u32| {
                answer(&mut caller, |mut call| call.proc_exit(code)).map(drop)
            })?;
            Ok(())
        }
    };
}

calls! {
    args_get(pointers: u32, buffer: u32);
    args_sizes_get(count: u32, size: u32);
    environ_get(pointers: u32, buffer: u32);
    environ_sizes_get(count: u32, size: u32);
    clock_res_get(clock: u32, result: u32);
    clock_time_get(clock: u32, precision: u64, result: u32);
    fd_advise(fd: u32, offset: u64, length: u64, advice: u32);
    fd_allocate(fd: u32, offset: u64, length: u64);
    fd_close(fd: u32);
    fd_datasync(fd: u32);
    fd_fdstat_get(fd: u32, result: u32);
    fd_fdstat_set_flags(fd: u32, flags: u32);
    fd_fdstat_set_rights(fd: u32, base: u64, inheriting: u64);
    fd_filestat_get(fd: u32, result: u32);
    fd_filestat_set_size(fd: u32, size: u64);
    fd_filestat_set_times(fd: u32, accessed: u64, modified: u64, flags: u32);
    fd_pread(fd: u32, buffers: u32, count: u32, offset: u64, result: u32);
    fd_prestat_get(fd: u32, result: u32);
    fd_prestat_dir_name(fd: u32, buffer: u32, length: u32);
    fd_pwrite(fd: u32, buffers: u32, count: u32, offset: u64, result: u32);
    fd_read(fd: u32, buffers: u32, count: u32, result: u32);
    fd_readdir(fd: u32, buffer: u32, length: u32, cookie: u64, result: u32);
    fd_renumber(from: u32, to: u32);
    fd_seek(fd: u32, offset: u64, whence: u32, result: u32);
    fd_sync(fd: u32);
    fd_tell(fd: u32, result: u32);
    fd_write(fd: u32, buffers: u32, count: u32, result: u32);
    path_create_directory(fd: u32, path: u32, length: u32);
    path_filestat_get(fd: u32, flags: u32, path: u32, length: u32, result: u32);
    path_filestat_set_times(fd: u32, flags: u32, path: u32, length: u32, accessed: u64, modified: u64, which: u32);
    path_link(old_fd: u32, old_flags: u32, old_path: u32, old_length: u32, new_fd: u32, new_path: u32, new_length: u32);
    path_open(fd: u32, flags: u32, path: u32, length: u32, how: u32, base: u64, inheriting: u64, fd_flags: u32, result: u32);
    path_readlink(fd: u32, path: u32, length: u32, buffer: u32, room: u32, result: u32);
    path_remove_directory(fd: u32, path: u32, length: u32);
    path_rename(old_fd: u32, old_path: u32, old_length: u32, new_fd: u32, new_path: u32, new_length: u32);
    path_symlink(target: u32, target_length: u32, fd: u32, path: u32, length: u32);
    path_unlink_file(fd: u32, path: u32, length: u32);
    poll_oneoff(subscriptions: u32, events: u32, count: u32, result: u32);
    proc_raise(signal: u32);
    random_get(buffer: u32, length: u32);
    sched_yield();
    sock_accept(fd: u32, flags: u32, result: u32);
    sock_recv(fd: u32, buffers: u32, count: u32, flags: u32, size: u32, result: u32);
    sock_send(fd: u32, buffers: u32, count: u32, flags: u32, result: u32);
    sock_shutdown(fd: u32, how: u32);
}

/// Runs a call, and converts its error to an error code for the guest or to the guest's termination.
fn answer(caller: &mut Caller<'_, Host>, call: impl FnOnce(Call<'_>) -> Answer) -> wasmtime::Result<u32> {
    let memory = match caller.data().memory {
        Some(memory) => memory,
        None => match caller.get_export("memory") {
            Some(Extern::Memory(memory)) => memory,
            _ => return Ok(Errno::Fault as u32),
        },
    };
    let (bytes, host) = memory.data_and_store_mut(caller);
    match call(Call::new(host, bytes)) {
        Ok(()) => Ok(0),
        Err(Stop::Errno(errno)) => Ok(errno as u32),
        Err(Stop::End(termination)) => Err(wasmtime::Error::new(termination)),
    }
}
