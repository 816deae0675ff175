//! Tests of container sandboxes, from the inside and from the outside.

use std::time::Duration;

use bollard::query_parameters::InspectContainerOptions;
use cofferdam_container::{ContainerBackend, ContainerConfig, ContainerSnapshot};
use cofferdam_contract::{
    Access, Backend, ByteSize, Completed, ErrorKind, ExecRequest, LimitKind, Limits, Protection, ProtectionState,
    RootFs, Sandbox, SandboxPath, Snapshot, Spec, TenantId, Workspace,
};

use crate::own::OwnEngine;
use crate::support::{self, TestEngine};

async fn shell(sandbox: &dyn Sandbox, line: &str) -> Completed {
    sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.unwrap()
}

fn text(done: &Completed) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn limited(change: impl FnOnce(&mut Limits)) -> Spec {
    let mut limits = Limits::default();
    change(&mut limits);
    support::spec().limits(limits).build().unwrap()
}

/// Promise (Containers): Every protection of a container is measured from inside, and none is weaker than required.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_protection_is_measured_and_nothing_is_weaker() {
    for engine in support::engines("every_protection_is_measured_and_nothing_is_weaker") {
        let spec = limited(|limits| limits.cpus = Some("0.5".parse().unwrap()));
        let sandbox = engine.backend().create(spec).await.unwrap();
        let posture = sandbox.posture();
        for protection in Protection::ALL {
            let row = posture.get(*protection).unwrap_or_else(|| panic!("{}: no row for {protection}", engine.name));
            let may_be_left_out = matches!(protection, Protection::UserNamespace | Protection::CgroupNamespace);
            let fine = match row.state {
                ProtectionState::Enforced => true,
                ProtectionState::NotAsked => may_be_left_out,
                ProtectionState::WeakerThanRequired => *protection == Protection::Memory && support::weaker_memory(),
                ProtectionState::Absent => false,
            };
            assert!(fine, "{}: {row:?}", engine.name);
            assert!(
                row.probed || *protection == Protection::WallTime || row.state == ProtectionState::NotAsked,
                "{row:?}"
            );
        }
        sandbox.close().await.unwrap();
    }
}

/// Promise (Containers): The engine receives a request for every isolation boundary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_receives_a_request_for_every_isolation_boundary() {
    for engine in support::engines("engine_receives_a_request_for_every_isolation_boundary") {
        let spec =
            support::spec().tenant(TenantId::new("acme").unwrap()).label("odd\n\"key", "\u{1b}[2J").build().unwrap();
        let sandbox = engine.backend().create(spec).await.unwrap();
        let docker = engine.negotiated().await;
        let found = docker.inspect_container(sandbox.id().as_str(), None::<InspectContainerOptions>).await.unwrap();
        let config = found.host_config.unwrap();
        assert_eq!(config.privileged, Some(false));
        assert_eq!(config.readonly_rootfs, Some(true));
        assert_eq!(config.network_mode.as_deref(), Some("none"));
        assert!(config.cap_add.unwrap_or_default().is_empty());
        assert!(config.devices.unwrap_or_default().is_empty());
        assert!(config.binds.unwrap_or_default().iter().all(|bind| bind.contains("cofferdam-agent-")));
        assert_eq!(config.memory, Some(512 << 20));
        assert_eq!(config.pids_limit, Some(257));
        let labels = found.config.unwrap().labels.unwrap();
        assert_eq!(labels["dev.cofferdam.tenant"], "acme");
        assert_eq!(labels["dev.cofferdam.label.odd\n\"key"], "\u{1b}[2J");
        assert_eq!(labels["dev.cofferdam.owner.process"], std::process::id().to_string());
        sandbox.close().await.unwrap();
        assert!(docker.inspect_container(sandbox.id().as_str(), None::<InspectContainerOptions>).await.is_err());
    }
}

