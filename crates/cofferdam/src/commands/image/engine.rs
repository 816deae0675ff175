//! `cofferdam image --engine`: images of the container engine.

use std::fmt::Write;
use std::sync::Arc;

use cofferdam::registry::ContainerSettings;
use cofferdam::registry::images::{BaseImage, CreatedImage, ImageInfo, Images};
use cofferdam::{ByteSize, Error, Result};
use serde_json::json;

use crate::args::ImageCommand;
use crate::commands::block_on;
use crate::progress::Progress;
use crate::report::{self, Form};
use crate::style::Tone;

/// Runs the command. Returns the exit status.
pub fn main(command: &ImageCommand, settings: &ContainerSettings, form: Form, progress: &Arc<Progress>) -> Result<u8> {
    let images = Images::new(settings)?;
    let shown = Arc::clone(progress);
    let on_step = Arc::new(move |step| shown.report(step));
    let result = block_on(async {
        Ok(match command {
            ImageCommand::List { .. } => {
                let all = images.list().await?;
                report::show(form, &json!({ "images": all }), &table(&all))
            }
            ImageCommand::Import { source, name, .. } => show(&images.import(source, name).await?, form, progress),
            ImageCommand::Build { name, tiny, package, .. } => {
                let base = BaseImage { tiny: *tiny, packages: package.clone() };
                show(&images.build_base(&base, name, on_step).await?, form, progress)
            }
            ImageCommand::Pull { name, .. } => {
                images.pull(name, on_step).await?;
                progress.finish();
                let text = format!("pulled {name}; use it: cofferdam run --image {name} ...\n");
                report::show(form, &json!({ "name": name }), &text)
            }
            ImageCommand::Load { .. }
            | ImageCommand::Rm { .. }
            | ImageCommand::Prune { .. }
            | ImageCommand::Inspect { .. } => {
                return Err(Error::unsupported("image", "this command is for the image store only"));
            }
        })
    });
    progress.finish();
    Ok(report::printed(result?, 0))
}

fn show(image: &CreatedImage, form: Form, progress: &Progress) -> std::io::Result<()> {
    progress.finish();
    match form {
        Form::Text => {
            for note in &image.notes {
                report::remark(note, Tone::Warning);
            }
            report::print(&format!("created {0}; use it: cofferdam run --image {0} ...\n", image.name))
        }
        _ => report::document(&json!(image)),
    }
}

fn table(images: &[ImageInfo]) -> String {
    let mut out = String::new();
    for image in images {
        let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
        let names = if image.names.is_empty() { "(no name)".to_owned() } else { image.names.join(" ") };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:<12} {:>10} {} {}",
            id.get(..12).unwrap_or(id),
            ByteSize::from_bytes(image.size).to_string(),
            if image.imported { "imported" } else { "        " },
            crate::terminal::one_line(&names)
        );
    }
    out
}
