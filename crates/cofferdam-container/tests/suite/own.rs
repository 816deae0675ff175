//! A separate engine that a test may kill, in its own namespaces and on its own disk.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bollard::Docker;
use futures_core::Stream;
use tempfile::TempDir;

use crate::support::{self, TestEngine};

/// The script of process 1 of its pid namespace. It restarts the engine on request, and ends with the test.
const PROCESS_ONE: &str = r#"
directory=$1 size=$2 kind=$3
mount --make-rprivate / && ip link set lo up || exit 1
mount -t tmpfs tmpfs /run && mkdir -p "$directory/data" && mount -t tmpfs -o size="$size" tmpfs "$directory/data" || exit 1
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
while :; do
  rm -f "$directory/engine.sock" "$directory/engine.pid"
  if [ "$kind" != docker ]; then
    cd "$directory/data" && podman --runtime "$kind" --cgroup-manager=cgroupfs --events-backend=file --log-level=warn --root "$directory/data/root" \
      --runroot "$directory/data/run" --tmpdir "$directory/data/tmp" system service --time=0 "unix://$directory/engine.sock" \
      >>"$directory/log" 2>&1
  else
  dockerd --host "unix://$directory/engine.sock" --data-root "$directory/data" --exec-root "$directory/exec" \
    --pidfile "$directory/engine.pid" --bridge=none --iptables=false --ip6tables=false --ip-forward=false \
    --ip-masq=false --log-level=warn --cgroup-parent=/cofferdam-test-own >>"$directory/log" 2>&1
  fi
  while [ ! -e "$directory/again" ]; do sleep 0.1; done
  rm -f "$directory/again"
done
"#;
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct OwnEngine {
    pub engine: TestEngine,
    directory: TempDir,
    child: Child,
}

impl OwnEngine {
    /// Starts Docker with this much space for images and containers. Returns `None` and prints the reason if that is
    /// impossible.
    pub(crate) async fn start(test: &str, size: &str) -> Option<Self> {
        let donor = support::docker(test)?;
        Self::start_as("dockerd", "docker", donor, test, size).await
    }

    /// Starts Podman likewise, with this runtime. It cannot be killed by `signal`.
    pub(crate) async fn start_podman(test: &str, size: &str, runtime: &str) -> Option<Self> {
        let donor = support::podman(test)?;
        Self::start_as("podman", runtime, donor, test, size).await
    }

    /// Starts Docker, or Podman with the runtime `kind`.
    async fn start_as(program: &'static str, kind: &str, donor: TestEngine, test: &str, size: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP {test}: only root can start an engine");
            return None;
        }
        if Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP {test}: no {program} installed");
            return None;
        }
        // A short path, since that of a socket must be short.
        let directory = tempfile::Builder::new().prefix("cofferdam-own-").tempdir_in("/var/tmp").unwrap();
        let child = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"])
            .args(["sh", "-c", PROCESS_ONE, "sh"])
            .arg(directory.path())
            .arg(size)
            .arg(kind)
            .stdin(Stdio::null())
            .spawn()
            .expect("unshare starts");
        let engine = TestEngine { name: program, socket: directory.path().join("engine.sock"), runtime: None };
        let own = Self { engine, directory, child };
        own.wait().await;
        own.copy_image(&donor).await;
        Some(own)
    }

    /// Waits until the engine answers.
    pub(crate) async fn wait(&self) {
        let begun = Instant::now();
        loop {
            if self.engine.socket.exists()
                && let Ok(docker) =
                    Docker::connect_with_unix(&self.engine.socket.to_string_lossy(), 5, bollard::API_DEFAULT_VERSION)
                && docker.negotiate_version().await.is_ok()
            {
                return;
            }
            assert!(begun.elapsed() < START_TIMEOUT, "{}", std::fs::read_to_string(self.log()).unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Returns the directory of its images and containers, as visible to the test.
    pub(crate) fn disk(&self) -> PathBuf {
        Path::new("/proc")
            .join(self.process_one().to_string())
            .join("root")
            .join(self.directory.path().join("data").strip_prefix("/").unwrap())
    }

    fn process_one(&self) -> u32 {
        children(self.child.id())[0]
    }

    fn engine_process(&self) -> u32 {
        let all = children(self.process_one());
        let is_engine = |pid: &&u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "dockerd")
        };
        *all.iter().find(is_engine).expect("the engine runs")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.engine_process()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Restarts the engine after a kill.
    pub(crate) async fn start_again(&self) {
        std::fs::write(self.directory.path().join("again"), "").unwrap();
        self.wait().await;
    }

    /// Copies the image of tests from another engine.
    async fn copy_image(&self, donor: &TestEngine) {
        let (from, to) = (donor.negotiated().await, self.engine.negotiated().await);
        let (sender, receiver) = tokio::sync::mpsc::channel(8);
        let image = support::image();
        let exporting = tokio::spawn(async move {
            let mut exporting = Box::pin(from.export_image(&image));
            while let Some(chunk) = next(&mut exporting).await {
                sender.send(chunk.map_err(std::io::Error::other)).await.expect("the chunk is received");
            }
        });
        let options = bollard::query_parameters::ImportImageOptionsBuilder::default().build();
        let mut importing = Box::pin(to.import_image_stream(options, Given(receiver), None));
        while let Some(event) = next(&mut importing).await {
            event.expect("the image is loaded");
        }
        exporting.await.expect("the image is exported");
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        // Everything is in the pid namespace of its process 1.
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_groups();
    }
}

struct Given(tokio::sync::mpsc::Receiver<std::io::Result<bytes::Bytes>>);

impl Stream for Given {
    type Item = std::io::Result<bytes::Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Removes the control groups of the tests, which outlive an engine.
fn remove_groups() {
    for controller in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        let group = controller.path().join("cofferdam-test-own");
        let below = std::fs::read_dir(&group).into_iter().flatten().flatten();
        below.filter(|entry| entry.path().is_dir()).for_each(|entry| drop(std::fs::remove_dir(entry.path())));
        let _ = std::fs::remove_dir(group);
    }
}
