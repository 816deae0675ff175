//! Images of `docker build` and of the Debian builder in a registry with TLS and a password, run at each level.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};

use super::images::HTPASSWD;
use super::vms::with_vms;
use super::{WEAKER, cofferdam, outcome};

const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The image of the Debian builder that the tests' engine has.
const BASE: &str = "cofferdam/base:latest";
const DOCKERFILE: &str = r#"
FROM cofferdam/base:latest
RUN mkdir -p /made/inner && echo made > /made/file && echo gone > /made/gone && chmod 4755 /made/file
RUN rm /made/gone && rm -r /made/inner && mkdir /made/inner && echo new > /made/inner/new
ENV GREETING="hello world"
WORKDIR /srv
USER 1234:1234
"#;

/// A `docker-registry`, which ends with this value.
struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Registry {
    /// Starts one with a configuration, in the network namespace of a process or in this one.
    fn start(config: &Value, file: &Path, within: Option<i32>) -> Self {
        // JSON is YAML.
        fs::write(file, config.to_string()).expect("a file");
        let mut command = match within {
            Some(pid) => {
                let mut command = Command::new("nsenter");
                command.args(["--net", "--target", &pid.to_string(), "setpriv"]);
                command
            }
            None => Command::new("setpriv"),
        };
        command.args(["--pdeathsig", "KILL", "docker-registry", "serve"]).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("a registry"))
    }
}

/// The tests' Docker.
struct Docker {
    socket: String,
    /// A process in its network namespace.
    pid: i32,
}

impl Docker {
    /// Returns the engine, or prints why the test is skipped.
    fn find(test: &str) -> Option<Self> {
        let skipped = |why: &str| println!("SKIP {test}: {why}");
        let Ok(socket) = std::env::var("COFFERDAM_TEST_DOCKER") else {
            skipped("COFFERDAM_TEST_DOCKER names no engine");
            return None;
        };
        if !rustix::process::geteuid().is_root() {
            skipped("only root can start a registry in the network namespace of the engine");
            return None;
        }
        if ["docker", "docker-registry"].iter().any(|name| Command::new(name).arg("--version").output().is_err()) {
            skipped("docker or docker-registry is not installed");
            return None;
        }
        let stream = UnixStream::connect(&socket).expect("the engine answers");
        let pid = socket_peercred(&stream).expect("its process").pid.as_raw_nonzero().get();
        Some(Self { socket, pid })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(words).env("DOCKER_HOST", format!("unix://{}", self.socket)).env("DOCKER_BUILDKIT", "0");
        command
    }

    fn run(&self, words: &[&str]) {
        let (code, stdout, stderr) = outcome(&mut self.command(words));
        assert_eq!(code, 0, "{words:?}: {stdout}{stderr}");
    }

