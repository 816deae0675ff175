//! Tests of engines that are missing, deny access, are too old, or do not answer.

use std::path::Path;
use std::time::Duration;

use cofferdam_container::{Deadlines, doctor};
use cofferdam_contract::{Error, ErrorKind, FindingState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use crate::support::{self, backend_at};

/// The answer of a socket to each request; `None` for no answer.
type Answers = fn(&str) -> Option<String>;

fn serve(socket: &Path, answers: Answers) {
    let listener = UnixListener::bind(socket).expect("a socket");
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut piece = [0; 1024];
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut piece).await {
                        Ok(0) | Err(_) => return,
                        Ok(count) => request.extend_from_slice(&piece[..count]),
                    }
                }
                let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
                match answers(&line) {
                    Some(body) => {
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                    }
                    None => std::future::pending().await,
                }
            });
        }
    });
}

fn quick() -> Deadlines {
    let short = Duration::from_millis(300);
    Deadlines { connect: short, call: short, change: short, stall: short }
}

async fn failure(socket: &Path) -> Error {
    let backend = backend_at(socket, |config| config.deadlines = quick());
    // Far longer than any deadline, to detect hangs.
    let outcome = tokio::time::timeout(Duration::from_secs(20), backend.images()).await;
    outcome.expect("an answer in time").expect_err("there is no engine")
}

async fn served(answers: Answers) -> Error {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("engine.sock");
    serve(&socket, answers);
    failure(&socket).await
}

fn check(error: &Error, says: &str, remedy: &str) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(error.remedy().is_some_and(|text| text.contains(remedy)), "{:?}", error.remedy());
}

/// Promise (Containers): The error for a missing engine socket has a remedy.
#[tokio::test]
async fn error_for_a_missing_socket_has_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    check(&failure(&directory.path().join("none")).await, "there is no socket", "install and start Docker");
}

#[tokio::test]
async fn error_for_a_socket_without_listener_has_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("engine.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    check(&failure(&socket).await, "no server listens", "systemctl start docker");
}

/// Promise (Containers): The error for an engine socket without access has a remedy.
#[tokio::test]
async fn error_for_a_socket_without_access_has_a_remedy() {
    use std::os::unix::fs::PermissionsExt;
    if rustix::process::geteuid().is_root() {
        println!("SKIP error_for_a_socket_without_access_has_a_remedy: root may open every socket");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("engine.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o000)).unwrap();
    check(&failure(&socket).await, "this user cannot open", "group `docker`");
}

/// Promise (Containers): A socket that another user can replace is not connected to, and the error has a remedy.
#[tokio::test]
async fn a_socket_that_another_user_can_replace_is_not_connected_to() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("below");
    std::fs::create_dir(&below).unwrap();
    let socket = below.join("engine.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let remedy = "run Cofferdam as the user";
    std::fs::set_permissions(&below, PermissionsExt::from_mode(0o777)).unwrap();
    check(&failure(&socket).await, "below' has mode 0777", remedy);
    std::fs::set_permissions(&below, PermissionsExt::from_mode(0o755)).unwrap();
    if rustix::process::geteuid().is_root() {
        for path in [&socket, &below] {
            chown(path, Some(65533), Some(65533)).unwrap();
            check(&failure(&socket).await, "belongs to user 65533", remedy);
        }
    } else {
        println!("SKIP a_socket_that_another_user_can_replace_is_not_connected_to: only root can give files away");
    }
    let contacted = listener.accept();
    assert!(matches!(&contacted, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "{contacted:?}");
    // The group of a socket and its own mode do not matter, nor does a directory in which only owners can remove files.
    std::fs::set_permissions(&below, PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&below, Some(0), Some(65533)).unwrap();
        chown(&socket, Some(0), Some(65533)).unwrap();
    }
    check(&failure(&socket).await, "gave no answer", "hangs");
}

/// Promise (Containers): An engine that never answers is an error, not a hang.
#[tokio::test]
async fn silent_engine_causes_no_hang() {
    check(&served(|_| None).await, "gave no answer within 0.3 s", "hangs");
}

#[tokio::test]
async fn engine_that_hangs_after_its_first_answer_causes_no_hang() {
    let answers: Answers =
        |line| line.contains("/version").then(|| r#"{"ApiVersion":"1.41","Version":"1"}"#.to_owned());
    check(&served(answers).await, "gave no answer within 0.3 s", "hangs");
}

/// Promise (Containers): An old engine is refused, and the error names the required version.
#[tokio::test]
async fn old_engine_is_refused_with_the_required_version() {
    let answers: Answers = |_| Some(r#"{"ApiVersion":"1.39","Version":"18.09.1"}"#.to_owned());
    check(&served(answers).await, "has API version 1.39, but 1.40 or newer is required", "Docker 19.03 or newer");
}

#[tokio::test]
async fn server_that_is_not_an_engine_is_refused() {
    check(&served(|_| Some("{}".to_owned())).await, "is not a container engine", "DOCKER_HOST");
    let error = served(|_| Some("<html>\u{1b}[2J</html>".to_owned())).await;
    assert!(error.to_string().chars().all(|c| !c.is_control()), "{error}");
}

#[tokio::test]
async fn doctor_reports_present_and_missing_features() {
    let directory = tempfile::tempdir().unwrap();
    let missing = cofferdam_container::ContainerConfig {
        host: Some(format!("unix://{}", directory.path().join("none").display())),
        ..Default::default()
    };
    let findings = doctor(&missing).await;
    assert_eq!(findings.len(), 1);
    assert!(findings[0].remedy.is_some(), "{findings:?}");
    for engine in support::engines("doctor_reports_present_and_missing_features") {
        let findings = doctor(&engine.config()).await;
        for name in ["engine", "api", "storage", "cgroups", "runtimes", "image"] {
            let found = findings.iter().find(|finding| finding.name == name);
            assert!(found.is_some_and(|found| found.state == FindingState::Ok), "{name}: {findings:?}");
        }
        let unknown = cofferdam_container::ContainerConfig { image: "no/such:image".to_owned(), ..engine.config() };
        let findings = doctor(&unknown).await;
        let image = findings.iter().find(|finding| finding.name == "image").unwrap();
        assert!(image.remedy.as_ref().is_some_and(|remedy| remedy.contains("image build")), "{image:?}");
    }
}

/// Promise (Containers): An unknown runtime is refused, and the error lists the known ones.
#[tokio::test]
async fn an_unknown_runtime_is_refused_with_those_that_there_are() {
    let Some(engine) = support::docker("an_unknown_runtime_is_refused_with_those_that_there_are") else { return };
    let backend = backend_at(&engine.socket, |config| config.runtime = Some("no-such-runtime".to_owned()));
    let error = backend.images().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("runc"), "{error}");
    assert!(error.remedy().is_some());
}