/// Promise (Containers): A guest in a container does not reach the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_cannot_reach_the_engine() {
    for engine in support::engines("guest_cannot_reach_the_engine") {
        let sandbox = engine.backend().create(support::spec().build().unwrap()).await.unwrap();
        // Process 1 exposes neither its environment, nor its program's file, nor a descriptor of the host.
        for line in [
            "cat /proc/1/environ",
            "ls -l /proc/1/fd/",
            "cat /proc/1/root/etc/hostname",
            "cat /proc/1/mem",
            "echo x > /proc/1/exe",
            "echo x > /.cofferdam/init",
            "rm /.cofferdam/init",
            "echo x > /proc/sys/kernel/core_pattern",
            "mount -t tmpfs x /mnt",
            "unshare -U true",
            "for fd in /proc/self/fd/*; do readlink $fd; done | grep -v -e '^pipe:' -e '^/dev/null' -e '^/proc/'",
            "test -S /var/run/docker.sock || test -S /run/docker.sock",
            "grep -q . /proc/keys",
            "cat /proc/kcore | head -c 1 | grep -q .",
        ] {
            let done = shell(&*sandbox, line).await;
            assert!(!done.exit.success(), "{}: {line}: {}", engine.name, text(&done));
        }
        // Process 1 cannot be killed from inside.
        shell(&*sandbox, "kill -9 1; kill -15 1; kill -9 -1").await;
        assert_eq!(shell(&*sandbox, "id -u").await.exit.code, 0, "{}", engine.name);
        sandbox.close().await.unwrap();
    }
}

/// Promise (Containers): A kill for memory and a timeout are reported as different limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_kill_and_timeout_are_different_limits() {
    for engine in support::engines("memory_kill_and_timeout_are_different_limits") {
        let backend = engine.backend();
        let spec = limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(32)));
        let hungry = "x=a; while :; do x=$x$x; done";
        let sandbox = backend.create(spec).await.unwrap();
        let done = shell(&*sandbox, hungry).await;
        assert_eq!(done.exit.killed_by, Some(LimitKind::Memory), "{}: {:?}", engine.name, done.exit);
        assert!(!done.exit.timed_out);
        // The kernel does not kill the agent, so the sandbox still works.
        assert_eq!(text(&shell(&*sandbox, "echo still here").await), "still here\n");
        let request = ExecRequest::argv(["sleep", "100"]).timeout(Duration::from_secs(1)).build().unwrap();
        let done = sandbox.exec(request).await.unwrap();
        assert!(done.exit.timed_out && done.exit.killed_by.is_none(), "{}: {:?}", engine.name, done.exit);
        sandbox.close().await.unwrap();
    }
}

/// Promise (Containers): A spec names an image by its name, id or digest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_named_by_name_id_or_digest() {
    for engine in support::engines("an_image_is_named_by_name_id_or_digest") {
        let backend = engine.backend();
        let all = backend.images().await.unwrap();
        let image = support::image();
        let known =
            all.iter().find(|found| found.names.iter().any(|name| name.ends_with(&image))).expect("the image of tests");
        let id = format!("sha256:{}", known.id.trim_start_matches("sha256:"));
        let named =
            |reference: &str| support::spec().root(RootFs::Image { reference: reference.to_owned() }).build().unwrap();
        for reference in [image.clone(), id.clone()].into_iter().chain(known.digests.first().cloned()) {
            backend
                .create(named(&reference))
                .await
                .unwrap_or_else(|error| panic!("{reference}: {error}"))
                .close()
                .await
                .unwrap();
        }
        // The prefix of an id is not a name, although engines accept it as one.
        let short = &id["sha256:".len()..][..12];
        assert_eq!(backend.create(named(short)).await.unwrap_err().kind(), ErrorKind::NotFound, "{short}");
        let other = format!("{image}@sha256:{}", "0".repeat(64)).replace(":latest@", "@");
        assert_eq!(backend.create(named(&other)).await.unwrap_err().kind(), ErrorKind::NotFound, "{other}");
        let config = ContainerConfig { images: Some(vec!["team/*".to_owned()]), ..engine.config() };
        let strict = ContainerBackend::new(&config).unwrap();
        assert_eq!(strict.create(named(&id)).await.unwrap_err().kind(), ErrorKind::Denied);
        strict
            .create(support::spec().build().unwrap())
            .await
            .expect("the policy always allows the default image")
            .close()
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_image_is_pulled_where_that_is_allowed() {
    let test = "a_missing_image_is_pulled_where_that_is_allowed";
    let Some(registry) = support::registry(test) else { return };
    let Some(engine) = support::docker(test) else { return };
    let config = ContainerConfig { pull: cofferdam_container::PullPolicy::Missing, ..engine.config() };
    let missing =
        support::spec().root(RootFs::Image { reference: format!("{registry}/none/such:v1") }).build().unwrap();
    let error = ContainerBackend::new(&config).unwrap().create(missing.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, "pull"), "{error}");
    assert_eq!(engine.backend().create(missing).await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Creates a directory of an ordinary user, even if the test runs as root.
fn directory_of_a_user() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory.path(), Some(4711), Some(4712)).unwrap();
    }
    directory
}

