//! The entry point of the launcher: the program that uses this library is executed again, and before its `main` runs,
//! this function recognises the launcher's name in `argv[0]` and runs the launcher instead.
//!
//! So nothing needs to be installed or called, and the launcher always has the version of its owner. It starts with an
//! empty memory and environment, so no secret of the owner can leak into a sandbox through it. (The C part of runc uses
//! such a constructor as well.)

use std::ffi::{CStr, c_char, c_int};

use crate::launcher::Origin;

/// The `argv[0]` of a launcher.
pub const LAUNCHER_NAME: &str = "cofferdam-launcher";

#[used]
#[unsafe(link_section = ".init_array")]
static ENTRY: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = enter;

extern "C" fn enter(argc: c_int, argv: *const *const c_char, _envp: *const *const c_char) {
    // Not every C library passes arguments to constructors.
    #[cfg(target_env = "musl")]
    let (argc, argv) = {
        let _ = (argc, argv);
        super::fork::arguments_below_environment()
    };
    super::fork::remember_arguments(argv);
    if argc != 1 || argv.is_null() {
        return;
    }
    // SAFETY: the C library passes argc valid, NUL-terminated strings. A set-user-id program must never be controlled
    // by its caller's argv, hence the check of AT_SECURE.
    let called = unsafe {
        let name = *argv;
        !name.is_null()
            && CStr::from_ptr(name).to_bytes() == LAUNCHER_NAME.as_bytes()
            && libc::getauxval(libc::AT_SECURE) == 0
    };
    if called {
        // A panic must not unwind into the C library.
        let code = std::panic::catch_unwind(|| crate::launcher::main(Origin::Executed)).unwrap_or(70);
        cofferdam_linux::process::exit_now(code)
    }
}
