//! Unit tests of requests to the engine.

use std::collections::BTreeSet;

use cofferdam_contract::{Limits, NetworkPolicy, RootFs, TenantId};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::sizes::PAGE;

fn json_of(spec: &Spec, change: impl FnOnce(&mut CreateRequest<'_>, &mut Facts, &mut ImageFacts)) -> Result<Value> {
    let id = SandboxId::new("cofferdam-1");
    let owner = Owner { host: "h".to_owned(), process: 7, start: 9 };
    let (mut facts, mut image) = (
        Facts { api: (1, 41), ..Facts::default() },
        ImageFacts { id: "sha256:ab".to_owned(), volumes: Vec::new(), path: None },
    );
    let mut seen = (facts.clone(), image.clone());
    let base = (facts.clone(), image.clone());
    let mut request = CreateRequest {
        spec,
        id: &id,
        owner: &owner,
        facts: &base.0,
        runtime: None,
        image: &base.1,
        agent_volume: "v",
        user: (4242, 4343),
        host_dir: None,
        mounts: &[],
    };
    change(&mut request, &mut facts, &mut image);
    (seen.0, seen.1) = (facts, image);
    let request = CreateRequest { facts: &seen.0, image: &seen.1, ..request };
    body(&request).map(|body| serde_json::to_value(body).unwrap())
}

fn plain(spec: &Spec) -> Value {
    json_of(spec, |_, _, _| {}).unwrap()
}

#[test]
fn every_isolation_boundary_is_requested() {
    let body = plain(&Spec::default());
    for (path, value) in [
        ("/User", json!("4242:4343")),
        ("/Image", json!("sha256:ab")),
        ("/Entrypoint", json!(["/.cofferdam/init"])),
        ("/Cmd", json!([])),
        ("/OpenStdin", json!(true)),
        ("/StdinOnce", json!(true)),
        ("/Tty", json!(false)),
        ("/Healthcheck/Test", json!(["NONE"])),
        ("/HostConfig/Privileged", json!(false)),
        ("/HostConfig/CapDrop", json!(["ALL"])),
        ("/HostConfig/SecurityOpt", json!(["no-new-privileges"])),
        ("/HostConfig/ReadonlyRootfs", json!(true)),
        ("/HostConfig/NetworkMode", json!("none")),
        ("/HostConfig/IpcMode", json!("private")),
        ("/HostConfig/CgroupnsMode", json!("private")),
        ("/HostConfig/LogConfig/Type", json!("none")),
        ("/HostConfig/AutoRemove", json!(true)),
        ("/HostConfig/Init", json!(false)),
        ("/HostConfig/Memory", json!(512 << 20)),
        ("/HostConfig/MemorySwap", json!(512 << 20)),
        ("/HostConfig/PidsLimit", json!(257)),
        ("/HostConfig/Ulimits/0", json!({ "Name": "core", "Soft": 0, "Hard": 0 })),
        ("/HostConfig/Mounts/0/Target", json!("/.cofferdam")),
        ("/HostConfig/Mounts/0/Type", json!("volume")),
        ("/HostConfig/Mounts/0/ReadOnly", json!(true)),
        ("/Labels/dev.cofferdam.sandbox", json!("cofferdam-1")),
        ("/Labels/dev.cofferdam.tenant", json!("default")),
    ] {
        assert_eq!(body.pointer(path), Some(&value), "{path}");
    }
    assert_eq!(body["HostConfig"]["Mounts"].as_array().unwrap().len(), 1, "no host directory without a request");
}

/// Checks that a request has only known keys: no capability, device, port, host namespace, profile or further path.
#[test]
fn nothing_else_is_requested() {
    let mounted = Workspace::HostDir { path: "/srv/x".into(), access: Access::ReadWrite };
    let limits = Limits { cpus: Some("0.5".parse().unwrap()), ..Limits::default() };
    let spec = Spec::builder().workspace(mounted).limits(limits).label("privileged", "true").build().unwrap();
    let body = json_of(&spec, |plan, _, _| {
        plan.runtime = Some("runsc");
        plan.host_dir = Some(Path::new("/srv/x"));
    })
    .unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let of_container = [
        "Hostname",
        "User",
        "AttachStdin",
        "AttachStdout",
        "AttachStderr",
        "OpenStdin",
        "StdinOnce",
        "Tty",
        "Entrypoint",
        "Cmd",
        "WorkingDir",
        "Healthcheck",
        "Image",
        "Labels",
        "HostConfig",
    ];
    assert_eq!(keys(&body), known(&of_container));
    let of_host = [
        "Privileged",
        "CapDrop",
        "SecurityOpt",
        "ReadonlyRootfs",
        "MaskedPaths",
        "NetworkMode",
        "IpcMode",
        "CgroupnsMode",
        "LogConfig",
        "AutoRemove",
        "Init",
        "Memory",
        "MemorySwap",
        "PidsLimit",
        "CpuPeriod",
        "CpuQuota",
        "Ulimits",
        "Tmpfs",
        "Mounts",
        "Runtime",
    ];
    assert_eq!(keys(&body["HostConfig"]), known(&of_host));
}

#[test]
fn mounted_directory_is_the_only_path_of_the_host() {
    for (access, read_only) in [(Access::ReadOnly, true), (Access::ReadWrite, false)] {
        let mounted = Workspace::HostDir { path: "/srv/x".into(), access };
        let spec = Spec::builder().workspace(mounted).build().unwrap();
        let body = json_of(&spec, |plan, _, _| plan.host_dir = Some(Path::new("/srv/x"))).unwrap();
        let mounts = body["HostConfig"]["Mounts"].as_array().unwrap();
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[1]["Source"], "/srv/x");
        assert_eq!(mounts[1]["Target"], "/workspace");
        assert_eq!(mounts[1]["ReadOnly"], read_only);
        assert_eq!(mounts[1]["BindOptions"]["NonRecursive"], true);
        assert_eq!(mounts[1]["BindOptions"]["Propagation"], "rprivate");
        assert!(body["HostConfig"]["Tmpfs"].get("/workspace").is_none());
    }
}

