//! The image store from the command line, with a real registry and with archives.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{WEAKER, cofferdam, json as parsed, outcome};

const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The user `tester` and the bcrypt hash of the password `open sesame`.
pub(super) const HTPASSWD: &str = "tester:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

/// A user's directories.
struct Home {
    temp: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { temp: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn image(&self, words: &[&str]) -> (i32, String, String) {
        outcome(&mut self.command(words))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = cofferdam();
        command.arg("image").args(words).env("XDG_STATE_HOME", self.path("state")).env("HOME", self.temp.path());
        command
    }

    fn list(&self) -> Value {
        let (code, stdout, stderr) = self.image(&["ls", "--json"]);
        assert_eq!(code, 0, "{stderr}");
        parsed(&stdout)
    }

    /// Creates a directory with a root file system.
    fn root(&self) -> PathBuf {
        let root = self.path("root");
        fs::create_dir_all(root.join("bin")).expect("a directory");
        fs::write(root.join("bin/tool"), "tool").expect("a file");
        root
    }
}

/// Promise (Images): Images are imported, listed with size and last use, inspected, removed and pruned.
#[test]
fn images_are_imported_listed_inspected_and_removed() {
    let home = Home::new();
    let (code, stdout, stderr) = home.image(&["ls"]);
    assert_eq!((code, stdout.as_str(), stderr.as_str(), home.path("state").exists()), (0, "", "", false));
    let root = home.root().display().to_string();
    let (code, stdout, stderr) = home.image(&["import", &root, "my/root"]);
    assert_eq!(
        (code, stdout.as_str()),
        (0, "created my/root:latest; use it: cofferdam run --image my/root:latest ...\n"),
        "{stderr}"
    );
    let (code, stdout, _) = home.image(&["import", &root, "other:2", "--json"]);
    assert_eq!((code, &parsed(&stdout)["images"][0]["names"][0]), (0, &json!("other:2")), "{stdout}");
    let listed = home.list();
    let [image] = &listed["images"].as_array().expect("a list")[..] else { panic!("one image: {listed}") };
    assert_eq!(image["names"], json!(["my/root:latest", "other:2"]));
    assert!(image["size"].as_u64() > Some(0) && image["used"].as_u64() > Some(0) && image["in_use"] == false);
    let (_, stdout, _) = home.image(&["list"]);
    assert!(stdout.contains("0 s ago") || stdout.contains(" s ago"), "{stdout}");
    assert!(stdout.contains("my/root:latest other:2") && stdout.contains(" are used"), "{stdout}");
    let digest = image["digest"].as_str().expect("a digest").to_owned();
    let (code, stdout, _) = home.image(&["inspect", &digest[..20], "--json"]);
    assert_eq!((code, &parsed(&stdout)["digest"]), (0, &json!(digest)));
    assert_eq!(parsed(&stdout)["layers"].as_array().map(Vec::len), Some(1));
    let (code, stdout, _) = home.image(&["inspect", "my/root"]);
    assert!(code == 0 && stdout.contains("layer        sha256:"), "{stdout}");
    let (code, stdout, _) = home.image(&["rm", "my/root"]);
    assert!(code == 0 && stdout.contains("removed my/root:latest\nremoved 0 images"), "{stdout}");
    let (code, _, stderr) = home.image(&["rm", "my/root"]);
    assert!(code == 127 && stderr.contains("has no image 'my/root'") && stderr.contains("  try: "), "{code} {stderr}");
    let (code, stdout, _) = home.image(&["prune", "--json"]);
    assert_eq!((code, parsed(&stdout)["images"].as_array().map(Vec::len)), (0, Some(0)));
    let (code, stdout, _) = home.image(&["prune", "--older-than", "0s"]);
    assert!(code == 0 && stdout.contains("removed other:2\nremoved 1 images, freed"), "{stdout}");
    assert_eq!(home.list()["images"], json!([]));
    let (code, _, stderr) = home.image(&["import", "/no/such/directory", "x"]);
    assert!(code == 127 && stderr.contains("/no/such/directory"), "{code} {stderr}");
    let (code, _, stderr) = home.image(&["import", &root, "../x"]);
    assert!(code == 125 && stderr.contains("is not a name of an image"), "{code} {stderr}");
}

/// Returns a layer with one file, and what is not kept of a layer: an owner, set-id bits and a FIFO.
fn layer() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let members = [("tool", 0o755, 0), ("setuid", 0o4755, 0), ("owned", 0o644, 1000)];
    for (name, mode, user) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(mode);
        header.set_uid(user);
        header.set_gid(0);
        tar.append_data(&mut header, name, &b"tool"[..]).expect("a member");
    }
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Fifo);
    header.set_size(0);
    header.set_mode(0o644);
    tar.append_data(&mut header, "pipe", &b""[..]).expect("a member");
    tar.into_inner().expect("a layer")
}

