//! Virtual machines, made for real where there is a monitor and where packages can be had.
#![forbid(unsafe_code)]

mod archive;
mod boot;
mod bounds;
mod conformance;
mod consoles;
mod hold;
mod images;
mod kill;
mod life;
mod rest;
mod state;
mod support;
