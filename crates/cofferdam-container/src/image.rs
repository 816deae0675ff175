//! Images of the engine: lookup, allowlist, pull and import.
//!
//! A container is always created from an image's id. Each create resolves the name to an id once, and compares the
//! found image with the name, since engines accept a short name of hexadecimal digits as the prefix of an id.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::{CreateImageOptionsBuilder, ListImagesOptionsBuilder};
use cofferdam_contract::{Error, ErrorKind, Fault, Result};
use cofferdam_linux::named;
use cofferdam_util::text::excerpt;
use futures_core::Stream;

use crate::config::{Checked, PullPolicy};
use crate::create_request::ImageFacts;
use crate::engine::Engine;
use crate::error::{self, Failed};
use crate::labels;
use crate::load::{ImageSource, load};
use crate::progress::{PullEvent, PullProgress};
use crate::reference::Reference;
use crate::stream::{self, next};
use crate::tree;
use crate::upload::{CountingBody, read_answers};

/// The maximum number of volumes of an image.
const MAX_VOLUMES: usize = 64;
/// The maximum length of an image's PATH.
const MAX_PATH: usize = 4096;

/// An image of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The id: `sha256:…`.
    pub id: String,
    /// The names.
    pub names: Vec<String>,
    /// The digests in registries: `name@sha256:…`.
    pub digests: Vec<String>,
    /// The size in bytes.
    pub size: u64,
    /// True if it was imported from files.
    pub imported: bool,
}

/// The result of [`crate::ContainerBackend::import_image`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The new image's id: `sha256:…`.
    pub id: String,
    /// The first twenty skipped files: an image cannot contain sockets, fifos and devices.
    pub left_out: Vec<PathBuf>,
    /// The number of all skipped files.
    pub left_out_in_all: usize,
}

/// Fails if the policy does not allow an image. The default image is always allowed.
pub(crate) fn allow(config: &Checked, reference: &Reference) -> Result<()> {
    let Some(patterns) = &config.images else { return Ok(()) };
    if *reference == config.image || patterns.iter().any(|pattern| pattern.allows(reference)) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Denied, "create", "the policy does not allow this image")
        .with_context("image", reference.to_string())
        .with_remedy("use an allowed image, or add this one to the policy"))
}

/// Returns the default image, if the engine has it. Does not pull.
pub(crate) async fn find_default(engine: &Engine, config: &Checked) -> Result<ImageFacts> {
    let reference = &config.image;
    match find(engine, reference).await? {
        Some(found) => facts(reference, found),
        None => Err(error::no_image("create", reference.as_str(), true)),
    }
}

/// Resolves a name to an image. If the engine does not have it, loads it from another store that has it, or pulls it if
/// the policy allows pulls.
pub(crate) async fn resolve(
    engine: &Engine,
    config: &Checked,
    reference: &Reference,
    progress: &PullProgress,
    source: Option<&Arc<dyn ImageSource>>,
) -> Result<ImageFacts> {
    allow(config, reference)?;
    if let Some(found) = find(engine, reference).await? {
        return facts(reference, found);
    }
    if let Some(source) = source
        && let Some(id) = load(engine, source, reference, progress).await?
    {
        let found = match find(engine, reference).await? {
            Some(found) => Some(found),
            // A digest or an id is no name in the engine.
            None => find(engine, &Reference::parse(&id)?).await?,
        };
        if let Some(found) = found {
            return facts(reference, found);
        }
    }
    if config.pull == PullPolicy::Missing && reference.to_pull().is_some() {
        pull(engine, reference, progress).await?;
        if let Some(found) = find(engine, reference).await? {
            return facts(reference, found);
        }
    }
    Err(error::no_image("create", reference.as_str(), *reference == config.image))
}

