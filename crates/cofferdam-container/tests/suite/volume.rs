//! Tests of the agent's volume: it is filled once, verified and repaired.

use std::collections::HashMap;
use std::sync::Arc;

use bollard::models::{ContainerCreateBody, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveVolumeOptionsBuilder, UploadToContainerOptionsBuilder,
};
use cofferdam_contract::{Backend, ErrorKind, ExecRequest};

use crate::own::OwnEngine;
use crate::support::{self, TestEngine};

async fn name(engine: &TestEngine) -> String {
    let all = engine.negotiated().await.list_volumes(Some(ListVolumesOptionsBuilder::default().build())).await.unwrap();
    let mut names = all.volumes.unwrap_or_default().into_iter().map(|volume| volume.name);
    names.find(|name| name.starts_with("cofferdam-agent-")).expect("a volume with the agent")
}

/// Replaces the agent in the volume, like a killed filler or a bad disk.
async fn spoil(engine: &TestEngine, volume: &str, contents: &[u8]) {
    let docker = engine.negotiated().await;
    let body = ContainerCreateBody {
        image: Some(crate::support::image()),
        cmd: Some(vec!["true".to_owned()]),
        host_config: Some(HostConfig { binds: Some(vec![format!("{volume}:/v")]), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    };
    let created = docker.create_container(Some(CreateContainerOptionsBuilder::default().build()), body).await.unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_size(contents.len() as u64);
    header.set_mode(0o555);
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_data(&mut header, "init", contents).unwrap();
    let options = UploadToContainerOptionsBuilder::default().path("/v").build();
    let body = bollard::body_full(tar.into_inner().unwrap().into());
    docker.upload_to_container(&created.id, Some(options), body).await.unwrap();
    docker
        .remove_container(&created.id, Some(RemoveContainerOptionsBuilder::default().force(true).build()))
        .await
        .unwrap();
}

async fn works(engine: &TestEngine) {
    let (done, _) = engine
        .backend()
        .run(support::spec().build().unwrap(), ExecRequest::argv(["true"]).build().unwrap())
        .await
        .expect("it runs");
    assert!(done.exit.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_volume_is_filled_once_repaired_and_never_trusted() {
    let test = "agent_volume_is_filled_once_repaired_and_never_trusted";
    let Some(own) = OwnEngine::start(test, "2g").await else { return };
    let engine = own.engine.clone();
    // Several at once, in independent backends.
    let all: Vec<_> = (0..4)
        .map(|_| {
            let engine = engine.clone();
            tokio::spawn(async move { works(&engine).await })
        })
        .collect();
    for one in all {
        one.await.expect("each works");
    }
    let volume = name(&engine).await;
    let whole = std::fs::read(own.disk().join("volumes").join(&volume).join("_data/init")).unwrap();
    // Truncated, another program, empty, and with one changed byte.
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for contents in [&whole[..whole.len() / 2], b"#!/bin/sh\nsleep 1000\n", b"", &flipped] {
        spoil(&engine, &volume, contents).await;
        works(&engine).await;
        let now = std::fs::read(own.disk().join("volumes").join(&volume).join("_data/init")).unwrap();
        assert!(now == whole, "it was filled again");
    }
    // Damaged while a backend considers it valid: the missing greeting causes a refill.
    let backend = Arc::new(engine.backend());
    let request = || ExecRequest::argv(["true"]).build().unwrap();
    backend.run(support::spec().build().unwrap(), request()).await.unwrap();
    spoil(&engine, &volume, b"\x7fELF").await;
    backend.run(support::spec().build().unwrap(), request()).await.expect("it was filled again");
    // Deleted: created again.
    let docker = engine.negotiated().await;
    docker.remove_volume(&volume, Some(RemoveVolumeOptionsBuilder::default().force(true).build())).await.unwrap();
    works(&engine).await;
    backend.run(support::spec().build().unwrap(), request()).await.expect("it is there again");
    // A volume of another program with its name: refused.
    docker.remove_volume(&volume, Some(RemoveVolumeOptionsBuilder::default().force(true).build())).await.unwrap();
    let options = HashMap::from([("type", "none"), ("o", "bind"), ("device", "/tmp")]);
    let request = VolumeCreateRequest {
        name: Some(volume.clone()),
        driver_opts: Some(options.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()),
        ..VolumeCreateRequest::default()
    };
    docker.create_volume(request).await.unwrap();
    let error = engine.backend().create(support::spec().build().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.contains(&volume)), "{error:?}");
}

/// Checks concurrent first uses, which find a volume that another process has created but not filled. Podman reports
/// this on attach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_begin_at_once_with_a_new_podman_all_get_their_sandbox() {
    let test = "many_that_begin_at_once_with_a_new_podman_all_get_their_sandbox";
    let Some(own) = OwnEngine::start_podman(test, "2g", "crun").await else { return };
    let docker = own.engine.negotiated().await;
    for _ in 0..3 {
        let all: Vec<_> = (0..4)
            .map(|_| {
                let engine = own.engine.clone();
                tokio::spawn(async move { works(&engine).await })
            })
            .collect();
        for one in all {
            one.await.expect("each works");
        }
        let volume = name(&own.engine).await;
        docker.remove_volume(&volume, Some(RemoveVolumeOptionsBuilder::default().force(true).build())).await.unwrap();
    }
    // A volume whose filler was killed after creating it.
    works(&own.engine).await;
    let volume = name(&own.engine).await;
    let labels = docker.inspect_volume(&volume).await.unwrap().labels;
    docker.remove_volume(&volume, Some(RemoveVolumeOptionsBuilder::default().force(true).build())).await.unwrap();
    let empty = VolumeCreateRequest { name: Some(volume), labels: Some(labels), ..VolumeCreateRequest::default() };
    docker.create_volume(empty).await.unwrap();
    works(&own.engine).await;
}
