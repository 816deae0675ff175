//! An archive of a machine from a stranger, by libFuzzer: the bytes are an archive, and what is packed in one.
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
