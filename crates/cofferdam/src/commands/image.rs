//! `cofferdam image`: pulls, loads, builds, lists and removes images of the image store.

#[cfg(feature = "container")]
mod engine;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam::registry::base::BaseImage;
use cofferdam::registry::stored::{
    self, Added, ImageConfig, Inspected, Listed, PruneOptions, Reference, Removed, StoreError,
};
use cofferdam::registry::{ImageProgress, ImageSettings};
use cofferdam::{ByteSize, Error, ErrorKind, Result};
use cofferdam_image::store::{ImageStore, Progress as Step};
use cofferdam_linux::named::{self, Directory};
use serde_json::{Value, json};

use crate::args::{ImageArgs, ImageCommand};
use crate::progress::Progress;
use crate::report::{self, Form};
use crate::settings::{Environment, setup};
use crate::style::Tone;
use crate::terminal::{ago, one_line};

/// Number of digits of a digest in lists.
const DIGITS: usize = 12;

/// Runs the command. The exit status is 0 on success.
pub fn main(args: &ImageArgs, config: Option<PathBuf>) -> u8 {
    let form = Form::of(args.command.json());
    report::finish(carry_out(args, config, form), form)
}

fn carry_out(args: &ImageArgs, config: Option<PathBuf>, form: Form) -> Result<u8> {
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
        Some(store) => run(&args.command, &store, &setup.images, form, &on_step),
        None => without_store(&args.command, form),
    });
    progress.finish();
    let printed = match result? {
        Output::Text(text) => report::print(&text),
        Output::Document(document) => report::document(&document),
    };
    Ok(report::printed(printed, 0))
}

/// Returns the store. Commands that add no image do not create it.
fn store_for(command: &ImageCommand, settings: &ImageSettings) -> Result<Option<ImageStore>> {
    match command {
        ImageCommand::Pull { .. }
        | ImageCommand::Load { .. }
        | ImageCommand::Import { .. }
        | ImageCommand::Build { .. } => stored::open(settings).map(Some),
        ImageCommand::List { .. }
        | ImageCommand::Rm { .. }
        | ImageCommand::Prune { .. }
        | ImageCommand::Inspect { .. } => stored::existing(settings),
    }
}

/// Returns the result of a command for a user who has no store.
fn without_store(command: &ImageCommand, form: Form) -> Result<Output> {
    match command {
        ImageCommand::Prune { .. } => Ok(removed(&Removed::default(), form)),
        ImageCommand::List { .. } if form == Form::Text => Ok(Output::Text(String::new())),
        ImageCommand::Rm { names, .. } => Err(missing("remove image", names)),
        ImageCommand::Inspect { name, .. } => Err(missing("inspect image", std::slice::from_ref(name))),
        _ => Ok(Output::Document(json!({"images": [], "size": 0}))),
    }
}

fn missing(operation: &'static str, names: &[String]) -> Error {
    let name = names.first().cloned().unwrap_or_default();
    StoreError::NotFound { name }.into_contract(operation)
}

/// The result of a command.
enum Output {
    Text(String),
    Document(Value),
}

