//! Images of the image store for runs: whether there is one, its pull, and its entrypoint.

use cofferdam::registry::{self, ImageSettings, PullPolicy};
use cofferdam::{Error, Level, Result};

use crate::args::RunArgs;
use crate::settings::{Environment, Settings};

/// Returns true if the image store has an image, or may pull it.
pub fn is_available(name: &str, pull: Option<PullPolicy>, settings: &ImageSettings) -> bool {
    cfg!(feature = "images") && (may_pull(pull) || store::has(name, settings))
}

#[cfg(feature = "container")]
fn may_pull(pull: Option<PullPolicy>) -> bool {
    pull == Some(PullPolicy::Missing)
}

#[cfg(not(feature = "container"))]
fn may_pull(_: Option<PullPolicy>) -> bool {
    false
}

/// Pulls the image of a process sandbox if it is missing and may be pulled.
pub fn pull_missing(args: &RunArgs, settings: &Settings) -> Result<()> {
    match &args.sandbox.image {
        Some(name) if settings.backend.name == registry::DEFAULT_BACKEND && may_pull(args.sandbox.pull) => {
            store::pull_missing(name, &settings.setup.images)
        }
        _ => Ok(()),
    }
}

/// Adds what an image needs without a container engine to the error of a run that found no engine. A run that needs an
/// engine in any case gets no such advice.
pub fn with_hint(args: &RunArgs, error: Error) -> Error {
    let is_named = |environment: Environment| environment.backend.is_some();
    let needs_engine = args.backend.is_some()
        || args.level.is_some_and(|level| level > Level::Process)
        || Environment::read(|name| std::env::var_os(name)).is_ok_and(is_named);
    match &args.sandbox.image {
        Some(name) if !needs_engine && error.operation() == "connect" && store::lacks(name) => error
            .with_context("image store", "has no such image, so that a container engine was looked for")
            .with_remedy(format!("pull it, and no engine is needed: `cofferdam image pull {name}`, or --pull missing")),
        _ => error,
    }
}

/// Returns the entrypoint of an image with these arguments, or with its own.
pub fn entrypoint(name: Option<&str>, words: &[String], settings: &Settings) -> Result<Vec<String>> {
    let name = name.ok_or_else(|| {
        Error::invalid("run", "--entrypoint needs an image")
            .with_remedy("name it with --image, or leave out --entrypoint")
    })?;
    let (mut argv, own) = store::entrypoint(name, &settings.setup.images)?;
    argv.extend(if words.is_empty() { own } else { words.to_vec() });
    if argv.is_empty() {
        let message = "the image has neither an entrypoint nor a command";
        return Err(Error::invalid("run", message).with_remedy("name a command after --"));
    }
    Ok(argv)
}

#[cfg(feature = "images")]
mod store {
    use std::sync::Arc;

    use cofferdam::Result;
    use cofferdam::registry::image_store::{self, StoreError};
    use cofferdam::registry::{ImageProgress, ImageSettings};

    use crate::progress::Progress;

    pub fn has(name: &str, settings: &ImageSettings) -> bool {
        let store = image_store::existing(settings).ok().flatten();
        store.is_some_and(|store| store.contains(name).unwrap_or(false))
    }

    /// Returns true if it is certain that the store has no such image.
    pub fn lacks(name: &str) -> bool {
        match image_store::existing(&ImageSettings::default()) {
            Ok(Some(store)) => store.contains(name).is_ok_and(|has| !has),
            Ok(None) => true,
            Err(_) => false,
        }
    }

    pub fn pull_missing(name: &str, settings: &ImageSettings) -> Result<()> {
        if has(name, settings) {
            return Ok(());
        }
        let failed = |error: StoreError| error.into_contract("pull image");
        let store = image_store::open(settings)?;
        let reference = name.parse().map_err(failed)?;
        let options = image_store::registry_options(settings, &reference)?;
        let progress = Arc::new(Progress::new());
        let shown = Arc::clone(&progress);
        let on_step: ImageProgress = Arc::new(move |step| shown.report(step));
        let pulled = store.pull(&reference, &options, &mut |step| on_step(image_store::shown(&step)));
        progress.finish();
        pulled.map(drop).map_err(failed)
    }

    /// Returns the entrypoint and the command of an image.
    pub fn entrypoint(name: &str, settings: &ImageSettings) -> Result<(Vec<String>, Vec<String>)> {
        let failed = |error: StoreError| error.into_contract("run");
        let missing = || failed(StoreError::NotFound { name: name.escape_debug().to_string() });
        let store = image_store::existing(settings)?.ok_or_else(missing)?;
        let found = store.resolve(name).map_err(failed)?;
        Ok((found.config.entrypoint, found.config.cmd))
    }
}

#[cfg(not(feature = "images"))]
mod store {
    use cofferdam::registry::{self, ImageSettings};
    use cofferdam::{Error, Result};

    pub fn has(_: &str, _: &ImageSettings) -> bool {
        false
    }

    pub fn lacks(_: &str) -> bool {
        false
    }

    pub fn pull_missing(_: &str, _: &ImageSettings) -> Result<()> {
        Err(unavailable())
    }

    pub fn entrypoint(_: &str, _: &ImageSettings) -> Result<(Vec<String>, Vec<String>)> {
        Err(unavailable())
    }

    fn unavailable() -> Error {
        Error::unsupported("run", "this build has no image store").with_remedy(registry::build_with("images"))
    }
}
