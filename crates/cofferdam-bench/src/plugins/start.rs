//! Times from nothing to the first result.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use cofferdam::plugins::Host;

use super::contestant::Language;
use super::grpc::Grpc;
use super::host::{self, Plugin};
use super::pipe::Pipe;

/// Loads and starts a plugin for its first call.
pub async fn cold(host: &Host, package: &Path, language: &Language) -> Result<Duration> {
    let begun = Instant::now();
    let plugin = Plugin::load(host, package, language.name).await?;
    plugin.call().await?;
    let time = begun.elapsed();
    plugin.unload().await?;
    Ok(time)
}

/// Makes the first call of a plugin that was prepared.
pub async fn warm(host: &Host, package: &Path, language: &Language) -> Result<Duration> {
    let plugin = Plugin::load(host, package, language.name).await?;
    host.prepare(language.name).await?;
    host::ready(host, language.name).await?;
    let begun = Instant::now();
    plugin.call().await?;
    let time = begun.elapsed();
    plugin.unload().await?;
    Ok(time)
}

/// Starts a program that echoes frames, for its first one.
pub async fn pipe(language: &Language, program: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let mut pipe = Pipe::start(language.interpreter, program)?;
    pipe.call().await?;
    Ok(begun.elapsed())
}

/// Starts a server of gRPC for its first call.
pub async fn grpc(socket: &Path) -> Result<Duration> {
    let begun = Instant::now();
    let grpc = Grpc::start(socket).await?;
    grpc.call().await?;
    Ok(begun.elapsed())
}
