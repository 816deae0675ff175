//! Files that peers need: bundles, an image, settings. They are created if a contestant needs them, and removed when
//! the stage is dropped. The next run reuses the names of an interrupted run.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::json;
use tempfile::TempDir;

use super::oci;
use super::peer::{self, BOX, IMAGE, Peer};
use super::workload::Workload;
use crate::host::groups;
use crate::program;

/// Files that peers need.
#[derive(Debug)]
pub struct Stage {
    dir: TempDir,
    image: bool,
    boxed: bool,
}

impl Stage {
    /// Prepares the common files. [`Stage::set_up`] prepares those of a single peer.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("cofferdam-bench-").tempdir().context("cannot create a directory")?;
        let root = dir.path().join("root");
        oci::make_root(&root).context("cannot create a root for OCI runtimes")?;
        for workload in Workload::ALL {
            let bundle = dir.path().join(workload.slug());
            fs::create_dir(&bundle)?;
            fs::write(bundle.join("config.json"), oci::config(workload, &root).to_string())?;
        }
        let settings = json!({
            "network": { "allowedDomains": [], "deniedDomains": [] },
            "filesystem": { "denyRead": [], "allowWrite": [], "denyWrite": [] },
        });
        fs::write(dir.path().join("srt.json"), settings.to_string())?;
        Ok(Self { dir, image: false, boxed: false })
    }

    /// Returns the directory for command lines.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Prepares one peer. The error is the reason why it cannot take part.
    pub async fn set_up(&mut self, peer: Peer) -> Result<(), String> {
        match peer {
            Peer::Docker => {
                let question = ["docker", "version", "--format", "{{.Server.Version}}"];
                if program::succeeds(&question).await.is_err() {
                    return Err("the server does not answer".to_owned());
                }
                self.import_image().map_err(|error| format!("fails: {error:#}"))?;
                self.image = true;
            }
            Peer::Isolate => {
                program::succeeds(&["isolate", &format!("--box-id={BOX}"), "--init"]).await?;
                self.boxed = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Imports the root into Docker as an image. tar packs it, because it keeps links.
    fn import_image(&self) -> Result<()> {
        let packed = self.dir().join("root.tar");
        let mut tar = Command::new("tar");
        quiet(tar.arg("-C").arg(self.dir().join("root")).arg("-cf").arg(&packed).arg("."))?;
        let mut import = Command::new("docker");
        import.args(["import", "-", IMAGE]).stdin(File::open(packed)?);
        quiet(&mut import)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.image {
            let _ = quiet(Command::new("docker").args(["rmi", "--force", IMAGE]));
        }
        if self.boxed {
            let _ = quiet(Command::new("isolate").args([&format!("--box-id={BOX}"), "--cleanup"]));
        }
        // runsc leaves its control groups behind if it fails.
        groups::remove_left(&peer::id_prefix());
    }
}

fn quiet(command: &mut Command) -> Result<()> {
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    anyhow::ensure!(output.status.success(), "{}", program::reason(&output.stderr, output.status));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_every_file_that_command_lines_name_and_leaves_none() {
        let stage = Stage::new().unwrap();
        let dir = stage.dir().to_owned();
        for file in ["true/config.json", "python/config.json", "srt.json", "root/usr"] {
            assert!(dir.join(file).exists(), "{file}");
        }
        drop(stage);
        assert!(!dir.exists());
    }
}
