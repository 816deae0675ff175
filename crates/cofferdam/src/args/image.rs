//! Arguments of `cofferdam image`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

#[cfg(feature = "server")]
use super::ClientArgs;

const IMAGE_HELP: &str = "\
Examples:
  cofferdam image pull python:3.13-slim
  cofferdam image build                shell, Python and Node from Debian packages; no registry
  cofferdam image import ./rootfs my/root
  cofferdam image load saved.tar       an archive of docker save, or an OCI image layout
  cofferdam image load saved.tar --server https://sandboxes.example
  cofferdam run --image my/root -- sh -c 'cat /etc/os-release'

The store is $XDG_STATE_HOME/cofferdam/images or ~/.local/state/cofferdam/images, for root
/var/lib/cofferdam/images. Container engines and VMs get its images when a sandbox needs them.";

/// `cofferdam image`.
#[derive(Debug, Args)]
#[command(after_help = IMAGE_HELP)]
pub struct ImageArgs {
    /// The command
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// Commands for the image store.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List images with their sizes and last uses
    #[command(name = "ls", visible_alias = "list")]
    List {
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[cfg(feature = "server")]
        #[command(flatten)]
        on: Box<ImageServerArgs>,
    },
    /// Pull an image from its registry, with the logins of Docker or Podman
    Pull {
        /// Pull the image of this name; a digest (name@sha256:...) fixes its content
        name: String,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[cfg(feature = "server")]
        #[command(flatten)]
        on: Box<ImageServerArgs>,
    },
    /// Load images from an archive of `docker save` or from an OCI image layout
    Load {
        /// Read this tar file or directory
        #[arg(value_name = "TAR|DIR")]
        source: PathBuf,
        /// Name the image, if the archive has only one
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        output: OutputArgs,
        #[cfg(feature = "server")]
        #[command(flatten)]
        on: Box<ImageServerArgs>,
    },
    /// Import a root file system from a directory or a tar file as an image
    Import {
        /// Import this directory or tar file
        #[arg(value_name = "DIR|TAR")]
        source: PathBuf,
        /// Name the new image
        name: String,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Build the default image of containers from Debian packages
    #[command(visible_alias = "build-base")]
    Build {
        /// Name the new image
        #[arg(long, default_value = cofferdam::registry::image_store::BASE_IMAGE)]
        name: String,
        /// Include only a shell and a small Python, without the usual tools and Node
        #[arg(long)]
        tiny: bool,
        /// Add a package; may be repeated
        #[arg(long, value_name = "NAME")]
        package: Vec<String>,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Remove names, and images without another name
    Rm {
        /// Remove the images with these names or digests
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        output: OutputArgs,
        #[cfg(feature = "server")]
        #[command(flatten)]
        on: Box<ImageServerArgs>,
    },
    /// Remove images without a name, and files that no image has
    Prune {
        /// Also remove images that no sandbox used for this time
        #[arg(long, value_name = "DURATION", value_parser = cofferdam::parse_duration)]
        older_than: Option<Duration>,
        #[command(flatten)]
        output: OutputArgs,
        #[cfg(feature = "server")]
        #[command(flatten)]
        on: Box<ImageServerArgs>,
    },
    /// Print details of an image
    Inspect {
        /// Select the image by its name or digest
        name: String,
        #[command(flatten)]
        output: OutputArgs,
        #[cfg(feature = "server")]
        #[command(flatten)]
        on: Box<ImageServerArgs>,
    },
}

/// The form of the result.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// The server whose images are used instead of those of this host.
#[cfg(feature = "server")]
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ImageServerArgs {
    /// Use the images of a server instead of those of this host; changes need a key with the scope `admin`; implied by the
    /// other options of this group
    #[arg(long)]
    pub on_server: bool,

    #[command(flatten)]
    pub client: ClientArgs,
}

/// The choice between the image store and the container engine.
#[derive(Debug, Clone, Copy, Args)]
pub struct EngineArgs {
    /// Use the container engine's own images instead of the image store
    #[cfg(feature = "container")]
    #[arg(long)]
    pub engine: bool,
}

#[cfg(feature = "container")]
impl EngineArgs {
    /// Returns true if the engine's own images are meant.
    pub fn is_set(self) -> bool {
        self.engine
    }
}

impl ImageCommand {
    /// Returns true if the result is printed as JSON.
    pub fn json(&self) -> bool {
        match self {
            Self::List { output, .. }
            | Self::Pull { output, .. }
            | Self::Load { output, .. }
            | Self::Import { output, .. }
            | Self::Build { output, .. }
            | Self::Rm { output, .. }
            | Self::Prune { output, .. }
            | Self::Inspect { output, .. } => output.json,
        }
    }

    /// Returns the server that the options name.
    #[cfg(feature = "server")]
    pub fn server(&self) -> Option<&ClientArgs> {
        match self {
            Self::List { on, .. }
            | Self::Pull { on, .. }
            | Self::Load { on, .. }
            | Self::Rm { on, .. }
            | Self::Prune { on, .. }
            | Self::Inspect { on, .. } => (on.on_server || on.client.is_set()).then_some(&on.client),
            Self::Import { .. } | Self::Build { .. } => None,
        }
    }

    /// Returns true if the command is about the engine's own images.
    #[cfg(feature = "container")]
    pub fn is_for_engine(&self) -> bool {
        match self {
            Self::List { engine, .. }
            | Self::Pull { engine, .. }
            | Self::Import { engine, .. }
            | Self::Build { engine, .. } => engine.is_set(),
            Self::Load { .. } | Self::Rm { .. } | Self::Prune { .. } | Self::Inspect { .. } => false,
        }
    }
}
