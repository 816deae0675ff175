//! Images: which the engine has, which may be used, and how one comes there.
//!
//! A container is always made from an image's id. A name is turned into an id once for each create, and what was found
//! is held against the name: engines take a short name of hexadecimal digits for the beginning of an id.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::{CreateImageOptionsBuilder, ListImagesOptionsBuilder};
use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Fault, Result};
use cofferdam_linux::named;
use futures_core::Stream;
use tokio::time::{Instant, sleep_until};

use crate::config::{Checked, PullPolicy};
use crate::create::ImageFacts;
use crate::engine::Engine;
use crate::error::{self, Failed, shown};
use crate::labels;
use crate::reference::Reference;
use crate::stream::{self, next};
use crate::tree;

/// More volumes than any image has.
const MAX_VOLUMES: usize = 64;
/// The longest PATH that is taken over from an image.
const MAX_PATH: usize = 4096;

/// What an engine says while it pulls an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullEvent {
    /// The layer that it is about, by the engine's short name; `None` for the image as a whole.
    pub layer: Option<String>,
    /// What is done: `Downloading`, `Extracting`.
    pub status: String,
    /// Bytes done, where the engine tells.
    pub current: Option<u64>,
    /// Bytes in all, where the engine knows.
    pub total: Option<u64>,
}

/// Told what an engine says while it pulls. Called often: it must not block.
#[derive(Clone)]
pub struct PullProgress(Arc<dyn Fn(&PullEvent) + Send + Sync>);

impl PullProgress {
    /// Calls `tell` for each event.
    pub fn new(tell: impl Fn(&PullEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Tells nobody.
    pub fn silent() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for PullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PullProgress")
    }
}

/// An image that the engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its id: `sha256:…`.
    pub id: String,
    /// Its names.
    pub names: Vec<String>,
    /// Its digests in registries: `name@sha256:…`.
    pub digests: Vec<String>,
    /// Bytes.
    pub size: u64,
    /// Whether it was made here from files.
    pub imported: bool,
}

/// What [`crate::DockerBackend::import_image`] made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The new image's id: `sha256:…`.
    pub id: String,
    /// Files that were left out, because an image holds no sockets, fifos and devices. The first twenty.
    pub left_out: Vec<PathBuf>,
    /// How many were left out in all.
    pub left_out_in_all: usize,
}

/// Refuses an image that the policy does not name. The default image was chosen with the policy.
pub(crate) fn allow(config: &Checked, reference: &Reference) -> Result<()> {
    let Some(patterns) = &config.images else { return Ok(()) };
    if *reference == config.image || patterns.iter().any(|pattern| pattern.allows(reference)) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Denied, "create", "the policy does not allow this image")
        .with_context("image", reference.to_string())
        .with_remedy("use an image that it names, or have this one added to it"))
}

/// The default image, if the engine has it. Nothing is pulled.
pub(crate) async fn look_up(engine: &Engine, config: &Checked) -> Result<ImageFacts> {
    let reference = &config.image;
    match find(engine, reference).await? {
        Some(found) => facts(reference, found),
        None => Err(error::no_image("create", reference.as_str(), true)),
    }
}

