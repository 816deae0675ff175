//! Untrusted snapshots, by libFuzzer. The bytes are the contents of the file.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_contract::Access;
use cofferdam_fuzz::snapshot::Snapshots;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static SNAPSHOTS: RefCell<Snapshots> = RefCell::new(Snapshots::new().expect("no snapshot"));
}

fuzz_target!(|data: &[u8]| {
    SNAPSHOTS.with_borrow_mut(|snapshots| {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            if let Err(error) = snapshots.check(data, access) {
                panic!("{error:#}");
            }
        }
    });
});