fn run(
    command: &ImageCommand,
    store: &ImageStore,
    settings: &ImageSettings,
    form: Form,
    progress: &ImageProgress,
) -> Result<Output> {
    let mut on_step = |step: Step| progress(stored::shown(&step));
    match command {
        ImageCommand::List { .. } => list(store, form),
        ImageCommand::Pull { name, .. } => {
            let name = reference(name)?;
            let options = stored::registry_options(settings, &name)?;
            let added = store.pull(&name, &options, &mut on_step).map_err(failed("pull image"))?;
            Ok(show(&[added], "pulled", form))
        }
        ImageCommand::Load { source, name, .. } => {
            let name = name.as_deref().map(reference).transpose()?;
            let added = store.load(source, name.as_ref(), &mut on_step).map_err(failed("load image"))?;
            Ok(show(&added, "loaded", form))
        }
        ImageCommand::Import { source, name, .. } => {
            let added = import(store, source, &reference(name)?, &mut on_step)?;
            Ok(show(&[added], "created", form))
        }
        ImageCommand::Build { name, tiny, package, .. } => {
            let base = BaseImage { tiny: *tiny, packages: package.clone() };
            let (added, notes) = stored::build(store, &base, &reference(name)?, progress)?;
            for note in notes {
                report::remark(&note, Tone::Warning);
            }
            Ok(show(&[added], "created", form))
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
            Ok(removed(&all, form))
        }
        ImageCommand::Prune { older_than, .. } => {
            let found = store.prune(PruneOptions { unused_for: *older_than }).map_err(failed("prune images"))?;
            Ok(removed(&found, form))
        }
        ImageCommand::Inspect { name, .. } => {
            Ok(inspected(&store.inspect(name).map_err(failed("inspect image"))?, form))
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

fn show(added: &[Added], verb: &str, form: Form) -> Output {
    let names = |added: &Added| added.names.iter().map(ToString::to_string).collect::<Vec<_>>();
    match form {
        Form::Text => {
            let mut text = String::new();
            for added in added {
                for name in names(added) {
                    // Writing to a string cannot fail.
                    let _ = writeln!(text, "{verb} {name}; use it: cofferdam run --image {name} ...");
                }
                if let Some(dropped) = added.dropped.filter(|dropped| verb != "created" && !dropped.is_empty()) {
                    report::remark(&format!("not kept of its files: {dropped}"), Tone::Warning);
                }
            }
            Output::Text(text)
        }
        _ => {
            let images = added.iter().map(
                |added| json!({"names": names(added), "digest": added.manifest.to_string(), "dropped": added.dropped}),
            );
            Output::Document(json!({"images": images.collect::<Vec<_>>()}))
        }
    }
}

fn list(store: &ImageStore, form: Form) -> Result<Output> {
    let images = store.list().map_err(failed("list images"))?;
    let size = store.size().map_err(failed("list images"))?;
    let max = store.options().max_bytes;
    if form != Form::Text {
        let rows: Vec<Value> = images.iter().map(document).collect();
        let directory = store.root().display().to_string();
        return Ok(Output::Document(json!({"images": rows, "size": size, "max_size": max, "directory": directory})));
    }
    let mut text = String::new();
    for image in &images {
        let digest = &image.manifest.digits()[..DIGITS];
        let size = ByteSize::from_bytes(image.bytes).to_string();
        let used = if image.in_use { "in use".to_owned() } else { ago(image.used.elapsed().unwrap_or_default()) };
        let _ = writeln!(text, "{digest}  {size:>8}  {used:>9}  {}", one_line(&names(image)));
    }
    if !images.is_empty() {
        let (size, max) = (ByteSize::from_bytes(size), ByteSize::from_bytes(max));
        let _ = writeln!(text, "{size} of {max} are used");
    }
    Ok(Output::Text(text))
}

fn names(image: &Listed) -> String {
    if image.names.is_empty() {
        return "(no name)".to_owned();
    }
    image.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn document(image: &Listed) -> Value {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({
        "names": image.names.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "digest": image.manifest.to_string(),
        "size": image.bytes,
        "stored": seconds(image.stored),
        "used": seconds(image.used),
        "in_use": image.in_use,
    })
}

fn inspected(image: &Inspected, form: Form) -> Output {
    let mut whole = document(&image.listed);
    let settings = &image.settings;
    whole["config_digest"] = json!(image.config.to_string());
    whole["config"] = json!({
        "env": settings.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "user": settings.user,
        "working_dir": settings.working_dir,
        "entrypoint": settings.entrypoint,
        "cmd": settings.cmd,
        "labels": settings.labels,
    });
    let layers = image.layers.iter().map(
        |layer| json!({"digest": layer.blob.to_string(), "contents": layer.contents.to_string(), "size": layer.size}),
    );
    whole["layers"] = layers.collect();
    whole["dropped"] = json!(image.dropped);
    if form != Form::Text {
        return Output::Document(whole);
    }
    let mut text = String::new();
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12} {}", one_line(value));
    };
    row("names", &names(&image.listed));
    row("digest", &image.listed.manifest.to_string());
    row("id", &image.config.to_string());
    row("size", &ByteSize::from_bytes(image.listed.bytes).to_string());
    row("user", &settings.user);
    row("directory", &settings.working_dir);
    row("entrypoint", &settings.entrypoint.join(" "));
    row("command", &settings.cmd.join(" "));
    for (name, value) in &settings.env {
        row("variable", &format!("{name}={value}"));
    }
    for (name, value) in &settings.labels {
        row("label", &format!("{name}={value}"));
    }
    if let Some(dropped) = image.dropped.filter(|dropped| !dropped.is_empty()) {
        row("not kept", &dropped.to_string());
    }
    for layer in &image.layers {
        row("layer", &format!("{}  {}", layer.contents, ByteSize::from_bytes(layer.size)));
    }
    Output::Text(text)
}

fn removed(removed: &Removed, form: Form) -> Output {
    let names: Vec<String> = removed.names.iter().map(ToString::to_string).collect();
    let images: Vec<String> = removed.images.iter().map(ToString::to_string).collect();
    if form != Form::Text {
        return Output::Document(json!({
            "names": names, "images": images, "freed": removed.freed, "deferred": removed.is_deferred,
        }));
    }
    let mut text = String::new();
    for name in &names {
        let _ = writeln!(text, "removed {name}");
    }
    let _ = writeln!(text, "removed {} images, freed {}", images.len(), ByteSize::from_bytes(removed.freed));
    if removed.is_deferred {
        let _ = writeln!(text, "another process adds an image; the next removal frees the rest");
    }
    Output::Text(text)
}
