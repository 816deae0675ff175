//! The volume with the agent: filled once for each engine and version of the agent, shared by all sandboxes, read-only
//! for each.
//!
//! ```text
//! missing --create--> empty --put--> filled --agent shows itself, compare--> known
//!                                      ^                                     |
//!                                      '-- the agent is not what it should be --'
//! ```
//!
//! A killed filler leaves less than the whole agent there; so each agent shows its own program before anything else is
//! done, and a difference is filled over. Two that fill at once write the same bytes, but an engine takes away what is there
//! before it writes: whoever looks meanwhile looks again.

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
use cofferdam_contract::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::create::{AGENT_DIRECTORY, AGENT_FILE};
use crate::engine::Engine;
use crate::error::Failed;
use crate::labels::{self, Owner};
use crate::stream::next;

/// What a tar adds to a file, at most.
const ROOM_FOR_HEADERS: usize = 64 << 10;
/// Everybody may read and execute it, nobody write.
const MODE: u32 = 0o555;
/// How often it is put there before the engine is said not to keep it, and what is waited longer from one time to the next.
const FILLS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// The agent as a volume of an engine.
#[derive(Debug, Clone)]
pub(crate) struct AgentVolume {
    program: &'static [u8],
    hash: String,
    name: String,
}

impl AgentVolume {
    /// The volume for this agent.
    pub(crate) fn of(program: &'static [u8]) -> Self {
        let hash = hex(&Sha256::digest(program));
        let name = format!("cofferdam-agent-{}", &hash[..32]);
        Self { program, hash, name }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the volume is there, whatever it holds.
    pub(crate) async fn is_there(&self, engine: &Engine) -> Result<bool> {
        match engine.ask(engine.docker.inspect_volume(&self.name)).await {
            Ok(volume) => self.check_kind(&volume).map(|()| true),
            Err(failed) if failed.is_missing() => Ok(false),
            Err(failed) => Err(engine.error("create", "look at the volume for the agent", failed)),
        }
    }

    /// Sees to it that the volume is there and holds the agent. `image` is any that the engine has.
    pub(crate) async fn ensure(&self, engine: &Engine, image: &str, us: &Owner) -> Result<()> {
        self.make(engine).await?;
        let helper = self.helper(engine, image, us).await?;
        let outcome = self.fill_if_needed(engine, &helper).await;
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        // Should that fail, the next sweep finds it.
        let _ = engine.change(engine.docker.remove_container(&helper, Some(options))).await;
        outcome
    }

    /// Makes the volume if there is none.
    async fn make(&self, engine: &Engine) -> Result<()> {
        let request = VolumeCreateRequest {
            name: Some(self.name.clone()),
            driver: Some("local".to_owned()),
            labels: Some(HashMap::from([(labels::AGENT.to_owned(), self.hash.clone())])),
            ..VolumeCreateRequest::default()
        };
        // Who asks for one that is there gets it.
        let made = engine.change(engine.docker.create_volume(request)).await;
        if let Err(failed) = made
            && failed.status() != Some(409)
            && !(engine.facts.podman && failed.status() == Some(500))
        {
            return Err(engine.error("create", "make the volume for the agent", failed));
        }
        match self.is_there(engine).await? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Unavailable, "create", "the volume for the agent is gone again")),
        }
    }

    /// Refuses a volume of this name that is none of ours: what it holds could change, or be a directory of the host.
    fn check_kind(&self, volume: &Volume) -> Result<()> {
        let is_ours = volume.driver == "local"
            && volume.options.is_empty()
            && volume.labels.get(labels::AGENT) == Some(&self.hash);
        if is_ours {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "create", "somebody else made a volume with the name of ours")
            .with_context("volume", self.name.clone())
            .with_remedy(format!("remove it: `docker volume rm {}`", self.name)))
    }

    /// A container that has the volume and is never started.
    async fn helper(&self, engine: &Engine, image: &str, us: &Owner) -> Result<String> {
        let name = format!("cofferdam-filler-{:016x}", fastrand::u64(..));
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            entrypoint: Some(vec![format!("{AGENT_DIRECTORY}/{AGENT_FILE}")]),
            labels: Some(labels::of_helper(&name, us)),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                cap_drop: Some(vec!["ALL".to_owned()]),
                mounts: Some(vec![Mount {
                    target: Some(AGENT_DIRECTORY.to_owned()),
                    source: Some(self.name.clone()),
                    typ: Some(MountType::VOLUME),
                    read_only: Some(false),
                    volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
                    ..Mount::default()
                }]),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(&name).build();
        let made = engine.change(engine.docker.create_container(Some(options), body)).await;
        made.map(|made| made.id).map_err(|failed| engine.error("create", "prepare the agent", failed))
    }

    async fn fill_if_needed(&self, engine: &Engine, helper: &str) -> Result<()> {
        if self.is_in(engine, helper).await? {
            return Ok(());
        }
        for attempt in 0..FILLS {
            // Whoever fills it at the same time takes away for a moment what was put there.
            tokio::time::sleep(PAUSE * attempt).await;
            let options = UploadToContainerOptionsBuilder::default().path(AGENT_DIRECTORY).build();
            let body = bollard::body_full(self.tar()?);
            let put = engine.change(engine.docker.upload_to_container(helper, Some(options), body)).await;
            put.map_err(|failed| engine.error("create", "put the agent into its volume", failed))?;
            if self.is_in(engine, helper).await? {
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "create", "the engine does not keep the agent as it was given")
            .with_context("volume", self.name.clone())
            .with_remedy(format!("remove the volume: `docker volume rm {}`", self.name)))
    }

    /// Whether the agent that a container sees is the right one.
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
        let mut pieces = Box::pin(engine.docker.download_from_container(container, Some(options)));
        let most = self.program.len() + ROOM_FOR_HEADERS;
        let bytes = engine.ask(async {
            let mut bytes = Vec::new();
            while let Some(piece) = next(&mut pieces).await {
                let piece = piece?;
                if bytes.len() + piece.len() > most {
                    return Ok(Vec::new());
                }
                bytes.extend_from_slice(&piece);
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
        let made = tar.append_data(&mut header, AGENT_FILE, self.program).and_then(|()| tar.into_inner());
        made.map(Bytes::from)
            .map_err(|error| Error::new(ErrorKind::Internal, "create", "cannot pack").with_source(error))
    }
}

/// The contents of a tar's only file, if it is one that can be executed.
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

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_by_what_it_holds() {
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
