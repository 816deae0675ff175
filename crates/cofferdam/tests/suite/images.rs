//! Images at level process: layers that overlayfs merges, whatever store they come from.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cofferdam::{
    Access, Backend, ByteSize, Error, ErrorKind, ExecRequest, Mount, MountAccess, MountSource, MountTarget, Protection,
    Result, RootFs, Spec, Workspace,
};
use cofferdam_process::{ImageStore, Images, ProcessBackend, ProcessConfig, RootImage};

/// A store with one image in directories of the test.
#[derive(Debug)]
pub struct Fixed {
    directory: tempfile::TempDir,
    count: usize,
    pub user: Option<(u32, u32)>,
}

impl ImageStore for Fixed {
    fn resolve(&self, reference: &str) -> Result<RootImage> {
        if reference != "test:latest" {
            let error = Error::new(ErrorKind::NotFound, "create", format!("there is no image '{reference}'"));
            return Err(error.with_remedy("name 'test:latest'"));
        }
        let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Ok(RootImage {
            layers: (0..self.count).map(|index| self.layer(index)).collect(),
            env: vec![variable("PATH", "/programs:/bin"), variable("GREETING", "hello")],
            working_dir: Some("/app".to_owned()),
            user: self.user,
            lease: Arc::new(()),
        })
    }
}

impl Fixed {
    /// Creates an image with these programs of the host in its lowest layer.
    pub fn with_programs(programs: &[&str], count: usize) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let fixed = Self { directory, count, user: None };
        for index in 0..count {
            fs::create_dir(fixed.layer(index)).expect("created");
            fs::set_permissions(fixed.layer(index), fs::Permissions::from_mode(0o755)).expect("set");
        }
        for program in programs {
            let path = fs::canonicalize(Path::new("/bin").join(program)).expect("a program");
            fixed.put(0, &format!("bin/{program}"), &fs::read(&path).expect("read"));
            let listed = Command::new("ldd").arg(&path).output().expect("ldd runs").stdout;
            for word in String::from_utf8_lossy(&listed).split_whitespace().filter(|word| word.starts_with('/')) {
                fixed.put(0, &word[1..], &fs::read(word).expect("a library"));
            }
        }
        fixed.put(0, "app/readme", b"of the image\n");
        fixed
    }

    fn layer(&self, index: usize) -> PathBuf {
        self.directory.path().join(index.to_string())
    }

    fn put(&self, layer: usize, name: &str, contents: &[u8]) {
        let path = self.layer(layer).join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("created");
        fs::write(&path, contents).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    pub fn backend(self) -> Arc<dyn Backend> {
        let images = Images(Some(Arc::new(self)));
        Arc::new(ProcessBackend::new(ProcessConfig { images, ..ProcessConfig::default() }).expect("a backend"))
    }
}

fn spec() -> cofferdam::SpecBuilder {
    let limits = cofferdam::Limits { memory: None, pids: None, cpu_time: None, ..Default::default() };
    Spec::builder().root(RootFs::Image { reference: "test:latest".to_owned() }).limits(limits)
}

/// Runs a shell command in a new sandbox and returns its output.
async fn shell(backend: &Arc<dyn Backend>, spec: Spec, script: &str) -> String {
    let request = ExecRequest::shell(script).build().expect("a request");
    let (done, posture) = backend.run(spec, request).await.expect("run");
    let root = posture.get(Protection::RootFilesystem).expect("a row");
    assert_eq!(root.state, cofferdam::ProtectionState::Enforced, "{root:?}");
    assert!(root.mechanism.contains("; all files of the image belong to "), "{root:?}");
    assert_eq!(done.exit.code, 0, "{:?}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout.to_vec()).expect("text")
}

/// Promise (Images): At level process, an image's layers are merged read-only, with its deletions, environment, user and
/// working directory.
#[tokio::test]
async fn layers_are_merged_with_their_deletions() {
    let mut image = Fixed::with_programs(&["sh", "cat", "ls", "id"], 3);
    image.user = Some((1234, 1234));
    for name in ["gone", "kept", "hidden/old", "replaced"] {
        image.put(0, name, b"0\n");
    }
    image.put(1, "replaced", b"1\n");
    image.put(1, "hidden/new", b"1\n");
    let whiteout = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, image.layer(2).join("gone"), whiteout, rustix::fs::Mode::empty(), 0)
        .expect("a whiteout");
    let opaque = image.layer(1).join("hidden");
    let set = rustix::fs::setxattr(&opaque, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty());
    if let Err(error) = set {
        println!("SKIP the opaque directory: the file system has no attributes: {error}");
        fs::remove_file(image.layer(0).join("hidden/old")).expect("removed");
    }
    let backend = image.backend();
    let script = "ls / && cat /replaced && ls /hidden && echo $GREETING $PATH && id -u && cat readme && \
                  if echo x 2>/dev/null > /new; then echo wrote; fi && cat /etc/resolv.conf";
    let output = shell(&backend, spec().build().expect("a spec"), script).await;
    let lines: Vec<_> = output.lines().collect();
    assert!(lines.contains(&"kept") && !lines.contains(&"gone") && !lines.contains(&"wrote"), "{output}");
    assert!(!lines.contains(&"usr"), "nothing of the host is there: {output}");
    let resolver = format!("nameserver {}", cofferdam_egress::RESOLVER);
    let expected = ["1", "new", "hello /programs:/bin", "1234", "of the image", &resolver];
    assert_eq!(lines[lines.len() - expected.len()..], expected, "{output}");
}

