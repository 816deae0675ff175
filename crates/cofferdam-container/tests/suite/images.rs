//! Tests of listing, importing, pulling and refusing images.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use bollard::query_parameters::RemoveImageOptionsBuilder;
use cofferdam_container::{ContainerBackend, ContainerConfig, PullProgress};
use cofferdam_contract::ErrorKind;
use parking_lot::Mutex;

use crate::support::{self, TestEngine, unique};

/// An image with a shell, `cat`, `env` and `rm` of this host, and a file of its own.
pub(crate) struct Small {
    pub name: String,
}

impl Small {
    pub(crate) async fn create(engine: &TestEngine) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, contents: &[u8]| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        for program in ["sh", "cat", "env", "rm"] {
            let path = std::fs::canonicalize(Path::new("/bin").join(program)).unwrap();
            put(&format!("bin/{program}"), &std::fs::read(&path).unwrap());
            let listed = std::process::Command::new("ldd").arg(&path).output().unwrap().stdout;
            for library in String::from_utf8_lossy(&listed).split_whitespace().filter(|word| word.starts_with('/')) {
                put(&library[1..], &std::fs::read(library).unwrap());
            }
        }
        put("of-the-image", b"by the test");
        let name = format!("cofferdam-test/{}:v1", unique("small"));
        engine.backend().import_image(directory.path(), &name).await.expect("the image is imported");
        Self { name }
    }
}

pub(crate) async fn forget(engine: &TestEngine, name: &str) {
    let options = RemoveImageOptionsBuilder::default().force(true).build();
    let _ = engine.negotiated().await.remove_image(name, Some(options), None).await;
}

fn root(directory: &Path) {
    std::fs::create_dir_all(directory.join("usr/bin")).unwrap();
    std::fs::write(directory.join("usr/bin/program"), "x").unwrap();
    symlink("usr/bin", directory.join("bin")).unwrap();
    symlink("/etc/shadow", directory.join("secret")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, directory.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// Promise (Containers): A directory becomes an image, which the list of images contains.
#[tokio::test]
async fn a_directory_becomes_an_image_and_is_listed() {
    for engine in support::engines("a_directory_becomes_an_image_and_is_listed") {
        let directory = tempfile::tempdir().unwrap();
        root(directory.path());
        let backend = engine.backend();
        let name = format!("cofferdam-test/{}:v1", unique("import"));
        let created = backend.import_image(directory.path(), &name).await.expect("the image is imported");
        assert_eq!(created.left_out, [Path::new("fifo")]);
        let listed = backend.images().await.expect("the images are listed");
        forget(&engine, &name).await;
        let found = listed.iter().find(|image| image.names.iter().any(|known| known.ends_with(&name)));
        let found = found.unwrap_or_else(|| panic!("{}: {listed:?}", engine.name));
        assert!(found.id.ends_with(created.id.trim_start_matches("sha256:")), "{found:?} {created:?}");
        assert!(found.imported, "{}: {found:?}", engine.name);
        let gone = backend.images().await.unwrap();
        assert!(gone.iter().all(|image| image.names.iter().all(|known| !known.ends_with(&name))));
    }
}

#[tokio::test]
async fn tar_becomes_an_image_and_other_files_are_refused() {
    for engine in support::engines("tar_becomes_an_image_and_other_files_are_refused") {
        let directory = tempfile::tempdir().unwrap();
        let backend = engine.backend();
        let file = directory.path().join("root.tar");
        let mut tar = tar::Builder::new(std::fs::File::create(&file).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o755);
        tar.append_data(&mut header, "program", &b"x"[..]).unwrap();
        tar.finish().unwrap();
        let name = format!("cofferdam-test/{}:v1", unique("tar"));
        backend.import_image(&file, &name).await.expect("the image is imported");
        forget(&engine, &name).await;

        let broken = directory.path().join("broken.tar");
        std::fs::write(&broken, vec![b'x'; 4096]).unwrap();
        assert!(backend.import_image(&broken, &name).await.is_err(), "{}", engine.name);
        let error = backend.import_image(&directory.path().join("missing"), &name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        for bad in ["", "A/../b", &format!("x@sha256:{}", "0".repeat(64))] {
            assert_eq!(backend.import_image(&file, bad).await.unwrap_err().kind(), ErrorKind::InvalidInput, "{bad}");
        }
        forget(&engine, &name).await;
    }
}

/// Promise (Containers): The pull of an image from a registry reports its progress.
#[tokio::test]
async fn an_image_comes_from_a_registry_with_its_progress() {
    let test = "an_image_comes_from_a_registry_with_its_progress";
    let Some(registry) = support::registry(test) else { return };
    let Some(engine) = support::docker(test) else { return };
    let docker = engine.negotiated().await;
    let repository = format!("{registry}/{}", unique("pulled"));
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), vec![7; 1 << 20]).unwrap();
    let backend = engine.backend();
    backend.import_image(directory.path(), &format!("{repository}:v1")).await.expect("an image");
    let options = bollard::query_parameters::PushImageOptionsBuilder::default().tag("v1").build();
    let credentials = bollard::auth::DockerCredentials::default();
    let mut pushing = Box::pin(docker.push_image(&repository, Some(options), Some(credentials)));
    while let Some(info) = std::future::poll_fn(|cx| futures_core::Stream::poll_next(pushing.as_mut(), cx)).await {
        info.expect("the image is pushed");
    }
    let pushed = docker.inspect_image(&format!("{repository}:v1")).await.unwrap().repo_digests.unwrap_or_default();
    let digest = pushed.first().expect("a digest").clone();
    for name in [format!("{repository}:v1"), digest.clone()] {
        forget(&engine, &format!("{repository}:v1")).await;
        forget(&engine, &digest).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&seen);
        let progress = PullProgress::new(move |event| events.lock().push(event.clone()));
        backend.pull_image(&name, &progress).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let seen = seen.lock().clone();
        assert!(seen.iter().any(|event| event.layer.is_some()), "{seen:?}");
        assert!(docker.inspect_image(&name).await.is_ok());
    }
    forget(&engine, &format!("{repository}:v1")).await;
    forget(&engine, &digest).await;
    let missing = backend.pull_image(&format!("{repository}:no-such-tag"), &PullProgress::silent()).await.unwrap_err();
    assert!(missing.remedy().is_some_and(|remedy| remedy.contains("image import")), "{missing:?}");
}

/// Promise (Containers): The pull policy decides which images are pulled.
#[tokio::test]
async fn pull_policy_decides_which_images_are_pulled() {
    let config = ContainerConfig {
        images: Some(vec!["team/*".to_owned()]),
        host: Some("unix:///none".to_owned()),
        ..Default::default()
    };
    let backend = ContainerBackend::new(&config).unwrap();
    // It is refused before the engine is contacted.
    let error = backend.pull_image("other/x", &PullProgress::silent()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let error = backend.pull_image("team/x", &PullProgress::silent()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
