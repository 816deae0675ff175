//! Untrusted code, by libFuzzer. The bytes are the code, in every analyzed language.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::screen::Screens;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static SCREENS: RefCell<Screens> = RefCell::new(Screens::new());
}

fuzz_target!(|code: &str| {
    SCREENS.with_borrow_mut(|screens| {
        if let Err(error) = screens.check(code) {
            panic!("{error:#}");
        }
    });
});