#[tokio::test]
async fn mounts_and_workspaces_lie_over_an_image() {
    let backend = Fixed::with_programs(&["sh", "cat", "pwd"], 1).backend();
    let host = tempfile::tempdir().expect("a directory");
    fs::write(host.path().join("file"), "of the host\n").expect("written");
    let path = host.path().canonicalize().expect("a path");
    let mount = |target: &str, source| Mount { target: MountTarget::new(target).expect("a target"), source };
    let directory = MountSource::HostPath { path: path.clone(), access: MountAccess::ReadOnly };
    let file = MountSource::HostPath { path: path.join("file"), access: MountAccess::ReadOnly };
    let size = ByteSize::from_mebibytes(1);
    let spec = spec()
        .workspace(Workspace::HostDir { path, access: Access::ReadOnly })
        .mount(mount("/app/new/data", directory))
        .mount(mount("/etc/app.conf", file))
        .mount(mount("/scratch", MountSource::Tmpfs { size }))
        .build()
        .expect("a spec");
    let script =
        "pwd && cat file /app/readme /app/new/data/file /etc/app.conf && echo x > /scratch/x && cat /scratch/x";
    let output = shell(&backend, spec, script).await;
    assert_eq!(output, "/workspace\nof the host\nof the image\nof the host\nof the host\nx\n");
}

/// Promise (Images): A link of an image never leads a mount, or a file of the sandbox's own, to the host.
#[tokio::test]
async fn links_of_an_image_lead_nothing_to_the_host() {
    let image = Fixed::with_programs(&["sh", "cat"], 1);
    let host = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(host.path(), image.layer(0).join("etc")).expect("a link");
    std::os::unix::fs::symlink(host.path(), image.layer(0).join("data")).expect("a link");
    std::os::unix::fs::symlink("/../../..", image.layer(0).join("app/up")).expect("a link");
    let backend = image.backend();
    let output = shell(&backend, spec().build().expect("a spec"), "cat /etc/hostname").await;
    assert_eq!(output, "sandbox\n", "the sandbox's own /etc covers the link");
    for target in ["/data/x", "/app/up/x", "/app/readme/x"] {
        let size = ByteSize::from_mebibytes(1);
        let mount = Mount { target: MountTarget::new(target).expect("a target"), source: MountSource::Tmpfs { size } };
        let error = backend.create(spec().mount(mount).build().expect("a spec")).await.expect_err(target);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{target}: {error}");
    }
    assert_eq!(fs::read_dir(host.path()).expect("read").count(), 0, "{:?}", host.path().as_os_str().as_bytes());
}

#[tokio::test]
async fn images_that_are_missing_or_too_deep_are_refused() {
    let none = ProcessBackend::new(ProcessConfig::default()).expect("a backend");
    let error = none.create(spec().build().expect("a spec")).await.expect_err("no store");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let backend = Fixed::with_programs(&["sh"], 81).backend();
    let error = backend.create(spec().build().expect("a spec")).await.expect_err("too many layers");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let other = Spec::builder().root(RootFs::Image { reference: "other".to_owned() }).build().expect("a spec");
    let error = backend.create(other).await.expect_err("another image");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let backend = Fixed::with_programs(&["sh"], 80).backend();
    assert_eq!(shell(&backend, spec().build().expect("a spec"), "echo works").await, "works\n");
}