async fn find(engine: &Engine, reference: &Reference) -> Result<Option<ImageInspect>> {
    let name = reference.to_pull().map_or_else(
        || reference.as_str().to_owned(),
        |(name, version)| {
            let between = if version.contains(':') { '@' } else { ':' };
            format!("{name}{between}{version}")
        },
    );
    for name in [reference.as_str().to_owned(), name] {
        match engine.ask(engine.docker.inspect_image(&name)).await {
            Ok(found) => {
                let tags = found.repo_tags.as_deref().unwrap_or_default();
                let digests = found.repo_digests.as_deref().unwrap_or_default();
                if reference.is(found.id.as_deref().unwrap_or_default(), tags, digests) {
                    return Ok(Some(found));
                }
            }
            Err(failed) if failed.is_missing() => {}
            Err(failed) => return Err(engine.error("create", "look the image up", failed)),
        }
    }
    Ok(None)
}

fn facts(reference: &Reference, found: ImageInspect) -> Result<ImageFacts> {
    let bad = |what: &str| {
        Error::new(ErrorKind::Unsupported, "create", what)
            .with_context("image", reference.to_string())
            .with_remedy("use another image")
    };
    let id = found.id.filter(|id| !id.is_empty()).ok_or_else(|| bad("the engine reports no id for this image"))?;
    if found.os.as_deref().is_some_and(|os| !os.is_empty() && os != "linux") {
        return Err(bad("the image is not for Linux"));
    }
    let config = found.config.unwrap_or_default();
    let volumes = config.volumes.unwrap_or_default();
    if volumes.len() > MAX_VOLUMES {
        return Err(bad("the image declares more than 64 volumes"));
    }
    Ok(ImageFacts { id, volumes, path: config.env.and_then(|env| path_of(&env)) })
}

/// Returns the PATH of an image, if all its entries are absolute.
fn path_of(env: &[String]) -> Option<String> {
    let path = env.iter().find_map(|variable| variable.strip_prefix("PATH="))?;
    let plain = path.len() <= MAX_PATH
        && path.split(':').all(|part| part.starts_with('/') && !part.contains(|c: char| c.is_control()));
    plain.then(|| path.to_owned())
}

/// Pulls an image.
pub(crate) async fn pull(engine: &Engine, reference: &Reference, progress: &PullProgress) -> Result<()> {
    let (name, version) = reference.to_pull().ok_or_else(|| {
        Error::invalid("pull", "registries do not know image ids").with_remedy("use a name with a tag or digest")
    })?;
    let options = CreateImageOptionsBuilder::default().from_image(name).tag(version).build();
    let mut answers = Box::pin(engine.docker.create_image(Some(options), None, None));
    follow(engine, &mut answers, |info| progress.report(&event(info))).await.map_err(|failed| {
        let message = failed.message();
        let doing = format!("pull the image {reference}");
        if failed.is_away() {
            return engine.error("pull", &doing, failed);
        }
        Error::new(ErrorKind::Unavailable, "pull", format!("cannot {doing}: {message}"))
            .with_fault(Fault::Host)
            .with_context("image", reference.to_string())
            .with_remedy(
                "check the name, and that the engine can reach the registry; for a private one, use `docker login` and \
                 `docker pull`; without a registry, import a directory: `cofferdam image import DIR NAME`",
            )
    })
}

fn event(info: &CreateImageInfo) -> PullEvent {
    let bytes = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
    let detail = info.progress_detail.as_ref();
    PullEvent {
        layer: info.id.as_deref().map(excerpt),
        status: excerpt(info.status.as_deref().unwrap_or_default()),
        current: bytes(detail.and_then(|detail| detail.current)),
        total: bytes(detail.and_then(|detail| detail.total)),
    }
}

