//! Untrusted WebAssembly modules, by libFuzzer.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::cases::module_of;
use cofferdam_fuzz::module::{Mode, Modules};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static MODULES: RefCell<Modules> = RefCell::new(Modules::new().expect("no runtime"));
}

fuzz_target!(|data: &[u8]| {
    MODULES.with_borrow_mut(|modules| {
        for mode in [Mode::Plain, Mode::Deterministic] {
            if let Err(error) = modules.check(&module_of(data), mode) {
                panic!("{error:#}");
            }
        }
    });
});