/// Promise (Images): `cofferdam run --image` runs an image of the store at level process, without any engine.
#[cfg(feature = "images")]
#[test]
fn the_command_line_runs_an_image_of_the_store() {
    use cofferdam_image::store::{ImageConfig, ImageStore, Options};
    use cofferdam_linux::named::Directory;

    use crate::cli::{WEAKER, cofferdam, json, outcome};

    let data = tempfile::tempdir().expect("a directory");
    fs::create_dir(data.path().join("cofferdam")).expect("created");
    let image = Fixed::with_programs(&["sh", "cat", "id"], 1);
    image.put(0, "etc/os-release", b"NAME=test\n");
    let store = ImageStore::open(&data.path().join("cofferdam/images"), Options::default()).expect("a store");
    let directory = Directory::open(&image.layer(0)).expect("a layer");
    let name = "tool:1".parse().expect("a name");
    store.import_directory(&directory, &ImageConfig::default(), &name, &mut |_| {}).expect("imported");
    let run = |options: &[&str], words: &[&str]| {
        let mut command = cofferdam();
        command.args(["run", "--allow-weaker", WEAKER]).args(options).arg("--").args(words);
        outcome(command.env("XDG_STATE_HOME", data.path()))
    };
    let script = "cat /etc/os-release && id -u && if echo x 2>/dev/null >/etc/new; then echo wrote; fi";
    for options in [&["--image", "tool:1"][..], &["--image", "tool:1", "--backend", "process"]] {
        let (status, stdout, stderr) = run(options, &["sh", "-c", script]);
        assert_eq!((status, stdout.as_str()), (0, "NAME=test\n1000\n"), "{options:?}: {stderr}");
    }
    let (status, stdout, stderr) = run(&["--image", "tool:1", "--json"], &["sh", "-c", "exit 3"]);
    assert_eq!(status, 3, "{stderr}");
    assert_eq!(json(&stdout)["backend"], "process", "{stdout}");
    let config = ImageConfig {
        env: vec![("NAME".to_owned(), "image".to_owned())],
        entrypoint: ["sh", "-c", "echo \"$NAME says $*\"", "entry"].map(str::to_owned).to_vec(),
        cmd: vec!["hello".to_owned()],
        ..ImageConfig::default()
    };
    let name = "entry:1".parse().expect("a name");
    store.import_directory(&directory, &config, &name, &mut |_| {}).expect("imported");
    for (words, expected) in [(&[][..], "image says hello\n"), (&["bye", "now"], "image says bye now\n")] {
        let (status, stdout, stderr) = run(&["--image", "entry:1", "--entrypoint"], words);
        assert_eq!((status, stdout.as_str()), (0, expected), "{stderr}");
    }
    let (status, _, stderr) = run(&["--image", "none:1", "--backend", "process"], &["sh"]);
    assert!(status == 127 && stderr.contains("none:1") && stderr.contains("try: "), "{status} {stderr}");
}

/// Promise (Images): Sandboxes with many different roots keep no other sandbox from its launcher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_roots_leave_a_launcher_for_every_sandbox() {
    let own = || spec().root(RootFs::Default);
    let backend: Arc<dyn Backend> = Arc::new(ProcessBackend::new(ProcessConfig::default()).expect("a backend"));
    let host = tempfile::tempdir().expect("a directory");
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let mut open = Vec::new();
    for number in 0..20 {
        let target = MountTarget::new(format!("/srv/{number}")).expect("a target");
        let source = MountSource::HostPath { path: host.path().to_owned(), access: MountAccess::ReadOnly };
        let one = own().mount(Mount { target, source }).build().expect("a spec");
        open.push(backend.create(one).await.expect("a sandbox"));
    }
    let last = backend.create(own().build().expect("a spec")).await.expect("the default root");
    let done = last.exec(ExecRequest::shell("echo done").build().expect("a request")).await.expect("it runs");
    assert_eq!(&*done.stdout, b"done\n");
    for sandbox in open.into_iter().chain([last]) {
        sandbox.close().await.expect("closed");
    }
}
