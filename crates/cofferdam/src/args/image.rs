//! Arguments of `cofferdam image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const IMAGE_HELP: &str = "\
Examples:
  cofferdam image build-base           shell, Python and Node from Debian packages; no registry
  cofferdam image import ./rootfs my/root
  cofferdam image pull python:3.13-slim
  cofferdam run --image my/root -- sh -c 'cat /etc/os-release'

The engine is that of DOCKER_HOST, of the configuration file, of Docker's default socket or of
Podman's, in this order.";

/// `cofferdam image`.
#[derive(Debug, Args)]
#[command(after_help = IMAGE_HELP)]
pub struct ImageArgs {
    /// The command
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// Commands for images of the container engine.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List the images of the engine
    List {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Import a root file system from a directory or a tar file as an image
    Import {
        /// Import this directory or tar file
        #[arg(value_name = "DIR|TAR")]
        source: PathBuf,
        /// Name the new image
        name: String,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Build the default image of containers from Debian packages
    BuildBase {
        /// Name the new image
        #[arg(long, default_value = cofferdam::registry::images::BASE_IMAGE)]
        name: String,
        /// Include only a shell and a small Python, without the usual tools and Node
        #[arg(long)]
        tiny: bool,
        /// Add a package; may be repeated
        #[arg(long, value_name = "NAME")]
        package: Vec<String>,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
    /// Pull an image from its registry
    Pull {
        /// Pull the image of this name; a digest (name@sha256:...) fixes its content
        name: String,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
    },
}

impl ImageCommand {
    /// Returns true if the result is printed as JSON.
    pub fn json(&self) -> bool {
        match self {
            Self::List { json }
            | Self::Import { json, .. }
            | Self::BuildBase { json, .. }
            | Self::Pull { json, .. } => *json,
        }
    }
}
