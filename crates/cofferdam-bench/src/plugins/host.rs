//! Plugins in process sandboxes, through the host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cofferdam::plugins::{CallOptions, Host, HostConfig, LoadOptions, LocalConfig, LocalExtensions, Mode, StreamItem};
use serde_json::json;
use tokio::task::JoinSet;

use super::contestant::Language;

/// The time for the end of all plugins.
const DRAIN: Duration = Duration::from_secs(30);

/// Opens a host with its state below `directory`. Its log has no reader.
pub fn open(directory: &Path) -> Result<Host> {
    // The sandbox's user reads the plugins.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    let extensions = Arc::new(LocalExtensions::new(LocalConfig::default())?);
    let state = directory.join("state");
    let config = HostConfig {
        protected: Vec::new(),
        state,
        key: None,
        mode: Mode::Production,
        tenant: None,
        sink: Arc::new(|_| {}),
        traces: None,
        extensions,
    };
    Ok(Host::open(config)?)
}

/// Ends all plugins of a host.
pub async fn close(host: Host) {
    host.drain(Some(DRAIN)).await;
}

/// Writes a package. `manifest` has the runtime and the entry.
pub fn package(directory: &Path, name: &str, manifest: &str, (file, text): (&str, &str)) -> Result<PathBuf> {
    let package = directory.join(name);
    fs::create_dir_all(&package)?;
    fs::write(package.join(file), text)?;
    let head = format!("manifest = 1\nname = \"{name}\"\nversion = \"1.0.0\"\n{manifest}\n");
    fs::write(package.join("plugin.toml"), head)?;
    Ok(package)
}

/// Writes the package of a language.
pub fn package_of(directory: &Path, language: &Language) -> Result<PathBuf> {
    let manifest = format!("{}\n[methods.echo]\n[methods.stream]\n", language.manifest);
    package(directory, language.name, &manifest, language.plugin)
}

/// Waits until a plugin is ready.
pub async fn ready(host: &Host, name: &str) -> Result<()> {
    for _ in 0..10_000 {
        let plugins = host.plugins();
        let plugin = plugins.iter().find(|plugin| plugin.name == name).context("the plugin is not loaded")?;
        ensure!(plugin.last_crash.is_none(), "the plugin crashed: {:?}", plugin.last_crash);
        if plugin.state == "ready" {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    anyhow::bail!("the plugin {name} did not become ready")
}

/// A loaded plugin.
#[derive(Clone)]
pub struct Plugin {
    host: Host,
    name: &'static str,
}

impl Plugin {
    /// Loads the plugin of a language.
    pub async fn load(host: &Host, package: &Path, name: &'static str) -> Result<Self> {
        host.load(package, LoadOptions::default()).await?;
        Ok(Self { host: host.clone(), name })
    }

    /// Ends and removes the plugin.
    pub async fn unload(self) -> Result<()> {
        Ok(self.host.unload(self.name, DRAIN).await?)
    }

    /// Makes one call.
    pub async fn call(&self) -> Result<()> {
        let input = json!({"text": "hello"});
        let output = self.host.call(self.name, "echo", input.clone(), CallOptions::default()).result().await?;
        ensure!(output == input, "the plugin returned another value");
        Ok(())
    }

    /// Makes calls in `at_once` tasks.
    pub async fn calls(&self, calls: usize, at_once: usize) -> Result<Duration> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..at_once {
            let plugin = self.clone();
            tasks.spawn(async move {
                for _ in 0..calls / at_once {
                    plugin.call().await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(begun.elapsed())
    }

    /// Receives a stream.
    pub async fn stream(&self, items: usize, size: usize) -> Result<Duration> {
        let begun = Instant::now();
        let options = CallOptions { stream: true, ..CallOptions::default() };
        let mut call = self.host.call(self.name, "stream", json!({"count": items, "size": size}), options);
        let mut received = 0;
        while let Some(item) = call.next().await {
            let StreamItem::Item(item) = item else { continue };
            ensure!(item.as_str().map(str::len) == Some(size), "an item has another size");
            received += 1;
        }
        call.result().await?;
        ensure!(received == items, "the stream had {received} items");
        Ok(begun.elapsed())
    }
}
