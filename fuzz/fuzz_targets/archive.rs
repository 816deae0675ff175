//! Untrusted VM archives, by libFuzzer. The bytes are an archive, or the contents of a valid one.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::archive::Archives;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static ARCHIVES: RefCell<Archives> = RefCell::new(Archives::new().expect("no archive"));
}

fuzz_target!(|data: &[u8]| {
    ARCHIVES.with_borrow_mut(|archives| {
        if let Err(error) = archives.check(data) {
            panic!("{error:#}");
        }
    });
});