#[test]
fn an_image_gets_no_volume_of_its_own() {
    let with = |volumes: &[&str]| {
        json_of(&Spec::default(), |_, _, image| image.volumes = volumes.iter().map(|v| (*v).to_owned()).collect())
    };
    let body = with(&["/var/lib/data", "/tmp", "/workspace"]).unwrap();
    let tmpfs = &body["HostConfig"]["Tmpfs"];
    assert!(tmpfs["/var/lib/data"].as_str().unwrap().starts_with("ro,"), "{tmpfs}");
    assert!(tmpfs["/tmp"].as_str().unwrap().starts_with("rw,"), "{tmpfs}");
    for hostile in
        ["/", "", "x", "/a/../b", "/.cofferdam", "/.cofferdam/x", "/workspace/x", "/proc/1", "/dev/x", "/a/", "/a:rw"]
    {
        assert_eq!(with(&[hostile]).unwrap_err().kind(), ErrorKind::InvalidInput, "{hostile:?}");
    }
}

#[test]
fn hostile_labels_stay_labels() {
    let spec = Spec::builder()
        .tenant(TenantId::new("t").unwrap())
        .label("dev.cofferdam.tenant", "other")
        .label("x\"},\"HostConfig\":{\"Privileged\":true", "\n\0\u{1b}")
        .build()
        .unwrap();
    let body = plain(&spec);
    assert_eq!(body["Labels"]["dev.cofferdam.tenant"], "t");
    assert_eq!(body["Labels"]["dev.cofferdam.label.dev.cofferdam.tenant"], "other");
    assert_eq!(body["HostConfig"]["Privileged"], false);
}

#[test]
fn root_user_is_refused() {
    for user in [(0, 1), (1, 0), (0, 0)] {
        assert!(json_of(&Spec::default(), |plan, _, _| plan.user = user).is_err());
    }
}

