//! A change set of a hostile guest, by libFuzzer: the bytes are a layer, which is shown and applied.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::changes::Changes;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static CHANGES: RefCell<Changes> = RefCell::new(Changes::new());
}

fuzz_target!(|data: &[u8]| {
    CHANGES.with_borrow_mut(|changes| {
        if let Err(error) = changes.check(data) {
            panic!("{error:#}");
        }
    });
});
