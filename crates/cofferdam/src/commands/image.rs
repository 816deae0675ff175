//! `cofferdam image`: the images of the container engine, and how to get some.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam::registry::images::{BaseImage, ImageInfo, Images, MadeImage};
use cofferdam::{ByteSize, Result};
use serde_json::json;

use super::block_on;
use crate::args::{ImageArgs, ImageCommand};
use crate::progress::Progress;
use crate::report::{self, Form};
use crate::settings::{Environment, containers};
use crate::style::Tone;

/// Does what is asked for; the exit status is 0 when it was done.
pub fn main(args: &ImageArgs, config: Option<PathBuf>) -> u8 {
    let form = if args.command.json() { Form::Json } else { Form::Text };
    carry_out(args, config, form).unwrap_or_else(|error| report::error(&error, form))
}

fn carry_out(args: &ImageArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let images = Images::new(&containers(&Environment::read(variable)?, &file))?;
    let progress = Arc::new(Progress::new());
    let told = Arc::clone(&progress);
    let tell = Arc::new(move |step| told.tell(step));
    let result = block_on(async {
        Ok(match &args.command {
            ImageCommand::List { .. } => {
                let all = images.list().await?;
                match form {
                    Form::Text => report::print(&table(&all)),
                    _ => report::document(&json!({ "images": all })),
                }
            }
            ImageCommand::Import { source, name, .. } => show(&images.import(source, name).await?, form, &progress),
            ImageCommand::BuildBase { name, tiny, package, .. } => {
                let base = BaseImage { tiny: *tiny, packages: package.clone() };
                show(&images.build_base(&base, name, tell).await?, form, &progress)
            }
            ImageCommand::Pull { name, .. } => {
                images.pull(name, tell).await?;
                progress.finish();
                match form {
                    Form::Text => report::print(&format!("{name} is there: cofferdam run --image {name} ...\n")),
                    _ => report::document(&json!({ "name": name })),
                }
            }
        })
    });
    progress.finish();
    Ok(report::printed(result?, 0))
}

fn show(made: &MadeImage, form: Form, progress: &Progress) -> std::io::Result<()> {
    progress.finish();
    match form {
        Form::Text => {
            for note in &made.notes {
                report::remark(note, Tone::Warning);
            }
            report::print(&format!("{0} is there: cofferdam run --image {0} ...\n", made.name))
        }
        _ => report::document(&json!(made)),
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
