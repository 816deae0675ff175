//! Linear memories that this crate maps itself, and machine code from the cache. All that is unsafe is here.
//!
//! ```text
//! Image: pages in a sealed memory file            (what a guest begins with)
//! Slot:  a private mapping of an image            (what one guest writes to)
//! free slot --instance made--> in use --instance dropped or used again--> what was written is put back --> free slot
//! ```
//!
//! Putting back costs as much as was written, and leaves the pages where they are: the next guest takes no page fault
//! for them. That needs `PAGEMAP_SCAN` of Linux 6.7; before it every page goes, which costs faults and nothing else.
#![allow(unsafe_code)]

mod image;
mod pagemap;
mod precompiled;
mod slot;

pub(crate) use image::Image;
pub(crate) use precompiled::{Verified, load};
pub(crate) use slot::{Handle, Slots, with_image};