/// The report on [`layer`].
const NOT_KEPT: &str = "owners of 1 files, set-id bits of 1 files, 1 devices or FIFOs";

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", cofferdam_util::sha256::of(bytes))
}

/// Promise (Images): `image load`, `image pull` and `image inspect` report what is not kept of an image.
#[test]
fn images_are_loaded_from_an_archive() {
    let home = Home::new();
    let path = home.path("saved.tar");
    let config = json!({"os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(&layer())]}}).to_string();
    let name = format!("{}.json", &digest(config.as_bytes())["sha256:".len()..]);
    let list = json!([{"Config": name, "RepoTags": ["saved/tool:1"], "Layers": ["1/layer.tar"]}]).to_string();
    let mut tar = tar::Builder::new(fs::File::create(&path).expect("a file"));
    for (name, bytes) in [(&*name, config.as_bytes()), ("1/layer.tar", &layer()), ("manifest.json", list.as_bytes())] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, bytes).expect("a member");
    }
    drop(tar.into_inner().expect("an archive"));
    let path = path.display().to_string();
    let (code, stdout, stderr) = home.image(&["load", &path]);
    assert!(code == 0 && stdout.starts_with("loaded saved/tool:1;"), "{stderr}");
    assert!(stderr.contains(&format!("not kept of its files: {NOT_KEPT}\n")), "{stderr}");
    let (code, stdout, _) = home.image(&["inspect", "saved/tool:1"]);
    assert!(
        code == 0 && stdout.lines().any(|line| line.starts_with("not kept ") && line.ends_with(NOT_KEPT)),
        "{stdout}"
    );
    let (_, stdout, _) = home.image(&["load", &path, "--json"]);
    let expected = json!({"owners": 1, "set_id": 1, "attributes": 0, "special": 1});
    assert_eq!(parsed(&stdout)["images"][0]["dropped"], expected, "{stdout}");
    let (code, _, stderr) = home.image(&["load", &path, "--name", "other"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(home.list()["images"][0]["names"], json!(["other:latest", "saved/tool:1"]));
}

#[test]
fn an_image_that_exceeds_the_limit_in_the_configuration_is_refused() {
    let home = Home::new();
    let root = home.root();
    fs::write(root.join("large"), vec![1; 2 << 20]).expect("a file");
    let config = home.path("config.toml");
    fs::write(&config, "[images]\nmax_size = \"1M\"\n").expect("a file");
    let (root, config) = (root.display().to_string(), config.display().to_string());
    let (code, _, stderr) = home.image(&["import", &root, "x", "--config", &config]);
    assert!(code == 125 && stderr.contains("at most 1 MiB are allowed"), "{code} {stderr}");
    assert!(stderr.contains("`max_size` in `[images]`"), "{stderr}");
    assert_eq!(home.list()["images"], json!([]));
}

/// A registry with passwords and without TLS, which only this host may use.
struct Registry {
    child: Child,
    port: u16,
    _temp: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// Starts a registry that has the image `team/tool:1` with one layer.
    fn start(test: &str) -> Option<Self> {
        if !Path::new("/usr/bin/docker-registry").exists() {
            println!("SKIP {test}: docker-registry is not installed");
            return None;
        }
        let temp = tempfile::tempdir().expect("a directory");
        fill(&temp.path().join("storage"));
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        fs::write(temp.path().join("htpasswd"), HTPASSWD).expect("a file");
        let config = json!({
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": temp.path().join("storage")}},
            "auth": {"htpasswd": {"realm": "test", "path": temp.path().join("htpasswd")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        // JSON is YAML.
        fs::write(temp.path().join("config.yml"), config.to_string()).expect("a file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "docker-registry", "serve"]).arg(temp.path().join("config.yml"));
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a registry");
        let registry = Self { child, port, _temp: temp };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < START_TIMEOUT, "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(registry)
    }
}

/// Writes the files of a registry with one image.
fn fill(storage: &Path) {
    let layer = layer();
    let config = json!({
        "os": "linux", "config": {"Cmd": ["tool"]}, "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    });
    let config = config.to_string().into_bytes();
    let kind = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": kind,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len(),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(&layer), "size": layer.len(),
        }],
    });
    let manifest = manifest.to_string().into_bytes();
    let base = storage.join("docker/registry/v2");
    let put = |path: PathBuf, bytes: &[u8]| {
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, bytes).expect("a file");
    };
    let repository = base.join("repositories/team/tool");
    for (bytes, links) in
        [(&layer, "_layers/sha256"), (&config, "_layers/sha256"), (&manifest, "_manifests/revisions/sha256")]
    {
        let whole = digest(bytes);
        let digits = &whole["sha256:".len()..];
        put(base.join("blobs/sha256").join(&digits[..2]).join(digits).join("data"), bytes);
        put(repository.join(links).join(digits).join("link"), whole.as_bytes());
    }
    put(repository.join("_manifests/tags/1/current/link"), digest(&manifest).as_bytes());
}

/// Pulls an image by a server that has a search path, in place of the one in the store.
fn pull_on_server(home: &Home, name: &str, path: &str) {
    let run = |words: &[&str]| {
        let mut command = cofferdam();
        command.args(words).env("XDG_STATE_HOME", home.path("state")).env("HOME", home.temp.path());
        outcome(command.env("XDG_RUNTIME_DIR", home.temp.path()).env("PATH", path))
    };
    let removed = run(&["image", "rm", name]);
    let started = run(&["serve", "--detach", "--allow-weaker", WEAKER, "--warm", "0"]);
    let pulled = run(&["image", "pull", name, "--on-server"]);
    let stopped = run(&["serve", "stop"]);
    assert_eq!((removed.0, started.0, stopped.0), (0, 0, 0), "{removed:?} {started:?} {stopped:?}");
    assert_eq!(pulled.1, format!("pulled {name}; use it: cofferdam create --image {name} ...\n"), "{}", pulled.2);
    assert!(pulled.2.contains(&format!("not kept of its files: {NOT_KEPT}\n")), "{}", pulled.2);
}

/// Promise (Images): A pull uses the logins of Docker, also those of a credential helper. A server does so for a client.
#[test]
fn an_image_is_pulled_with_the_logins_of_docker() {
    let Some(registry) = Registry::start("an_image_is_pulled_with_the_logins_of_docker") else { return };
    let home = Home::new();
    let host = format!("127.0.0.1:{}", registry.port);
    let name = format!("{host}/team/tool:1");
    let (code, _, stderr) = home.image(&["pull", &name]);
    assert!(code == 125 && stderr.contains("denies access") && stderr.contains("docker login"), "{code} {stderr}");
    // A helper that checks what it is asked.
    let programs = home.path("programs");
    fs::create_dir(&programs).expect("a directory");
    let helper = programs.join("docker-credential-test");
    let script = format!(
        "#!/bin/sh\nread -r host\n[ \"$1 $host\" = \"get {host}\" ] || exit 1\n\
         echo '{{\"Username\": \"tester\", \"Secret\": \"open sesame\"}}'\n"
    );
    fs::write(&helper, script).expect("a file");
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::create_dir(home.path(".docker")).expect("a directory");
    fs::write(home.path(".docker/config.json"), json!({"credHelpers": {&host: "test"}}).to_string()).expect("a file");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let (code, stdout, stderr) = outcome(home.command(&["pull", &name]).env("PATH", &path));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with(&format!("pulled {name};")), "{stdout}");
    assert!(stderr.contains("unpacking layer 1 of 1") && !stderr.contains("sesame"), "{stderr}");
    assert!(stderr.contains(&format!("not kept of its files: {NOT_KEPT}\n")), "{stderr}");
    assert_eq!(home.list()["images"][0]["names"], json!([name]));
    pull_on_server(&home, &name, &path);
    // A password in the file, which is wrong.
    let auth = "dGVzdGVyOndyb25n";
    fs::write(home.path(".docker/config.json"), json!({"auths": {&host: {"auth": auth}}}).to_string()).expect("a file");
    let (code, _, stderr) = home.image(&["pull", &name]);
    assert!(code == 125 && stderr.contains("denies access") && !stderr.contains("wrong"), "{code} {stderr}");
}
