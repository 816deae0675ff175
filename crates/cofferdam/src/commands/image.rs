//! `cofferdam image`: pulls, loads, builds, lists and removes images of the image store.

pub mod documents;
#[cfg(feature = "container")]
mod engine;
#[cfg(feature = "server")]
mod server;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam::registry::base::BaseImage;
use cofferdam::registry::image_store::{self, Added, ImageConfig, PruneOptions, Reference, Removed, StoreError};
use cofferdam::registry::{ImageProgress, ImageSettings};
use cofferdam::{Error, ErrorKind, Result};
use cofferdam_image::store::{ImageStore, Progress as Step};
use cofferdam_linux::named::{self, Directory};
use serde_json::{Value, json};

use crate::args::{ImageArgs, ImageCommand};
use crate::progress::Progress;
use crate::report::{self, Form};
use crate::settings::{Environment, setup};
use crate::style::Tone;

/// Runs the command. The exit status is 0 on success.
pub fn main(args: &ImageArgs, config: Option<PathBuf>) -> u8 {
    let form = Form::of(args.command.json());
    report::finish(carry_out(args, config, form), form)
}

/// Prints the document of a command. `user` is a command that uses an image.
fn print(command: &ImageCommand, document: &Value, form: Form, user: &str) -> u8 {
    let printed = match form {
        Form::Text => report::print(&text::of(command, document, user)),
        _ => report::document(document),
    };
    report::printed(printed, 0)
}

fn carry_out(args: &ImageArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
    #[cfg(feature = "server")]
    if let Some(server) = args.command.server() {
        #[cfg(feature = "container")]
        if args.command.is_for_engine() {
            return Err(Error::invalid("image", "--engine is for the container engine of this host")
                .with_remedy("leave out --engine, or the options of the server"));
        }
        let client = super::server::connect(server)?;
        let document = super::block_on(server::call(&client, &args.command))?;
        return Ok(print(&args.command, &document, form, "create"));
    }
    let variable = |name: &str| std::env::var_os(name);
    let file = crate::config::load(config, variable)?;
    let setup = setup(&Environment::read(variable)?, &file);
    let progress = Arc::new(Progress::new());
    #[cfg(feature = "container")]
    if args.command.is_for_engine() {
        return engine::main(&args.command, &setup.containers, form, &progress);
    }
    let shown = Arc::clone(&progress);
    let on_step: ImageProgress = Arc::new(move |step| shown.report(step));
    let result = store_for(&args.command, &setup.images).and_then(|store| match store {
        Some(store) => run(&args.command, &store, &setup.images, &on_step),
        None => without_store(&args.command),
    });
    progress.finish();
    Ok(print(&args.command, &result?, form, "run"))
}

/// Returns the store. Commands that add no image do not create it.
fn store_for(command: &ImageCommand, settings: &ImageSettings) -> Result<Option<ImageStore>> {
    match command {
        ImageCommand::Pull { .. }
        | ImageCommand::Load { .. }
        | ImageCommand::Import { .. }
        | ImageCommand::Build { .. } => image_store::open(settings).map(Some),
        ImageCommand::List { .. }
        | ImageCommand::Rm { .. }
        | ImageCommand::Prune { .. }
        | ImageCommand::Inspect { .. } => image_store::existing(settings),
    }
}

/// Returns the document of a command for a user who has no store.
fn without_store(command: &ImageCommand) -> Result<Value> {
    match command {
        ImageCommand::Prune { .. } => Ok(documents::removed(&Removed::default())),
        ImageCommand::Rm { names, .. } => Err(missing("remove image", names)),
        ImageCommand::Inspect { name, .. } => Err(missing("inspect image", std::slice::from_ref(name))),
        _ => Ok(json!({"images": [], "size": 0})),
    }
}

fn missing(operation: &'static str, names: &[String]) -> Error {
    let name = names.first().cloned().unwrap_or_default();
    StoreError::NotFound { name }.into_contract(operation)
}

/// Carries out a command with the image store, and returns its document.
fn run(
    command: &ImageCommand,
    store: &ImageStore,
    settings: &ImageSettings,
    progress: &ImageProgress,
) -> Result<Value> {
    let mut on_step = |step: Step| progress(image_store::shown(&step));
    match command {
        ImageCommand::List { .. } => documents::list(store).map_err(failed("list images")),
        ImageCommand::Pull { name, .. } => {
            let name = reference(name)?;
            let options = image_store::registry_options(settings, &name)?;
            let added = store.pull(&name, &options, &mut on_step).map_err(failed("pull image"))?;
            Ok(documents::added(&[added]))
        }
        ImageCommand::Load { source, name, .. } => {
            let name = name.as_deref().map(reference).transpose()?;
            let added = store.load(source, name.as_ref(), &mut on_step).map_err(failed("load image"))?;
            Ok(documents::added(&added))
        }
        ImageCommand::Import { source, name, .. } => {
            Ok(documents::added(&[import(store, source, &reference(name)?, &mut on_step)?]))
        }
        ImageCommand::Build { name, tiny, package, .. } => {
            let base = BaseImage { tiny: *tiny, packages: package.clone() };
            let (added, notes) = image_store::build(store, &base, &reference(name)?, progress)?;
            for note in notes {
                report::remark(&note, Tone::Warning);
            }
            Ok(documents::added(&[added]))
        }
        ImageCommand::Rm { names, .. } => {
            let mut all = Removed::default();
            for name in names {
                let removed = store.remove(name).map_err(failed("remove image"))?;
                all.names.extend(removed.names);
                all.images.extend(removed.images);
                all.freed += removed.freed;
                all.is_deferred |= removed.is_deferred;
            }
            Ok(documents::removed(&all))
        }
        ImageCommand::Prune { older_than, .. } => {
            let found = store.prune(PruneOptions { unused_for: *older_than }).map_err(failed("prune images"))?;
            Ok(documents::removed(&found))
        }
        ImageCommand::Inspect { name, .. } => {
            Ok(documents::inspected(&store.inspect(name).map_err(failed("inspect image"))?))
        }
    }
}

fn failed(operation: &'static str) -> impl Fn(StoreError) -> Error {
    move |error| error.into_contract(operation)
}

fn reference(name: &str) -> Result<Reference> {
    name.parse().map_err(failed("read image name"))
}

fn import(store: &ImageStore, source: &Path, name: &Reference, on_step: &mut dyn FnMut(Step)) -> Result<Added> {
    let opened = |error: std::io::Error| {
        let kind = if error.kind() == std::io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Io };
        Error::new(kind, "import image", "cannot open the source of the image")
            .with_context("path", source.display().to_string())
            .with_source(error)
    };
    let file = named::read(source).map_err(opened)?;
    let config = ImageConfig::default();
    let added = match file.metadata().map_err(opened)?.is_dir() {
        true => {
            let directory = Directory::open(source).map_err(opened)?;
            store.import_directory(&directory, &config, name, on_step)
        }
        false => store.import_tar(file, &config, name, on_step),
    };
    added.map_err(failed("import image"))
}
