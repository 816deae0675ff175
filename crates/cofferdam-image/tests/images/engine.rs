//! Images that a real container engine built and saved.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;

use super::support::Fixture;

/// The image that the tests' engine has.
const BASE: &str = "cofferdam/base:latest";
const DOCKERFILE: &str = r#"
FROM cofferdam/base:latest
RUN mkdir -p /made/inner && echo made > /made/file && echo gone > /made/gone && chmod 4755 /made/file
RUN rm /made/gone && rm -r /made/inner && mkdir /made/inner && echo new > /made/inner/new && rm /etc/passwd
ENV GREETING="hello world"
WORKDIR /srv
USER 1234:1234
ENTRYPOINT ["sh", "-c"]
CMD ["cat /made/file"]
LABEL purpose=test
"#;

fn docker(socket: &str, words: &[&str]) -> String {
    let mut command = Command::new("docker");
    command.args(words).env("DOCKER_HOST", format!("unix://{socket}")).env("DOCKER_BUILDKIT", "0");
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Promise (Images): An image of `docker build` and `docker save` is loaded with its settings, layers and whiteouts, and
/// goes back to the engine as the same image.
#[test]
fn an_image_of_docker_comes_and_goes_back() {
    let test = "an_image_of_docker_comes_and_goes_back";
    let Ok(socket) = std::env::var("COFFERDAM_TEST_DOCKER") else {
        println!("SKIP {test}: COFFERDAM_TEST_DOCKER names no engine");
        return;
    };
    if Command::new("docker").arg("--version").output().is_err() {
        println!("SKIP {test}: docker is not installed");
        return;
    }
    let name = format!("cofferdam-test/built-{}:1", std::process::id());
    let temp = tempfile::tempdir().unwrap();
    let path = |name: &str| temp.path().join(name).display().to_string();
    fs::create_dir(path("context")).unwrap();
    fs::write(path("context/Dockerfile"), DOCKERFILE).unwrap();
    assert!(docker(&socket, &["images", "-q", BASE]).len() > 10, "the engine has {BASE}");
    docker(&socket, &["build", "--network", "none", "-t", &name, &path("context")]);
    let id = docker(&socket, &["image", "inspect", "--format", "{{.Id}}", &name]);
    docker(&socket, &["save", "-o", &path("saved.tar"), &name]);

    let fixture = Fixture::new();
    let added = fixture.store.load(Path::new(&path("saved.tar")), None, &mut |_| ()).unwrap();
    assert_eq!(added[0].names[0].to_string(), name);
    let found = fixture.store.resolve(&name).unwrap();
    assert_eq!(fixture.store.inspect(&name).unwrap().config.to_string(), id);
    let config = &found.config;
    assert!(config.env.contains(&("GREETING".to_owned(), "hello world".to_owned())), "{:?}", config.env);
    assert_eq!((config.user.as_str(), config.working_dir.as_str()), ("1234:1234", "/srv"));
    assert_eq!((config.entrypoint.join(" "), config.cmd.join(" ")), ("sh -c".into(), "cat /made/file".into()));
    assert_eq!(config.labels["purpose"], "test");
    let whiteout = |layer: &Path, name: &str| {
        fs::symlink_metadata(layer.join(name)).is_ok_and(|found| found.file_type().is_char_device())
    };
    let layer = found.layers.iter().find(|layer| layer.join("made/file").exists()).unwrap();
    assert_eq!(fs::read_to_string(layer.join("made/file")).unwrap(), "made\n");
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(layer.join("made/file")).unwrap());
    assert_eq!(mode & 0o7777, 0o755);
    let removed = found.layers.iter().find(|layer| whiteout(layer, "made/gone")).unwrap();
    assert!(whiteout(removed, "etc/passwd"));
    assert_eq!(fs::read_to_string(removed.join("made/inner/new")).unwrap(), "new\n");
    assert!(found.layers[0].join("usr/bin/python3").symlink_metadata().is_ok());

    docker(&socket, &["rmi", "--force", &name]);
    let back = format!("cofferdam-test/back-{}:1", std::process::id());
    let file = fs::File::create(path("back.tar")).unwrap();
    fixture.store.save(&name, Some(&back.parse().unwrap()), file).unwrap();
    docker(&socket, &["load", "-i", &path("back.tar")]);
    assert_eq!(docker(&socket, &["image", "inspect", "--format", "{{.Id}}", &back]), id);
    docker(&socket, &["rmi", "--force", &back]);
}
