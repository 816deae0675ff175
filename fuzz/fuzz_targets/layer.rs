//! A layer of a hostile image, by libFuzzer: the bytes are a tar, which is unpacked into a store.
#![no_main]
#![forbid(unsafe_code)]

use std::cell::RefCell;

use cofferdam_fuzz::layer::Layers;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static LAYERS: RefCell<Layers> = RefCell::new(Layers::new().expect("a store"));
}

fuzz_target!(|data: &[u8]| {
    LAYERS.with_borrow_mut(|layers| {
        if let Err(error) = layers.check(data) {
            panic!("{error:#}");
        }
    });
});
