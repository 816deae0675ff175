//! `cofferdam snapshot inspect`.

use std::fmt::Write;

use cofferdam::registry::vms::{ArchiveInfo, SnapshotInfo, inspect_archive};
use cofferdam::{ByteSize, Result};
use serde_json::json;

use super::{Work, key};
use crate::args::InspectArgs;
use crate::report::{self, Form};
use crate::terminal::one_line;

pub(super) fn carry_out(args: &InspectArgs, form: Form) -> Result<u8> {
    let key = key(args.key_file.as_deref())?;
    let work = Work::new(form, !args.verify);
    // Nothing is written, so signals keep their default action.
    let found = inspect_archive(&args.file, key.as_ref(), args.verify.then(|| work.watch()));
    work.finish();
    let found = found.map_err(|error| error.with_context("file", args.file.display().to_string()))?;
    Ok(report::printed(report::show(form, &json!(found), &text(&found)), 0))
}

/// Describes the running commands, as a clause. An archive does not list processes that a command left running.
pub(super) fn running(about: &SnapshotInfo) -> String {
    match about.running.len() {
        0 => "its command has ended, processes that it left running resume".to_owned(),
        1 => "1 command is running".to_owned(),
        count => format!("{count} commands are running"),
    }
}

fn text(found: &ArchiveInfo) -> String {
    let ArchiveInfo { version, encrypted, bytes, parts, machine, odd, verified } = found;
    let mut out = format!(
        "VM snapshot, version {version}, {}, {}\n",
        ByteSize::from_bytes(*bytes),
        if *encrypted { "encrypted" } else { "not encrypted" },
    );
    // Writing to a string cannot fail.
    for part in parts {
        let _ =
            writeln!(out, "  {:<10} {:<7} {:>10}", part.name, part.kind, ByteSize::from_bytes(part.size).to_string());
    }
    match (machine, odd) {
        (Some(machine), _) => out.push_str(&about(machine)),
        (None, Some(odd)) => out.push_str(&format!("  {}\n", one_line(odd))),
        (None, None) => out.push_str("  the description of the VM is encrypted; decrypt it with --key-file\n"),
    }
    let _ = match verified {
        Some(digest) => writeln!(out, "complete and intact, SHA-256 of the contents {digest}"),
        None => writeln!(out, "only the header was read; --verify reads the whole file"),
    };
    out
}

fn about(machine: &SnapshotInfo) -> String {
    let SnapshotInfo { image, origin, memory, disk, .. } = machine;
    let on = origin.host.as_ref().map_or_else(String::new, |host| format!(" on {host}"));
    let disk = disk.map_or_else(|| "workspace in memory".to_owned(), |size| format!("workspace of {size}"));
    let lines = [
        format!("image {image}"),
        format!(
            "{} {}, {}, {}, {}{on}",
            origin.vmm,
            origin.version,
            origin.vm_type,
            origin.accelerator.as_str(),
            origin.processor
        ),
        format!("{memory} of memory, {disk}, {}", running(machine)),
    ];
    lines.iter().map(|line| format!("  {}\n", one_line(line))).collect()
}