/// The image that a name means now; pulled, where that is allowed and the engine does not have it.
pub(crate) async fn resolve(
    engine: &Engine,
    config: &Checked,
    reference: &Reference,
    progress: &PullProgress,
) -> Result<ImageFacts> {
    allow(config, reference)?;
    if let Some(found) = find(engine, reference).await? {
        return facts(reference, found);
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
    let id = found.id.filter(|id| !id.is_empty()).ok_or_else(|| bad("the engine knows no id of this image"))?;
    if found.os.as_deref().is_some_and(|os| !os.is_empty() && os != "linux") {
        return Err(bad("this is no image of Linux programs"));
    }
    let config = found.config.unwrap_or_default();
    let volumes = config.volumes.unwrap_or_default();
    if volumes.len() > MAX_VOLUMES {
        return Err(bad("the image wants more than 64 volumes"));
    }
    Ok(ImageFacts { id, volumes, path: config.env.and_then(|env| path_of(&env)) })
}

/// Where an image's programs are, if it says so in a way that means the same for everybody.
fn path_of(env: &[String]) -> Option<String> {
    let path = env.iter().find_map(|variable| variable.strip_prefix("PATH="))?;
    let plain = path.len() <= MAX_PATH
        && path.split(':').all(|part| part.starts_with('/') && !part.contains(|c: char| c.is_control()));
    plain.then(|| path.to_owned())
}

/// Has the engine pull an image.
pub(crate) async fn pull(engine: &Engine, reference: &Reference, progress: &PullProgress) -> Result<()> {
    let (name, version) = reference.to_pull().ok_or_else(|| {
        Error::invalid("pull", "an image's id is known to no registry").with_remedy("name it by name and tag or digest")
    })?;
    let options = CreateImageOptionsBuilder::default().from_image(name).tag(version).build();
    let mut answers = Box::pin(engine.docker.create_image(Some(options), None, None));
    follow(engine, &mut answers, |info| (progress.0)(&event(info))).await.map_err(|failed| {
        let words = failed.message();
        let doing = format!("pull the image {reference}");
        if failed.is_away() {
            return engine.error("pull", &doing, failed);
        }
        Error::new(ErrorKind::Unavailable, "pull", format!("cannot {doing}: {words}"))
            .with_fault(Fault::Host)
            .with_context("image", reference.to_string())
            .with_remedy(
                "is the name right, and can the engine reach the registry? A private one wants `docker login` and `docker \
                 pull`; without a registry, make the image from a directory: `cofferdam image import DIR NAME`",
            )
    })
}

fn event(info: &CreateImageInfo) -> PullEvent {
    let bytes = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
    let detail = info.progress_detail.as_ref();
    PullEvent {
        layer: info.id.as_deref().map(shown),
        status: shown(info.status.as_deref().unwrap_or_default()),
        current: bytes(detail.and_then(|detail| detail.current)),
        total: bytes(detail.and_then(|detail| detail.total)),
    }
}

/// Reads an engine's answers to their end, as long as anything moves.
async fn follow<S>(engine: &Engine, answers: &mut S, mut tell: impl FnMut(&CreateImageInfo)) -> Result<(), Failed>
where
    S: Stream<Item = Result<CreateImageInfo, bollard::errors::Error>> + Unpin,
{
    let stall = engine.deadlines.stall;
    loop {
        match tokio::time::timeout(stall, next(answers)).await {
            Ok(Some(Ok(info))) => tell(&info),
            Ok(Some(Err(answer))) => return Err(Failed::Answered(answer)),
            Ok(None) => return Ok(()),
            Err(_) => return Err(Failed::Silent(stall)),
        }
    }
}

/// The images that the engine has, those with names first.
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

/// Makes an image from a directory or a tar.
pub(crate) async fn import(engine: &Engine, source: &Path, name: &Reference) -> Result<Imported> {
    let (repository, tag) = name.to_make().ok_or_else(|| {
        Error::invalid("import", "a new image needs a name, and may have a tag").with_context("image", name.to_string())
    })?;
    let from = named::read(source)
        .map_err(|error| error::named("import", "cannot open what the image is made from", source, error))?;
    let (pieces, body) = stream::channel();
    let reading = tokio::task::spawn_blocking(move || read(from, pieces));
    let moved = Arc::new(AtomicU64::new(0));
    let body = Counted { body, moved: Arc::clone(&moved) };
    let changes = format!("LABEL {}=true", labels::IMPORTED);
    // Podman does not look at a tag of its own.
    let name_and_tag = format!("{repository}:{tag}");
    let options = CreateImageOptionsBuilder::default().from_src("-").repo(&name_and_tag).changes(vec![changes]).build();
    let answers = engine.docker.create_image(Some(options), Some(bollard::body_try_stream(body)), None);
    let taken = taken_in(engine, answers, &moved).await;
    let read = reading.await.unwrap_or_else(|_| Err(io::Error::other("the reader ended")));
    // What could not be read is the cause of what the engine then says.
    let walked = match (read, &taken) {
        (Err(error), Err(_)) if error.kind() == io::ErrorKind::BrokenPipe => tree::Walked::default(),
        (Err(error), _) => {
            return Err(error::os("import", "cannot read what the image is made from", error)
                .with_context("path", source.display().to_string()));
        }
        (Ok(walked), _) => walked,
    };
    taken.map_err(|failed| engine.error("import", "make the image", failed))?;
    let made = find(engine, name).await?;
    let id = made.and_then(|made| made.id).ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "import", "the engine took the files, but has no such image")
    })?;
    Ok(Imported { id, left_out: walked.left_out, left_out_in_all: walked.left_out_in_all })
}

fn read(mut source: std::fs::File, mut pieces: stream::Pieces) -> io::Result<tree::Walked> {
    let outcome = source.metadata().and_then(|meta| match meta.is_dir() {
        true => tree::write(&source, &mut pieces),
        false => io::copy(&mut source, &mut pieces).map(|_| tree::Walked::default()),
    });
    match outcome {
        Ok(walked) => pieces.finish(Ok(())).map(|()| walked),
        Err(error) => pieces.finish(Err(error)).map(|()| tree::Walked::default()),
    }
}

/// Reads the engine's answers to an import, which come when it has everything: until then the bytes must move.
async fn taken_in(
    engine: &Engine,
    answers: impl Stream<Item = Result<CreateImageInfo, bollard::errors::Error>>,
    moved: &AtomicU64,
) -> Result<(), Failed> {
    let mut answers = Box::pin(answers);
    let stall = engine.deadlines.stall;
    let (mut seen, mut until) = (0, Instant::now() + stall);
    loop {
        tokio::select! {
            answer = next(&mut answers) => match answer {
                Some(Ok(_)) => until = Instant::now() + stall,
                Some(Err(answer)) => return Err(Failed::Answered(answer)),
                None => return Ok(()),
            },
            () = sleep_until(until) => {
                let now = moved.load(Ordering::Relaxed);
                if now == seen {
                    return Err(Failed::Silent(stall));
                }
                (seen, until) = (now, Instant::now() + stall);
            }
        }
    }
}

/// A body that says how far it was taken.
struct Counted {
    body: stream::Body,
    moved: Arc<AtomicU64>,
}

impl Stream for Counted {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.moved.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.body).poll_next(context)
    }
}
