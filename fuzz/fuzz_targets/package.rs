//! Untrusted plugin packages, by libFuzzer. The bytes are a package, or the contents of a signed one.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::package::Packages;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static PACKAGES: RefCell<Packages> = RefCell::new(Packages::new());
}

fuzz_target!(|data: &[u8]| {
    PACKAGES.with_borrow_mut(|packages| {
        if let Err(error) = packages.check(data) {
            panic!("{error:#}");
        }
    });
});
