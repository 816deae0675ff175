//! The volume with the agent: filled once for each engine and version of the agent, and shared read-only by all
//! sandboxes.
//!
//! ```text
//! missing --create--> empty --upload--> filled --the agent sends its program, compare--> known
//!                                         ^                                                |
//!                                         '--------------- the agent is damaged -----------'
//! ```
//!
//! A process that is killed while filling leaves a part of the agent. So each agent first sends its own program, and
//! the volume is filled again if it differs. Two processes that fill it at once write the same bytes. But an engine
//! deletes the old file before it writes, so a reader may have to retry.

use std::collections::HashMap;
use std::io::Read;
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptions, Volume, VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use cofferdam_contract::{Access, Error, ErrorKind, Result};
use cofferdam_util::sha256;

use crate::engine::Engine;
use crate::error::Failed;
use crate::labels::{self, Owner};
use crate::stream::next;

/// The directory of the agent inside.
pub(crate) const AGENT_DIRECTORY: &str = "/.cofferdam";
/// The name of the agent in [`AGENT_DIRECTORY`].
pub(crate) const AGENT_FILE: &str = "init";
/// The maximum size that a tar adds to a file.
const MAX_TAR_OVERHEAD: usize = 64 << 10;
/// The mode of the agent: readable and executable for all users, writable for none.
const MODE: u32 = 0o555;
/// The highest number of uploads, and the increase of the interval between them.
const MAX_UPLOADS: u32 = 5;
const UPLOAD_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the mount of the agent's volume.
pub(crate) fn agent_mount(volume: &str, access: Access) -> Mount {
    Mount {
        target: Some(AGENT_DIRECTORY.to_owned()),
        source: Some(volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(access == Access::ReadOnly),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

/// The volume of an agent.
#[derive(Debug, Clone)]
pub(crate) struct AgentVolume {
    program: &'static [u8],
    hash: String,
    name: String,
}

impl AgentVolume {
    /// Creates the description of the volume for an agent.
    pub(crate) fn of(program: &'static [u8]) -> Self {
        let hash = sha256::of(program);
        let name = format!("cofferdam-agent-{}", &hash[..32]);
        Self { program, hash, name }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the volume exists, with any contents.
    pub(crate) async fn exists(&self, engine: &Engine) -> Result<bool> {
        match engine.ask(engine.docker.inspect_volume(&self.name)).await {
            Ok(volume) => self.check_kind(&volume).map(|()| true),
            Err(failed) if failed.is_missing() => Ok(false),
            Err(failed) => Err(engine.error("create", "inspect the volume for the agent", failed)),
        }
    }

    /// Creates the volume if it is missing, and fills it with the agent if needed. `image` is any image of the engine.
    pub(crate) async fn ensure(&self, engine: &Engine, image: &str, owner: &Owner) -> Result<()> {
        self.create(engine).await?;
        let helper = self.helper(engine, image, owner).await?;
        let outcome = self.fill_if_needed(engine, &helper).await;
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        // If that fails, the next sweep removes it.
        let _ = engine.change(engine.docker.remove_container(&helper, Some(options))).await;
        outcome
    }

    /// Creates the volume if it is missing.
    async fn create(&self, engine: &Engine) -> Result<()> {
        let request = VolumeCreateRequest {
            name: Some(self.name.clone()),
            driver: Some("local".to_owned()),
            labels: Some(HashMap::from([(labels::AGENT.to_owned(), self.hash.clone())])),
            ..VolumeCreateRequest::default()
        };
        // The engine returns an existing volume.
        let created = engine.change(engine.docker.create_volume(request)).await;
        if let Err(failed) = created
            && failed.status() != Some(409)
            && !(engine.facts.podman && failed.status() == Some(500))
        {
            return Err(engine.error("create", "create the volume for the agent", failed));
        }
        match self.exists(engine).await? {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Unavailable, "create", "the volume for the agent was removed meanwhile"))
            }
        }
    }

    /// Fails if another program created a volume of this name. Its contents could change, or be a host directory.
    fn check_kind(&self, volume: &Volume) -> Result<()> {
        let is_ours = volume.driver == "local"
            && volume.options.is_empty()
            && volume.labels.get(labels::AGENT) == Some(&self.hash);
        if is_ours {
            return Ok(());
        }
        let what = "another program created a volume with the name of the agent's volume";
        Err(self.wrong_volume(ErrorKind::Conflict, what))
    }

    /// Creates the error for a volume that the user must remove.
    fn wrong_volume(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, "create", what)
            .with_context("volume", self.name.clone())
            .with_remedy(format!("remove the volume: `docker volume rm {}`", self.name))
    }

    /// Creates a container with the volume, which is never started.
    async fn helper(&self, engine: &Engine, image: &str, owner: &Owner) -> Result<String> {
        let name = format!("cofferdam-filler-{:016x}", fastrand::u64(..));
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec![format!("{AGENT_DIRECTORY}/{AGENT_FILE}")]),
            labels: Some(labels::of_helper(&name, owner)),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                cap_drop: Some(vec!["ALL".to_owned()]),
                mounts: Some(vec![agent_mount(&self.name, Access::ReadWrite)]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(&name).build();
        let created = engine.change(engine.docker.create_container(Some(options), body)).await;
        created.map(|created| created.id).map_err(|failed| engine.error("create", "prepare the agent", failed))
    }

    async fn fill_if_needed(&self, engine: &Engine, helper: &str) -> Result<()> {
        if self.is_in(engine, helper).await? {
            return Ok(());
        }
        for attempt in 0..MAX_UPLOADS {
            // Another process that fills it at the same time may delete the file for a moment.
            tokio::time::sleep(UPLOAD_INTERVAL * attempt).await;
            let options = UploadToContainerOptionsBuilder::default().path(AGENT_DIRECTORY).build();
            let body = bollard::body_full(self.tar()?);
            let put = engine.change(engine.docker.upload_to_container(helper, Some(options), body)).await;
            put.map_err(|failed| engine.error("create", "upload the agent to its volume", failed))?;
            if self.is_in(engine, helper).await? {
                return Ok(());
            }
        }
        let what = "the agent in the engine's volume differs from the uploaded one";
        Err(self.wrong_volume(ErrorKind::Unavailable, what))
    }

    /// Returns true if a container has the right agent.
    pub(crate) async fn is_in(&self, engine: &Engine, container: &str) -> Result<bool> {
        match self.read(engine, container).await {
            Ok(found) => Ok(found.is_some_and(|found| found == self.program)),
            Err(failed) if failed.is_missing() => Ok(false),
            Err(failed) => Err(engine.error("create", "read the agent back", failed)),
        }
    }

    async fn read(&self, engine: &Engine, container: &str) -> Result<Option<Vec<u8>>, Failed> {
        let path = format!("{AGENT_DIRECTORY}/{AGENT_FILE}");
        let options = DownloadFromContainerOptionsBuilder::default().path(&path).build();
        let mut chunks = Box::pin(engine.docker.download_from_container(container, Some(options)));
        let max = self.program.len() + MAX_TAR_OVERHEAD;
        let bytes = engine.ask(async {
            let mut bytes = Vec::new();
            while let Some(chunk) = next(&mut chunks).await {
                let chunk = chunk?;
                if bytes.len() + chunk.len() > max {
                    return Ok(Vec::new());
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(bytes)
        });
        Ok(only_file(&bytes.await?))
    }

    fn tar(&self) -> Result<Bytes> {
        let mut header = tar::Header::new_gnu();
        header.set_size(self.program.len() as u64);
        header.set_mode(MODE);
        header.set_uid(0);
        header.set_gid(0);
        let mut tar = tar::Builder::new(Vec::new());
        let packed = tar.append_data(&mut header, AGENT_FILE, self.program).and_then(|()| tar.into_inner());
        packed
            .map(Bytes::from)
            .map_err(|error| Error::new(ErrorKind::Internal, "create", "cannot pack").with_source(error))
    }
}

/// Returns the contents of a tar's only file, if it is executable.
fn only_file(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut archive = tar::Archive::new(bytes);
    let mut entries = archive.entries().ok()?;
    let mut entry = entries.next()?.ok()?;
    let header = entry.header();
    if header.entry_type() != tar::EntryType::Regular || header.mode().ok()? & 0o777 != MODE {
        return None;
    }
    let mut contents = Vec::new();
    entry.read_to_end(&mut contents).ok()?;
    drop(entry);
    entries.next().is_none().then_some(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_is_named_by_its_contents() {
        let (one, two) = (AgentVolume::of(b"one"), AgentVolume::of(b"two"));
        assert_ne!(one.name(), two.name());
        assert_eq!(one.name(), AgentVolume::of(b"one").name());
    }

    #[test]
    fn only_the_whole_agent_that_can_be_executed_counts() {
        let agent = AgentVolume::of(b"the agent");
        let tar = agent.tar().unwrap();
        assert_eq!(only_file(&tar).as_deref(), Some(&b"the agent"[..]));
        assert_eq!(only_file(&tar[..515]), None, "cut off");
        assert_eq!(only_file(b""), None);
        let mut other = tar.to_vec();
        // Another mode, with its checksum.
        let mut header = tar::Header::new_gnu();
        header.set_size(9);
        header.set_mode(0o644);
        header.set_path(AGENT_FILE).unwrap();
        header.set_cksum();
        other[..512].copy_from_slice(header.as_bytes());
        assert_eq!(only_file(&other), None);
    }
}
