//! Bytes of a plugin to its host, by libFuzzer: the first byte is the size of the portions of the others.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::plugin::Plugins;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static PLUGINS: RefCell<Plugins> = RefCell::new(Plugins::new());
}

fuzz_target!(|data: &[u8]| {
    PLUGINS.with_borrow_mut(|plugins| {
        if let Err(error) = plugins.check(data) {
            panic!("{error:#}");
        }
    });
});
