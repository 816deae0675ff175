//! Bytes of a guest to its gateway, by libFuzzer: the first byte selects the parser.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::network::Networks;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static NETWORKS: RefCell<Networks> = RefCell::new(Networks::new().expect("no runtime"));
}

fuzz_target!(|data: &[u8]| {
    NETWORKS.with_borrow_mut(|networks| {
        if let Err(error) = networks.check(data) {
            panic!("{error:#}");
        }
    });
});
