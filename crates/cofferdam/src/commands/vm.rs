//! `cofferdam vm`: builds, lists, exports, imports and prunes VM images.

mod transfer;

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam::registry::vms::{DEFAULT_IMAGE, Existing, Images, KEEP_IMAGES, Recipes, VmImage, VmImages};
use cofferdam::{ByteSize, Result};
use serde_json::json;

use super::block_on;
use crate::args::{BuildImageArgs, VmArgs, VmCommand};
use crate::progress::Progress;
use crate::report::{self, Form};
use crate::settings::{Environment, setup};
use crate::terminal::one_line;

/// Runs the command. The exit status is 0 on success.
pub fn main(args: &VmArgs, config: Option<PathBuf>) -> u8 {
    let form = Form::of(args.command.json());
    report::finish(carry_out(args, config, form), form)
}

fn carry_out(args: &VmArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let vms = setup(&Environment::read(variable)?, &file).vms;
    let images = Images::new(&vms)?;
    let printed = match &args.command {
        VmCommand::BuildImage(args) => built(&build(&images, args)?, form),
        VmCommand::ExportImage(args) => {
            let default = vms.default_image();
            return block_on(transfer::export(&images, args, default, form));
        }
        VmCommand::ImportImage(args) => return block_on(transfer::import(&images, args, form)),
        VmCommand::Images { .. } => {
            let all = images.list();
            report::show(form, &json!(all), &table(&all))
        }
        VmCommand::Prune { name, unused, .. } => {
            let freed = block_on(images.prune(name, unused.unwrap_or(KEEP_IMAGES)))?;
            report::show(form, &json!({ "freed": freed }), &format!("{} freed\n", ByteSize::from_bytes(freed)))
        }
    };
    Ok(report::printed(printed, 0))
}

fn build(images: &Images, args: &BuildImageArgs) -> Result<VmImage> {
    let recipes = Recipes {
        from: args.from.clone(),
        tiny: args.tiny,
        packages: args.package.clone(),
        kernel_package: args.kernel_package.clone(),
        kernel: args.kernel.clone(),
        modules: args.module.clone(),
        max_size: args.max_size,
    };
    let progress = Arc::new(Progress::new());
    let shown = Arc::clone(&progress);
    let name = args.name.as_deref().unwrap_or(DEFAULT_IMAGE);
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let built = block_on(images.build(name, existing, &recipes, Arc::new(move |step| shown.report(step))));
    progress.finish();
    built
}

fn built(image: &VmImage, form: Form) -> std::io::Result<()> {
    let size = image.size.map_or_else(String::new, |bytes| format!(", {}", ByteSize::from_bytes(bytes)));
    let text = format!(
        "image {0} ({1}{size}) is ready; use it: cofferdam run --level vm --image {0} ...\n",
        image.name,
        one_line(&image.about)
    );
    report::show(form, &json!(image), &text)
}

fn table(all: &VmImages) -> String {
    let mut out = String::new();
    for image in &all.images {
        let size = image.size.map_or_else(|| "unusable".to_owned(), |bytes| ByteSize::from_bytes(bytes).to_string());
        let kernel = if image.kernel.is_empty() { "own kernel" } else { &image.kernel };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:<16} {} {:>10} {} {}",
            image.name,
            image.key.get(..12).unwrap_or(&image.key),
            size,
            one_line(kernel),
            one_line(&image.about)
        );
    }
    for image in &all.unnamed {
        let kernel = if image.kernel.is_empty() { "own kernel" } else { &image.kernel };
        let key = image.key.get(..12).unwrap_or(&image.key);
        let _ = writeln!(
            out,
            "{:<16} {key} {:>10} {}",
            "(no name)",
            ByteSize::from_bytes(image.size).to_string(),
            one_line(kernel)
        );
    }
    let bytes = all.nameless.iter().map(|part| part.size).sum();
    if !all.nameless.is_empty() {
        let count = all.nameless.len();
        let _ = writeln!(
            out,
            "{count} more without a name, {}; cofferdam vm prune removes them",
            ByteSize::from_bytes(bytes)
        );
    }
    if out.is_empty() { "no images; build one with cofferdam vm build-image\n".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam::registry::vms::{NamelessPart, UnnamedImage};

    #[test]
    fn image_table_shows_names_and_sizes() {
        let image = |name: &str, size| VmImage {
            name: name.to_owned(),
            about: "Debian packages (tiny)".to_owned(),
            key: "0123456789abcdef".to_owned(),
            kernel: "6.1.0-x".to_owned(),
            size,
        };
        let nameless = vec![NamelessPart { kind: "root".to_owned(), key: "x".to_owned(), size: 5 << 20 }];
        let images = vec![image("default", Some(200 << 20)), image("mine", None)];
        let unnamed =
            vec![UnnamedImage { key: "fedcba98765432".to_owned(), kernel: "6.1.0-x".to_owned(), size: 20 << 20 }];
        insta::assert_snapshot!(table(&VmImages { directory: "/x".into(), images, unnamed, nameless }), @r"
        default          0123456789ab    200 MiB 6.1.0-x Debian packages (tiny)
        mine             0123456789ab   unusable 6.1.0-x Debian packages (tiny)
        (no name)        fedcba987654     20 MiB 6.1.0-x
        1 more without a name, 5 MiB; cofferdam vm prune removes them
        ");
        let none = VmImages { directory: "/x".into(), images: Vec::new(), unnamed: Vec::new(), nameless: Vec::new() };
        assert!(table(&none).contains("build-image"));
    }
}
