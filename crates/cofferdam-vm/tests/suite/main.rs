//! Virtual machines, created for real if a VMM is installed and packages are available.
#![forbid(unsafe_code)]

mod archive;
mod boot;
mod bounds;
mod conformance;
mod consoles;
mod images;
mod kill;
mod life;
mod network;
mod quiesce;
mod rest;
mod state;
mod support;