/// Promise (Containers): A container with a mounted host directory runs as the owner of the directory, and never as
/// root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounted_directory_is_used_as_its_owner_and_never_as_root() {
    use std::os::unix::fs::MetadataExt;
    for engine in support::engines("mounted_directory_is_used_as_its_owner_and_never_as_root") {
        let backend = engine.backend();
        let directory = directory_of_a_user();
        let below = directory.path().join("file");
        let mounted = |path: &std::path::Path, access| {
            let limits = Limits { disk: None, ..Limits::default() };
            support::spec()
                .limits(limits)
                .workspace(Workspace::HostDir { path: path.to_owned(), access })
                .build()
                .unwrap()
        };
        let sandbox = backend.create(mounted(directory.path(), Access::ReadWrite)).await.unwrap();
        let done = shell(&*sandbox, "echo by the guest > file").await;
        assert!(done.exit.success(), "{}: {done:?}", engine.name);
        let (above, created) = (std::fs::metadata(directory.path()).unwrap(), std::fs::metadata(&below).unwrap());
        assert_eq!((created.uid(), created.gid()), (above.uid(), above.gid()));
        let error = sandbox.snapshot().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        sandbox.close().await.unwrap();
        let sandbox = backend.create(mounted(directory.path(), Access::ReadOnly)).await.unwrap();
        assert_eq!(text(&shell(&*sandbox, "cat file").await), "by the guest\n");
        assert!(!shell(&*sandbox, "echo x > file").await.exit.success());
        sandbox.close().await.unwrap();
        if rustix::process::geteuid().is_root() {
            let roots = tempfile::tempdir().unwrap();
            let error = backend.create(mounted(roots.path(), Access::ReadWrite)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.remedy().is_some_and(|remedy| remedy.contains("chown")), "{error:?}");
        }
        let error = backend.create(mounted(&directory.path().join("none"), Access::ReadOnly)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let mut spec = support::spec()
            .workspace(Workspace::HostDir { path: directory.path().to_owned(), access: Access::ReadWrite });
        assert_eq!(
            backend.create(spec.clone().build().unwrap()).await.unwrap_err().kind(),
            ErrorKind::WeakerThanRequired
        );
        spec = spec.allow_weaker(Protection::Disk);
        backend.create(spec.build().unwrap()).await.expect("it is accepted").close().await.unwrap();
    }
}

/// Podman ignores the runtime in a request. It has the one that its service was started with.
///
/// Promise (Containers): Podman with another runtime than the requested one refuses the sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn podman_refuses_a_runtime_other_than_its_own() {
    let Some(engine) = support::podman("podman_refuses_a_runtime_other_than_its_own") else { return };
    let default = engine.client().info().await.unwrap().default_runtime.unwrap_or_default();
    let other = if default.ends_with("runc") { "crun" } else { "runc" };
    let error = with_runtime(&engine, other).create(support::spec().build().unwrap()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("--runtime")), "{error:?}");
}

/// With runc, Podman creates a workspace that belongs to root.
///
/// Promise (Containers): A sandbox can write its workspace on Podman with runc.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workspace_is_writable_on_podman_with_runc() {
    let Some(own) = OwnEngine::start_podman("workspace_is_writable_on_podman_with_runc", "2g", "runc").await else {
        return;
    };
    let default = own.engine.client().info().await.unwrap().default_runtime.unwrap_or_default();
    assert!(default.ends_with("runc"), "{default}");
    let sandbox = with_runtime(&own.engine, "runc").create(support::spec().build().unwrap()).await.unwrap();
    assert_eq!(text(&shell(&*sandbox, "echo written > file && cat file").await), "written\n");
    sandbox.close().await.unwrap();
}

fn with_runtime(engine: &TestEngine, runtime: &str) -> ContainerBackend {
    support::backend_at(&engine.socket, |config| {
        (config.image, config.runtime) = (support::image(), Some(runtime.to_owned()));
    })
}

