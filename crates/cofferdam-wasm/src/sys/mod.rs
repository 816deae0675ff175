//! Linear memories that this crate maps itself, and machine code from the cache. All unsafe code is here.
//!
//! ```text
//! Image: pages in a sealed memory file            (the initial content of a guest's memory)
//! Slot:  a private mapping of an image            (the memory that one guest writes to)
//! free slot --instantiate--> in use --drop or reuse of the instance--> written pages are restored --> free slot
//! ```
//!
//! The cost of a restore is proportional to the written pages, and the pages stay mapped, so the next guest takes no
//! page faults for them. This needs `PAGEMAP_SCAN` of Linux 6.7. Older kernels discard all pages, which costs page
//! faults.
#![allow(unsafe_code)]

mod image;
mod pagemap;
mod precompiled;
mod slot;

pub(crate) use image::Image;
pub(crate) use precompiled::{Verified, load};
pub(crate) use slot::{Handle, Slots, with_image};