    /// Pushes images to a registry without TLS, which ends afterwards and leaves its files in `storage`.
    fn push(&self, images: &[(&str, &str)], directory: &Path, storage: &Value) {
        let port = free_port();
        let config = json!({"version": "0.1", "storage": storage, "http": {"addr": format!("127.0.0.1:{port}")}});
        let _registry = Registry::start(&config, &directory.join("plain.yml"), Some(self.pid));
        for (image, repository) in images {
            let name = format!("127.0.0.1:{port}/{repository}");
            self.run(&["tag", image, &name]);
            let begun = Instant::now();
            loop {
                let (code, _, stderr) = outcome(&mut self.command(&["push", "--quiet", &name]));
                if code == 0 {
                    break;
                }
                let is_starting = stderr.contains("connection refused") && begun.elapsed() < START_TIMEOUT;
                assert!(is_starting, "{name}: {stderr}");
                std::thread::sleep(Duration::from_millis(50));
            }
            self.run(&["rmi", &name]);
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// Starts a registry with TLS and a password. Returns it, its address and the certificate of its authority.
fn secured(directory: &Path, storage: &Value) -> (Registry, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &authority).expect("a certificate");
    let path = |name: &str| directory.join(name);
    fs::write(path("cert.pem"), certificate.pem()).expect("a file");
    fs::write(path("key.pem"), key.serialize_pem()).expect("a file");
    fs::write(path("htpasswd"), HTPASSWD).expect("a file");
    let port = free_port();
    let host = format!("127.0.0.1:{port}");
    let config = json!({
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": true}},
        "storage": storage,
        "auth": {"htpasswd": {"realm": "test", "path": path("htpasswd")}},
        "http": {"addr": host, "tls": {"certificate": path("cert.pem"), "key": path("key.pem")}},
    });
    let registry = Registry::start(&config, &path("secured.yml"), None);
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < START_TIMEOUT, "the registry does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    (registry, host, authority.pem())
}

/// A user with a store of images.
struct User(PathBuf);

impl User {
    /// Returns `cofferdam` with the files of this user.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = cofferdam();
        command.args(words).env("HOME", &self.0).env("XDG_STATE_HOME", self.0.join("state"));
        command
    }

    /// Returns a run of a shell line in an image.
    fn run(&self, options: &[&str], line: &str) -> Command {
        let mut command = self.command(&["run", "--allow-weaker", WEAKER]);
        command.args(options).args(["--", "sh", "-c", line]);
        command
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("created");
        fs::write(path, text).expect("written");
    }
}

/// Promise (Images): Images of `docker build` and of the Debian builder are pulled from a registry with TLS and a password,
/// and run at levels process, container and vm under the same name.
#[test]
fn images_of_a_secured_registry_run_at_each_level() {
    let test = "images_of_a_secured_registry_run_at_each_level";
    let Some(docker) = Docker::find(test) else { return };
    let temp = tempfile::tempdir().expect("a directory");
    let directory = temp.path();
    fs::create_dir(directory.join("context")).expect("created");
    fs::write(directory.join("context/Dockerfile"), DOCKERFILE).expect("written");
    let built = format!("cofferdam-test/pushed-{}:1", std::process::id());
    docker.run(&["build", "--network", "none", "-t", &built, &directory.join("context").display().to_string()]);
    // The engine has a network namespace of its own, so two registries have the same files.
    let storage = json!({"filesystem": {"rootdirectory": directory.join("storage")}});
    docker.push(&[(&built, "team/built:1"), (BASE, "team/base:1")], directory, &storage);
    docker.run(&["rmi", &built]);
    let (_registry, host, authority) = secured(directory, &storage);
    let (name, base) = (format!("{host}/team/built:1"), format!("{host}/team/base:1"));
    let user = User(directory.join("user"));
    let login = |auth: &str| user.write(".docker/config.json", &json!({"auths": {&host: {"auth": auth}}}).to_string());

    // Base64 of `tester:open sesame` and of `tester:wrong`.
    let (right, wrong) = ("dGVzdGVyOm9wZW4gc2VzYW1l", "dGVzdGVyOndyb25n");
    login(right);
    let (code, _, stderr) = outcome(&mut user.command(&["image", "pull", &name]));
    assert!(code == 125 && stderr.contains("certificate"), "an unknown authority: {code} {stderr}");
    user.write(&format!(".config/containers/certs.d/{host}/ca.crt"), &authority);
    login(wrong);
    let (code, _, stderr) = outcome(&mut user.command(&["image", "pull", &name]));
    assert!(code == 125 && stderr.contains("denies access"), "a wrong password: {code} {stderr}");
    login(right);
    let (code, stdout, stderr) = outcome(&mut user.command(&["image", "pull", &name]));
    assert!(code == 0 && stdout.starts_with(&format!("pulled {name};")), "{code} {stdout} {stderr}");

    let line = "cat /made/file /made/inner/new; test -e /made/gone || echo gone";
    let shared = "made\nnew\ngone\n";
    let own = "; echo $GREETING; id -u; pwd";
    let (code, stdout, stderr) = outcome(&mut user.run(&["--image", &name], &format!("{line}{own}")));
    assert_eq!((code, stdout), (0, format!("{shared}hello world\n1234\n/srv\n")), "{stderr}");
    let (code, stdout, stderr) =
        outcome(&mut user.run(&["--pull", "missing", "--image", &base], "python3 -c 'print(6 * 7)'"));
    assert_eq!((code, stdout.as_str()), (0, "42\n"), "{stderr}");
    let mut contained = user.run(&["--level", "container", "--image", &name], line);
    let contained = outcome(contained.env("DOCKER_HOST", format!("unix://{}", docker.socket)));
    docker.run(&["rmi", "--force", &name]);
    assert_eq!((contained.0, contained.1.as_str()), (0, shared), "{}", contained.2);
    let options = ["--level", "vm", "--image", &name];
    let Some(mut command) = with_vms(user.run(&options, line), test) else { return };
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stdout.as_str()), (0, shared), "{stderr}");
}