/// Promise (Containers): Another engine restores a container snapshot from its file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_file_restores_on_another_engine() {
    let engines = support::engines("snapshot_file_restores_on_another_engine");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("layer.tar");
    for from in &engines {
        let origin = from.backend().create(support::spec().build().unwrap()).await.unwrap();
        let fill =
            "mkdir -p a/b && echo deep > a/b/file && ln -s a/b/file link && chmod 751 a && echo x > /tmp/not-captured";
        assert!(shell(&*origin, fill).await.exit.success());
        let snapshot = origin.snapshot().await.unwrap();
        let taken = ContainerSnapshot::of(&snapshot).unwrap();
        taken.save(&path).await.unwrap();
        let digest = taken.digest().to_owned();
        origin.close().await.unwrap();
        for to in &engines {
            let loaded = ContainerSnapshot::load(&path, Some(&digest)).await.unwrap();
            let snapshot = Snapshot::from(loaded);
            let backend = to.backend();
            let (one, two) = tokio::join!(
                backend.restore(snapshot.clone(), support::spec().build().unwrap()),
                backend.restore(snapshot.clone(), support::spec().build().unwrap())
            );
            let (one, two) = (one.unwrap(), two.unwrap());
            assert_eq!(text(&shell(&*one, "cat link; stat -c %a a; ls /tmp | wc -l").await), "deep\n751\n0\n");
            shell(&*one, "echo changed > a/b/file").await;
            assert_eq!(text(&shell(&*two, "cat link").await), "deep\n", "forks are independent");
            let again = two.snapshot().await.unwrap();
            assert_eq!(ContainerSnapshot::of(&again).unwrap().digest(), digest, "the same files, the same digest");
            one.close().await.unwrap();
            two.close().await.unwrap();
        }
    }
}

/// Promise (Containers): A file that is not a snapshot is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_snapshot_restores_nothing() {
    for engine in support::engines("a_file_that_is_no_snapshot_restores_nothing") {
        let before = engine.census().await;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("layer.tar");
        let mut hostile = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        hostile.append_link(&mut header, "workspace/out", "/tmp").unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        hostile.append_data(&mut header, "workspace/out/escaped", &b"x"[..]).unwrap();
        for bytes in [b"no tar at all, but long enough".repeat(100), hostile.into_inner().unwrap(), vec![0; 100]] {
            std::fs::write(&path, bytes).unwrap();
            let loaded = ContainerSnapshot::load(&path, None).await.unwrap();
            let error = engine.backend().restore(loaded.into(), support::spec().build().unwrap()).await.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Conflict | ErrorKind::PathEscape),
                "{error}"
            );
        }
        let left = support::left(&engine, &before).await;
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_container_takes_the_requested_limits() {
    for engine in support::engines("prepared_container_takes_the_requested_limits") {
        let backend = engine.backend();
        let tighter = limited(|limits| {
            limits.memory = Some(ByteSize::from_mebibytes(64));
            limits.pids = Some(5);
        });
        let warm = backend.prepare(support::spec().build().unwrap()).await.unwrap();
        if !warm.is_compatible(&tighter) {
            println!("SKIP prepared_container_takes_the_requested_limits: {} cannot change bounds", engine.name);
            warm.close().await.unwrap();
            continue;
        }
        let sandbox = warm.claim(tighter).await.unwrap();
        let row = sandbox.posture().get(Protection::Memory).unwrap();
        assert!(row.probed && row.mechanism.contains(&(64u64 << 20).to_string()), "{row:?}");
        let row = sandbox.posture().get(Protection::Processes).unwrap();
        assert!(row.mechanism.contains("pids.max 6"), "{row:?}");
        let done = shell(&*sandbox, "for n in 1 2 3 4 5 6 7 8; do sleep 5 & done; wait").await;
        assert!(done.exit.limits_hit.contains(&LimitKind::Pids), "{:?}", done.exit);
        sandbox.close().await.unwrap();
    }
}

/// Pauses for longer than the agent's silence timeout. The agent must not exit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_pause_ends_nothing() {
    let Some(engine) = support::docker("a_long_pause_ends_nothing") else { return };
    let sandbox = engine.backend().create(support::spec().build().unwrap()).await.unwrap();
    let path = SandboxPath::new("file").unwrap();
    sandbox.write_bytes(&path, "kept").await.unwrap();
    sandbox.pause().await.unwrap();
    tokio::time::sleep(Duration::from_secs(75)).await;
    sandbox.resume().await.unwrap();
    assert_eq!(text(&shell(&*sandbox, "cat file").await), "kept");
    sandbox.close().await.unwrap();
}
