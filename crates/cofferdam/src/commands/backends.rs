//! `cofferdam backends`: lists the known backends and their availability in this version.

use std::fmt::Write;

use cofferdam::registry::{DEFAULT_BACKEND, known};
use serde_json::json;

use crate::args::BackendsArgs;
use crate::report::{Form, printed, show};

/// Lists the backends.
pub fn main(args: &BackendsArgs) -> u8 {
    let all: Vec<_> = known().collect();
    printed(show(Form::of(args.json), &json!({"default": DEFAULT_BACKEND, "backends": all}), &table()), 0)
}

fn table() -> String {
    let mut out = String::new();
    for info in known() {
        let state = match info.built_in {
            _ if info.name == DEFAULT_BACKEND => "default",
            true => "available",
            false => "not in this version",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{:<12} {:<10} {:<20} {}", info.name, info.level.as_str(), state, info.summary);
    }
    out
}