/// Reads an engine's answers to their end. Fails if it stalls.
async fn follow<S>(engine: &Engine, answers: &mut S, mut report: impl FnMut(&CreateImageInfo)) -> Result<(), Failed>
where
    S: Stream<Item = Result<CreateImageInfo, bollard::errors::Error>> + Unpin,
{
    let stall = engine.deadlines.stall;
    loop {
        match tokio::time::timeout(stall, next(answers)).await {
            Ok(Some(Ok(info))) => report(&info),
            Ok(Some(Err(answer))) => return Err(Failed::Answered(answer)),
            Ok(None) => return Ok(()),
            Err(_) => return Err(Failed::Silent(stall)),
        }
    }
}

/// Lists the images of the engine, those with names first.
pub(crate) async fn list(engine: &Engine) -> Result<Vec<Image>> {
    let options = ListImagesOptionsBuilder::default().all(false).build();
    let all = engine.ask(engine.docker.list_images(Some(options))).await;
    let all = all.map_err(|failed| engine.error("list", "list the images", failed))?;
    let mut images: Vec<Image> = all
        .into_iter()
        .map(|image| Image {
            imported: image.labels.contains_key(labels::IMPORTED),
            id: image.id,
            names: image.repo_tags.into_iter().filter(|name| !name.starts_with("<none>")).collect(),
            digests: image.repo_digests.into_iter().filter(|name| !name.starts_with("<none>")).collect(),
            size: u64::try_from(image.size).unwrap_or(0),
        })
        .collect();
    images.sort_by(|a, b| (a.names.is_empty(), &a.names, &a.id).cmp(&(b.names.is_empty(), &b.names, &b.id)));
    Ok(images)
}

/// Imports an image from a directory or a tar.
pub(crate) async fn import(engine: &Engine, source: &Path, name: &Reference) -> Result<Imported> {
    let (repository, tag) = name.import_name().ok_or_else(|| {
        Error::invalid("import", "an imported image needs a name, with an optional tag")
            .with_context("image", name.to_string())
    })?;
    let from = named::read(source)
        .map_err(|error| error::named("import", "cannot open the source of the image", source, error))?;
    let (chunks, body) = stream::channel();
    let reading = tokio::task::spawn_blocking(move || read(from, chunks));
    let moved = Arc::new(AtomicU64::new(0));
    let body = CountingBody::new(body, Arc::clone(&moved));
    let changes = format!("LABEL {}=true", labels::IMPORTED);
    // Podman ignores a separate tag.
    let name_and_tag = format!("{repository}:{tag}");
    let options = CreateImageOptionsBuilder::default().from_src("-").repo(&name_and_tag).changes(vec![changes]).build();
    let answers = engine.docker.create_image(Some(options), Some(bollard::body_try_stream(body)), None);
    let answered = read_answers(engine, answers, &moved).await;
    let read = reading.await.unwrap_or_else(|_| Err(io::Error::other("the reader ended")));
    // A failed read of the source is the cause of the engine's error.
    let walked = match (read, &answered) {
        (Err(error), Err(_)) if error.kind() == io::ErrorKind::BrokenPipe => tree::Walked::default(),
        (Err(error), _) => {
            return Err(error::os("import", "cannot read the source of the image", error)
                .with_context("path", source.display().to_string()));
        }
        (Ok(walked), _) => walked,
    };
    answered.map_err(|failed| engine.error("import", "import the image", failed))?;
    let imported = find(engine, name).await?;
    let id = imported.and_then(|image| image.id).ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "import", "the engine accepted the files, but does not have the image")
    })?;
    Ok(Imported { id, left_out: walked.left_out, left_out_in_all: walked.left_out_in_all })
}

fn read(mut source: std::fs::File, mut chunks: stream::ChunkWriter) -> io::Result<tree::Walked> {
    let outcome = source.metadata().and_then(|meta| match meta.is_dir() {
        true => tree::write(&source, &mut chunks),
        false => io::copy(&mut source, &mut chunks).map(|_| tree::Walked::default()),
    });
    match outcome {
        Ok(walked) => chunks.finish(Ok(())).map(|()| walked),
        Err(error) => chunks.finish(Err(error)).map(|()| tree::Walked::default()),
    }
}
