//! Programs that are missing, old, replaced, not executable or not jailable; and a lost connection.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::ErrorKind;
use cofferdam_vm::firecracker::{FirecrackerConfig, FirecrackerVmm, Jailer};
use cofferdam_vm::vmm::Vmm;

use crate::driver::{MAX_STATE, SHORT, TIMEOUT, VERSION, can_be_confined, echoes, promptly};
use crate::stage::Stage;

/// Promise (Virtual machines): A connection to a guest agent that breaks before the first message is opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_lost_before_any_byte_is_retried() {
    let test = "connection_lost_before_any_byte_is_retried";
    if !can_be_confined(test) {
        return;
    }
    // The first connection is never confirmed; the second is that of the boot, and the third that after a snapshot.
    for lost in [2, 3] {
        let stage = Stage::new(&format!("lose {lost}"), VERSION);
        let mut started = promptly(stage.driver(TIMEOUT).start(stage.description().0)).await.unwrap();
        if lost == 3 {
            assert!(echoes(&mut started).await);
            started.vm.pause().await.unwrap();
            promptly(started.vm.snapshot(MAX_STATE)).await.unwrap();
            started.vm.resume().await.unwrap();
        }
        // Time for it to be lost.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(echoes(&mut started).await, "connection {lost}: {}", started.vm.console());
        promptly(started.vm.kill()).await.unwrap();
        assert_eq!(stage.left(), Vec::<PathBuf>::new());
    }
}

/// Promise (Virtual machines): A replaced Firecracker program is inspected again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_program_is_probed_again() {
    let stage = Stage::new("", VERSION);
    let driver = stage.driver(TIMEOUT);
    assert_eq!(driver.version().await.unwrap(), VERSION);
    let newer = Stage::new("", "1.17.0");
    std::fs::rename(newer.program(), stage.program()).unwrap();
    assert_eq!(driver.version().await.unwrap(), "1.17.0");
    assert_eq!(driver.origin().await.unwrap().version, "1.17.0");
    std::fs::rename(Stage::new("", "1.15.0").program(), stage.program()).unwrap();
    assert!(driver.version().await.unwrap_err().to_string().contains("not supported"));
    std::fs::remove_file(stage.program()).unwrap();
    assert!(driver.version().await.unwrap_err().to_string().contains("not installed"));
}

/// Promise (Virtual machines): A Firecracker program without permission to execute is an error with that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_without_permission_to_execute_is_reported() {
    let test = "program_without_permission_to_execute_is_reported";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root starts VMMs as another user");
        return;
    }
    if !can_be_confined(test) {
        return;
    }
    let stage = Stage::new("", VERSION);
    std::fs::set_permissions(stage.path().join("bin"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let error = stage.driver(TIMEOUT).start(stage.description().0).await.unwrap_err();
    let error = error.into_contract("create");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.message().contains("may not execute") && error.message().contains("bin/firecracker"), "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("chmod")), "{error:?}");
    assert_eq!(stage.left(), Vec::<PathBuf>::new());
}

/// Promise (Virtual machines): A jailer that cannot be used is refused with a remedy before any resource is created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_does_not_become_ready_is_reported_with_the_reason() {
    if !can_be_confined("a_program_that_does_not_become_ready_is_reported_with_the_reason") {
        return;
    }
    for (fault, says) in [
        ("quit", "exited immediately:"),
        ("quit", "no memory"),
        ("mute", "opened no socket within 20 s"),
        ("reports 1.15.0", "1.15.0 is not supported"),
        ("reports new", "the invalid version 'new'"),
        ("reports 1.16.3", "its program was replaced"),
        ("named vm-2", "another VM answers: 'vm-2'"),
    ] {
        let stage = Stage::new(fault, VERSION);
        let error =
            promptly(stage.driver(SHORT).start(stage.description().0)).await.unwrap_err().into_contract("create");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault}: {error}");
        let has_remedy = error.remedy().is_some() || error.message().ends_with("try again");
        assert!(error.message().contains(says) && has_remedy, "{fault}: {error:?}");
        assert_eq!(stage.left(), Vec::<PathBuf>::new(), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_prints_no_version_is_refused() {
    let stage = Stage::new("", VERSION);
    for (program, says) in [("/bin/false", "it exited with"), ("/bin/true", "no version")] {
        let base = FirecrackerConfig::new(stage.base());
        let driver = FirecrackerVmm::new(FirecrackerConfig { program: Some(program.into()), ..base });
        let error = driver.version().await.unwrap_err().into_contract("create");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains(says) && error.remedy().is_some(), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_jailer_is_refused_before_anything_is_created() {
    let test = "unusable_jailer_is_refused_before_anything_is_created";
    let stage = Stage::new("", VERSION);
    stage.write_jailer("1.16.3", ":");
    let refused = |jailer| {
        let (program, base) = (Some(stage.program()), FirecrackerConfig::new(stage.base()));
        let driver = FirecrackerVmm::new(FirecrackerConfig { program, jailer, ..base });
        let description = stage.description().0;
        async move {
            assert!(driver.version().await.is_err());
            driver.start(description).await.unwrap_err().into_contract("create")
        }
    };
    let is_root = rustix::process::geteuid().is_root();
    let missing = refused(Jailer::At(stage.path().join("none"))).await;
    assert!(missing.message().contains("jailer is not installed"), "{missing}");
    let other = refused(Jailer::Beside).await;
    let says = if is_root { "version 1.16.3, and Firecracker 1.16.2" } else { "needs root" };
    assert!(other.message().contains(says), "{other}");
    for error in [missing, other] {
        assert!(error.kind() == ErrorKind::Unavailable && error.remedy().is_some(), "{error:?}");
    }
    assert!(!stage.base().exists(), "something was created");
    // The jailer's error output is part of the error.
    let Some(stage) = Stage::jailed(test, "", VERSION) else { return };
    stage.write_jailer(VERSION, "fail 'there is no such thing here'");
    let error = stage.driver(TIMEOUT).start(stage.description().0).await.unwrap_err().into_contract("create");
    assert!(error.message().contains("there is no such thing here"), "{error}");
    assert_eq!(stage.left(), Vec::<PathBuf>::new());
}

/// Promise (Virtual machines): Capabilities that Firecracker does not have answer `Unsupported`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_firecracker_features_are_refused() {
    let stage = Stage::new("", VERSION);
    let driver = stage.driver(TIMEOUT);
    let many = cofferdam_vm::vmm::VmDescription { processors: 33, ..stage.description().0 };
    let error = driver.settle(&many).await.unwrap_err().into_contract("create");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("--cpus")), "{error:?}");
    assert!(driver.start(many).await.is_err());
    for (version, says) in
        [("1.16.1", "1.16.2 or newer is needed"), ("1.10.0", "not supported"), ("2.0.0", "not supported")]
    {
        let old = Stage::new("", version);
        let error = old.driver(TIMEOUT).start(old.description().0).await.unwrap_err().into_contract("create");
        assert!(error.message().contains(says) && error.remedy().is_some(), "{error}");
    }
    let none = FirecrackerVmm::new(FirecrackerConfig::new(stage.base()));
    let error = none.start(stage.description().0).await.unwrap_err().into_contract("create");
    assert!(error.message().contains("not installed"), "{error}");
    assert!(error.remedy().is_some_and(|remedy| remedy.contains("COFFERDAM_VM_FIRECRACKER")), "{error:?}");
    assert!(!stage.base().exists(), "refused configurations create nothing");
}
