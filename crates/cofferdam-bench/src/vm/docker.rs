//! `docker run` of `true`, if an engine answers. Its image contains one static program. It is created for the run and
//! removed after it.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::{self, Keep};

/// The default socket of engines.
const SOCKET: &str = "/var/run/docker.sock";

/// An engine with an image for the benchmark.
#[derive(Debug)]
pub struct Docker {
    address: String,
    image: String,
    /// The version that the engine reports.
    pub version: String,
}

impl Docker {
    /// Imports the image into an engine. The error is the reason why no engine takes part.
    pub async fn prepare(host: Option<&str>, busybox: &Path, scratch: &Path) -> Result<Self, String> {
        let variable = |name| std::env::var(name).ok();
        let named =
            host.map(str::to_owned).or_else(|| variable("DOCKER_HOST")).or_else(|| variable("COFFERDAM_TEST_DOCKER"));
        let address = named.or_else(|| Path::new(SOCKET).exists().then(|| SOCKET.to_owned()));
        let address =
            address.ok_or("no engine is running: start one with --docker, or name one with --host ADDRESS")?;
        let address = if address.starts_with('/') { format!("unix://{address}") } else { address };
        let image = format!("cofferdam-bench:{}", std::process::id());
        let mut docker = Self { address, image, version: String::new() };
        docker.version = output(docker.command(&["version", "--format", "{{.Server.Version}}"]))?;
        docker.import(busybox, scratch)?;
        Ok(docker)
    }

    fn import(&self, busybox: &Path, scratch: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("fails: {error}");
        let root = scratch.join("container");
        fs::create_dir_all(root.join("bin")).map_err(failed)?;
        fs::copy(busybox, root.join("bin/busybox")).map_err(failed)?;
        symlink("busybox", root.join("bin/true")).map_err(failed)?;
        let packed = scratch.join("container.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&root).arg("-cf").arg(&packed).arg(".");
        output(tar)?;
        let mut import = self.command(&["import", "-", &self.image]);
        import.stdin(File::open(packed).map_err(failed)?);
        output(import).map(drop)
    }

    /// Runs the container once.
    pub async fn run(&self) -> Result<(), String> {
        let line = ["docker", "-H", &self.address, "run", "--rm", "--network=none", &self.image, "/bin/true"];
        program::run(&line, "", Keep::OutputAndErrors).await
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(["-H", &self.address]).args(words).stdin(Stdio::null());
        command
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let _ = output(self.command(&["rmi", "--force", &self.image]));
    }
}

fn output(mut command: Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("fails: {error}"))?;
    if !output.status.success() {
        return Err(program::reason(&output.stderr, output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
