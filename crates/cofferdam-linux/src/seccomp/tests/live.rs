//! Tests on the running kernel: it accepts the program and behaves like the interpreter. The filter ends with the
//! thread.
use super::super::{install, sys};
use super::{Arch, Options, compile};
use std::thread;

/// With these arguments, each call fails with another error, or succeeds, without a filter.
const REFUSED: [(libc::c_long, [libc::c_long; 4], i32); 6] = [
    (libc::SYS_unshare, [0; 4], libc::EPERM),
    (libc::SYS_keyctl, [0, -3, 0, 0], libc::EPERM),
    (libc::SYS_ioctl, [-1, 0x5412, 0, 0], libc::EPERM),
    (libc::SYS_ioctl, [-1, 0x1_0000_5412, 0, 0], libc::EPERM),
    (libc::SYS_clone3, [0; 4], libc::ENOSYS),
    (libc::SYS_openat2, [-1, 0, 0, 0], libc::ENOSYS),
];

fn under_filter<T: Send>(options: Options, test: impl FnOnce() -> T + Send) -> T {
    let program = compile(Arch::native(), &options);
    thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            rustix::thread::set_no_new_privs(true).expect("no_new_privs can always be set");
            install(&program).expect("the kernel accepts the program");
            test()
        });
        filtered.join().expect("the thread survives its filter")
    })
}

/// Promise (Process isolation): The kernel refuses the system calls that the seccomp table refuses.
#[test]
fn kernel_refuses_the_calls_that_the_table_refuses() {
    // A container around the tests may refuse some calls already, but not all: a bad descriptor returns EBADF
    // everywhere.
    let without = REFUSED.map(|(number, arguments, _)| sys::errno_of(number, arguments));
    assert!(without.iter().zip(REFUSED).any(|(errno, (.., refused))| *errno != refused));
    let errnos = under_filter(Options::default(), || REFUSED.map(|(number, args, _)| sys::errno_of(number, args)));
    assert_eq!(errnos, REFUSED.map(|(.., errno)| errno));
}

#[test]
fn kernel_allows_calls_that_programs_need() {
    under_filter(Options::default(), || {
        assert_eq!(sys::errno_of(libc::SYS_getppid, [0; 4]), 0);
        assert_eq!(sys::errno_of(libc::SYS_socket, [1, 1, 0, 0]), 0);
        assert_eq!(sys::errno_of(libc::SYS_prlimit64, [0, 15, 0, 0]), 0);
        assert!(std::fs::read_to_string("/proc/self/stat").is_ok());
        let echo = std::process::Command::new("/bin/sh").args(["-c", "echo works"]).output().expect("sh starts");
        assert_eq!(echo.stdout, b"works\n");
        thread::spawn(|| ()).join().expect("threads start although clone3 is refused");
    });
}

#[test]
fn a_second_filter_makes_the_first_one_stricter() {
    under_filter(Options::default(), || {
        let stricter = compile(Arch::native(), &Options { deny_affinity: true, ..Options::default() });
        install(&stricter).expect("seccomp itself is allowed");
        assert_eq!(sys::errno_of(libc::SYS_unshare, [0; 4]), libc::EPERM);
    });
}
