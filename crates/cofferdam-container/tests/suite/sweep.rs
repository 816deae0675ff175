//! Tests of the sweep: it removes the containers of killed supervisors, and no others.

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};

use crate::support::{self, TestEngine, labels, unique};

fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    format!("{}/{}/{}", read("/etc/machine-id"), read("/proc/sys/kernel/random/boot_id"), namespace.display())
}

fn start_of(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    text.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap()
}

async fn left(engine: &TestEngine, name: &str, labels: std::collections::HashMap<String, String>) -> String {
    let body = ContainerCreateBody {
        image: Some(support::image()),
        cmd: Some(vec!["/bin/true".to_owned()]),
        labels: Some(labels),
        host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    engine.negotiated().await.create_container(Some(options), body).await.expect("a container").id
}

/// Promise (Containers): Containers of dead owners are removed, and those of live owners are not.
#[tokio::test]
async fn only_containers_of_dead_owners_are_removed() {
    for engine in support::engines("only_containers_of_dead_owners_are_removed") {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let (dead, dead_start) = (child.id(), start_of(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let us = std::process::id();
        let (here, start) = (host(), start_of(us));
        let other_host = here.replacen(|c: char| c.is_ascii_hexdigit(), "_", 1);
        let other_namespace = format!("{}/pid:[1]", here.rsplit_once('/').unwrap().0);
        let mut ids = Vec::new();
        for (what, host, process, start, goes) in [
            ("dead", &here, dead, dead_start, true),
            ("reused", &here, us, start - 1, true),
            ("alive", &here, us, start, false),
            ("other-host", &other_host, dead, dead_start, false),
            ("other-namespace", &other_namespace, dead, dead_start, false),
        ] {
            let name = unique(&format!("cofferdam-{what}"));
            ids.push((left(&engine, &name, labels(&name, host, process, start)).await, what, goes));
        }
        // A container of another program, from an image with the labels of a dead owner's container.
        let foreign = unique("foreign");
        ids.push((
            left(&engine, &foreign, labels("cofferdam-x", &here, dead, dead_start)).await,
            "an image's labels",
            false,
        ));
        let mut broken = labels(&unique("cofferdam"), &here, dead, dead_start);
        let name = broken["dev.cofferdam.sandbox"].clone();
        broken.insert("dev.cofferdam.owner.process".to_owned(), "-1; rm".to_owned());
        ids.push((left(&engine, &name, broken).await, "broken labels", false));

        engine.backend().images().await.expect("the first use");

        let docker = engine.negotiated().await;
        for (id, what, goes) in ids {
            let exists = docker.inspect_container(&id, None).await.is_ok();
            let options = RemoveContainerOptionsBuilder::default().force(true).build();
            let _ = docker.remove_container(&id, Some(options)).await;
            assert_eq!(exists, !goes, "{}: {what}", engine.name);
        }
    }
}
