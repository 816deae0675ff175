//! `cofferdam vm export-image` and `cofferdam vm import-image`.

use cofferdam::registry::vms::{ExportedImage, Images, LARGEST_IMAGE};
use cofferdam::{ByteSize, Result};
use serde_json::json;

use super::{Existing, built};
use crate::args::{ExportImageArgs, ImportImageArgs};
use crate::commands::run::{no_signals, signal_status};
use crate::commands::snapshot::key;
use crate::commands::work::{Outcome, Work};
use crate::interrupts::Interrupts;
use crate::out_file::{self, OutFile};
use crate::report::{self, Form};
use crate::style::Tone;
use crate::terminal::one_line;

pub(super) async fn export(images: &Images, args: &ExportImageArgs, default: &str, form: Form) -> Result<u8> {
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let key = key(args.key_file.as_deref())?;
    let existing = if args.force { out_file::Existing::Replace } else { out_file::Existing::Keep };
    let out = OutFile::begin(&args.out, existing)?;
    let work = Work::new(form, false);
    let image = args.image.as_deref().unwrap_or(default);
    let exporting = images.export(image, out.file()?, key.as_ref(), args.compression, work.watch());
    let exported = match work.run(&mut interrupts, exporting).await? {
        Outcome::Done(exported) => exported,
        Outcome::Interrupted(number) => return Ok(signal_status(number)),
    };
    out.finish()?;
    Ok(report::printed(show(args, &exported, form), 0))
}

fn show(args: &ExportImageArgs, exported: &ExportedImage, form: Form) -> std::io::Result<()> {
    let file = args.out.display().to_string();
    let ExportedImage { key, kernel, archive } = exported;
    match form {
        Form::Text => {
            let (size, encrypted) =
                (ByteSize::from_bytes(archive.bytes), if archive.encrypted { ", encrypted" } else { "" });
            let file = one_line(&file);
            let message = format!("wrote {file} ({size}{encrypted}); use it: cofferdam vm import-image {file}");
            report::remark(&message, Tone::Good);
            Ok(())
        }
        _ => report::document(&json!({ "file": file, "key": key, "kernel": kernel, "archive": archive })),
    }
}

pub(super) async fn import(images: &Images, args: &ImportImageArgs, form: Form) -> Result<u8> {
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let key = key(args.key_file.as_deref())?;
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let max_size = args.max_size.unwrap_or(LARGEST_IMAGE);
    let work = Work::new(form, false);
    let importing = images.import(&args.file, args.name.as_deref(), existing, max_size, key.as_ref(), work.watch());
    let imported = match work.run(&mut interrupts, importing).await? {
        Outcome::Done(image) => image,
        Outcome::Interrupted(number) => return Ok(signal_status(number)),
    };
    Ok(report::printed(built(&imported, form), 0))
}