#[test]
fn unrequested_limits_are_not_set() {
    let limits = Limits { cpu_time: None, memory: None, disk: None, pids: None, cpus: None, ..Limits::default() };
    let spec = Spec::builder().limits(limits).build().unwrap();
    let body = plain(&spec);
    for key in ["Memory", "MemorySwap", "PidsLimit", "CpuQuota"] {
        assert_eq!(body["HostConfig"].get(key), None, "{key}");
    }
    assert!(!body["HostConfig"]["Tmpfs"]["/workspace"].as_str().unwrap().contains("size="));
}

#[test]
fn unsupported_specs_are_refused() {
    let spec = |change: fn(cofferdam_contract::SpecBuilder) -> cofferdam_contract::SpecBuilder| {
        change(Spec::builder()).build().unwrap()
    };
    let hosts =
        |spec: cofferdam_contract::SpecBuilder| spec.network(NetworkPolicy::Allow { hosts: vec!["a".to_owned()] });
    let small = Limits { memory: Some(ByteSize::from_mebibytes(2)), ..Limits::default() };
    let narrow = Limits { disk: Some(ByteSize::from_bytes(4096)), ..Limits::default() };
    for (spec, kind) in [
        (spec(hosts), ErrorKind::Unsupported),
        (spec(|spec| spec.root(RootFs::Directory { path: "/x".into() })), ErrorKind::Unsupported),
        (spec(|spec| spec.attribute("docker.privileged", true)), ErrorKind::InvalidInput),
        (Spec::builder().limits(small).build().unwrap(), ErrorKind::InvalidInput),
        (Spec::builder().limits(narrow).build().unwrap(), ErrorKind::InvalidInput),
    ] {
        let error = Plan::of(&spec).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.remedy().is_some(), "{error}");
    }
    assert!(Plan::of(&spec(|spec| spec.attribute("process.x", true))).is_ok());
}

/// Promise (Network): A container with a policy has no other network than one without, but its own resolver.
#[cfg(feature = "net")]
#[test]
fn a_policy_adds_a_resolver_and_no_network() {
    let of = |hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Spec::builder().network(NetworkPolicy::Allow { hosts }).build().unwrap()
    };
    let mut body = plain(&of(&["a.example:443", "*.b.example:80"]));
    let config = body["HostConfig"].as_object_mut().unwrap();
    assert_eq!(config.remove("Dns"), Some(json!(["127.64.0.1"])));
    let ports = config["Sysctls"].as_object_mut().unwrap().remove("net.ipv4.ip_unprivileged_port_start");
    assert_eq!(ports, Some(json!("0")));
    assert_eq!(body, plain(&Spec::default()));
    for hosts in [&["localhost:80"][..], &["10.0.0.7:5432"], &["a.example"], &["a.example:53"]] {
        let error = Plan::of(&of(hosts)).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.remedy().is_some(), "{hosts:?}: {error}");
    }
}

#[test]
fn a_small_share_of_a_processor_is_the_kernels_smallest() {
    for (text, quota_us) in [("1", 100_000), ("0.5", 50_000), ("16", 1_600_000), ("0.01", 1000)] {
        assert_eq!(quota(text.parse::<Cpus>().unwrap()), quota_us, "{text}");
    }
}

proptest! {
    #[test]
    fn workspace_has_the_limit_and_the_rest_is_bounded(bytes in (64 * PAGE)..1 << 42, mounted: bool) {
        let workspace = match mounted {
            true => Workspace::HostDir { path: "/x".into(), access: Access::ReadWrite },
            false => Workspace::default(),
        };
        let sizes = DirectorySizes::of(Some(ByteSize::from_bytes(bytes)), &workspace);
        let all = [sizes.workspace, sizes.tmp, sizes.shm].map(Option::unwrap);
        let max = if mounted { bytes } else { bytes / 2 };
        prop_assert!(all[1] + all[2] <= max);
        prop_assert!(all.iter().all(|part| part % PAGE == 0));
        prop_assert_eq!(all[0], if mounted { 0 } else { bytes / PAGE * PAGE });
    }
}
